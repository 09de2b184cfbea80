// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/shelf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gpulease::keeper {
namespace {

constexpr std::uint64_t kPacked = 0x3150'4b4c'4750'4c47;  // names the format and its version

Status SetCloseOnExec(const UniqueFd& fd, bool close) {
  if (!fd) return {};
  if (fcntl(fd.get(), F_SETFD, close ? FD_CLOEXEC : 0) != 0) return ErrnoError("F_SETFD", errno);
  return {};
}

Status ForAll(const Shelf& shelf, const UniqueFd& listener, const UniqueFd& connection,
              bool close) {
  GPULEASE_RETURN_IF_ERROR(SetCloseOnExec(listener, close));
  GPULEASE_RETURN_IF_ERROR(SetCloseOnExec(connection, close));
  for (const auto& [key, entry] : shelf.entries) {
    for (const UniqueFd& fd : entry.descriptors)
      GPULEASE_RETURN_IF_ERROR(SetCloseOnExec(fd, close));
  }
  return {};
}

void Append(std::string& text, std::uint64_t value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Reads what Append wrote; `ok` turns false at the end of the text.
struct Reader {
  std::string_view left;
  bool ok = true;

  std::string_view Bytes(std::uint64_t size) {
    if (size > left.size()) {
      ok = false;
      return {};
    }
    const std::string_view bytes = left.substr(0, size);
    left.remove_prefix(size);
    return bytes;
  }
  std::uint64_t Number() {
    std::uint64_t value = 0;
    const std::string_view bytes = Bytes(sizeof value);
    if (ok) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  // A descriptor, owned from here on; empty when -1 was written.
  UniqueFd Descriptor() {
    const auto fd = static_cast<std::int64_t>(Number());
    if (!ok || fd < 0) return UniqueFd();
    if (fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC) != 0) {
      ok = false;
      return UniqueFd();
    }
    return UniqueFd(static_cast<int>(fd));
  }
};

}  // namespace

Result<UniqueFd> Shelf::Pack(const UniqueFd& listener, const UniqueFd& connection) const {
  std::string text;
  Append(text, kPacked);
  Append(text, static_cast<std::uint64_t>(std::int64_t{listener.get()}));
  Append(text, static_cast<std::uint64_t>(std::int64_t{connection.get()}));
  Append(text, takes);
  Append(text, entries.size());
  for (const auto& [key, entry] : entries) {
    Append(text, key);
    Append(text, entry.record.size());
    text += entry.record;
    Append(text, entry.descriptors.size());
    for (const UniqueFd& fd : entry.descriptors)
      Append(text, static_cast<std::uint64_t>(std::int64_t{fd.get()}));
  }
  UniqueFd packed(memfd_create("gpulease-keeper", 0));
  if (!packed) return ErrnoError("memfd_create", errno);
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t n = write(packed.get(), text.data() + written, text.size() - written);
    if (n < 0) return ErrnoError("write to a memfd", errno);
    written += static_cast<std::size_t>(n);
  }
  if (Status status = ForAll(*this, listener, connection, false); !status.ok()) {
    KeepFromExec(listener, connection);
    return std::move(status).error();
  }
  return packed;
}

void Shelf::KeepFromExec(const UniqueFd& listener, const UniqueFd& connection) const {
  static_cast<void>(ForAll(*this, listener, connection, true).ok());
}

Result<Unpacked> Unpack(UniqueFd packed) {
  const off_t size = lseek(packed.get(), 0, SEEK_END);
  if (size < 0) return ErrnoError("seek in what the former keeper left", errno);
  std::string text(static_cast<std::size_t>(size), '\0');
  const ssize_t n = pread(packed.get(), text.data(), text.size(), 0);
  if (n != static_cast<ssize_t>(text.size()))
    return ErrnoError("read what the former keeper left", errno);
  Reader reader{text};
  Unpacked unpacked;
  if (reader.Number() != kPacked) {
    return MakeError(Code::kDataLoss, Reason::kUnspecified,
                     "what the former keeper left is of another format");
  }
  unpacked.listener = reader.Descriptor();
  unpacked.connection = reader.Descriptor();
  unpacked.shelf.takes = static_cast<std::uint32_t>(reader.Number());
  const std::uint64_t entries = reader.Number();
  for (std::uint64_t i = 0; i < entries && reader.ok; ++i) {
    Entry& entry = unpacked.shelf.entries[reader.Number()];
    entry.record = reader.Bytes(reader.Number());
    const std::uint64_t descriptors = reader.Number();
    for (std::uint64_t j = 0; j < descriptors && reader.ok; ++j)
      entry.descriptors.push_back(reader.Descriptor());
  }
  if (!reader.ok || !reader.left.empty() || !unpacked.listener) {
    return MakeError(Code::kDataLoss, Reason::kUnspecified,
                     "what the former keeper left is damaged");
  }
  return unpacked;
}

}  // namespace gpulease::keeper
