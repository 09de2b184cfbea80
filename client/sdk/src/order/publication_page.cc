// SPDX-License-Identifier: Apache-2.0
#include "client/sdk/src/order/publication_page.h"

#include <array>
#include <atomic>

namespace gpulease {
namespace {

constexpr std::uint64_t kMagic = 0x31425550'45534c47;  // "GLSEPUB1"
constexpr std::uint32_t kVersion = 1;

// FNV-1a over words: two writers at once leave a mixture that this does not fit.
std::uint64_t Digest(const EventHandle& handle, std::uint64_t session) {
  std::uint64_t digest = 0xcbf29ce484222325 ^ session;
  for (const std::uint64_t word : handle) digest = (digest ^ word) * 0x100000001b3;
  return digest | 1;  // never 0, which is no handle
}

}  // namespace

// All zeros is a page that nobody has laid yet.
struct PublicationPage::Layout {
  std::atomic<std::uint64_t> magic;  // written last
  std::atomic<std::uint32_t> version;
  alignas(64) std::atomic<std::uint64_t> sequence;
  alignas(64) std::atomic<std::uint64_t> publisher;
  std::atomic<std::uint32_t> publisher_pid;
  std::atomic<std::uint32_t> version_of_event;  // odd while the event is being written
  std::atomic<std::uint64_t> digest;            // 0: there is none
  std::atomic<std::uint64_t> session;
  std::array<std::atomic<std::uint64_t>, 8> handle;
};

PublicationPage::PublicationPage(std::byte* memory)
    : layout_(reinterpret_cast<Layout*>(memory)), bell_(memory) {
  static_assert(sizeof(Layout) <= kOrderPageBytes - 64);
}

void PublicationPage::Lay() {
  layout_->version.store(kVersion);
  layout_->magic.store(kMagic);
}

bool PublicationPage::valid() const {
  return layout_->magic.load() == kMagic && layout_->version.load() == kVersion;
}

std::uint64_t PublicationPage::sequence() const { return layout_->sequence.load(); }

PublicationPage::Publisher PublicationPage::publisher() const {
  return {layout_->publisher.load(), layout_->publisher_pid.load()};
}

void PublicationPage::SetPublisher(const Publisher& publisher) {
  layout_->publisher_pid.store(publisher.pid);
  layout_->publisher.store(publisher.session);
}

PublicationPage::Event PublicationPage::event() const {
  const std::uint32_t before = layout_->version_of_event.load();
  if (before % 2 != 0) return {.torn = true};
  const std::uint64_t digest = layout_->digest.load();
  const std::uint64_t session = layout_->session.load();
  EventHandle handle{};
  for (std::size_t i = 0; i < handle.size(); ++i) handle[i] = layout_->handle[i].load();
  if (layout_->version_of_event.load() != before) return {.torn = true};
  if (digest == 0) return {};
  if (digest != Digest(handle, session)) return {.torn = true};
  return {.torn = false, .handle = handle, .session = session};
}

void PublicationPage::SetEvent(const std::optional<EventHandle>& handle, std::uint64_t session) {
  const std::uint32_t writing = layout_->version_of_event.load() | 1;
  layout_->version_of_event.store(writing);
  layout_->digest.store(handle ? Digest(*handle, session) : 0);
  layout_->session.store(session);
  if (handle) {
    for (std::size_t i = 0; i < handle->size(); ++i) layout_->handle[i].store((*handle)[i]);
  }
  layout_->version_of_event.store(writing + 1);
}

std::uint64_t PublicationPage::Announce() {
  const std::uint64_t sequence = layout_->sequence.fetch_add(1) + 1;
  bell_.Ring();
  return sequence;
}

}  // namespace gpulease
