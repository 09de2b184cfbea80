// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/handle_socket.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

namespace gpulease::peers {
namespace {

Error Closed() {
  return MakeError(
      Code::kUnavailable, Reason::kHandOver,
      "the session's handle socket is closed: nothing was handed over; connect anew and retry");
}

}  // namespace

Status HandleSocket::Push(Parcel parcel) {
  MutexLock lock(mutex_);
  if (closed_) return Closed();
  // A tag that is used twice: the first time is not waited for any more.
  const Key key = {parcel.tag, parcel.lease_id};
  DropWaiting(key);
  Unanswered& unanswered = unanswered_[key];
  on_their_way_ -= unanswered.sent;
  unanswered = {static_cast<std::uint32_t>(parcel.descriptors.size()), 0};
  waiting_.push_back({std::move(parcel), 0});
  return FlushLocked();
}

HandleSocket::~HandleSocket() {
  MutexLock lock(mutex_);
  user_->Remove(unread_);
}

std::uint32_t UserAllowance::Room(std::uint32_t unread_here) const {
  const std::uint32_t on_the_way = all->unread;
  const std::uint32_t shared = all->most / 4 * 3;
  const std::uint32_t left = shared - std::min(shared, on_the_way);
  const std::uint32_t mine = unread;
  const std::uint32_t share = left / 4 - std::min(left / 4, mine);
  if (unread_here > 0) return share;
  const std::uint32_t least = mine == 0 || mine < left / 2 ? kLeastOnTheWay : 1;
  return std::max(share, std::min(least, all->most - std::min(all->most, on_the_way)));
}

void HandleSocket::DropWaiting(const Key& key) {
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    return waiting.parcel.tag == key.first && waiting.parcel.lease_id == key.second;
  });
}

void HandleSocket::LookForUnread() {
  int bytes = 0;
  if (unread_ == 0 || ioctl(socket_.get(), SIOCOUTQ, &bytes) != 0 || bytes != 0) return;
  user_->Remove(unread_);
  unread_ = 0;
}

bool HandleSocket::HasUnread() {
  MutexLock lock(mutex_);
  LookForUnread();
  return unread_ > 0;
}

std::uint32_t HandleSocket::Room() {
  LookForUnread();
  const std::uint32_t mine =
      kMostUnacknowledged - std::min(kMostUnacknowledged, std::max(on_their_way_, unread_));
  return std::min(mine, user_->Room(unread_));
}

Status HandleSocket::FlushLocked() {
  while (!waiting_.empty()) {
    Waiting& head = waiting_.front();
    const auto total = static_cast<std::uint32_t>(head.parcel.descriptors.size());
    const std::uint32_t count = std::min(total - head.sent, Room());
    if (count == 0) return {};
    handle::Push push;
    push.tag = head.parcel.tag;
    push.lease_id = head.parcel.lease_id;
    push.generation = head.parcel.generation;
    push.first = head.sent;
    push.count = count;
    push.total = total;
    push.read_only = head.parcel.read_only ? 1 : 0;
    const Status sent = SendMessage(socket_.get(), handle::BytesOf(push),
                                    std::span(head.parcel.descriptors).subspan(head.sent, count));
    if (!sent.ok()) {
      // Full socket or too many descriptors on their way: Flush() tries again.
      if (sent.error().code == Code::kResourceExhausted) return {};
      if (sent.error().code == Code::kUnavailable && errno == EAGAIN) return {};
      closed_ = true;
      waiting_.clear();
      return Closed();
    }
    on_their_way_ += count;
    unread_ += count;
    user_->Add(count);
    unanswered_[{push.tag, push.lease_id}].sent += count;
    head.sent += count;
    if (head.sent == total) waiting_.pop_front();
  }
  return {};
}

bool HandleSocket::Flush() {
  MutexLock lock(mutex_);
  if (!FlushLocked().ok()) return false;
  return !waiting_.empty();
}

bool HandleSocket::idle() const {
  MutexLock lock(mutex_);
  return waiting_.empty();
}

HandleSocket::Answer HandleSocket::Acknowledge(const handle::Taken& taken) {
  MutexLock lock(mutex_);
  const auto found = unanswered_.find({taken.tag, taken.lease_id});
  // How much of it a former life had still to push is not known; when it was not all, the client
  // asks again.
  if (found == unanswered_.end() && begun_)
    return taken.ok == 0 ? Answer::kDeclined : Answer::kComplete;
  if (found == unanswered_.end() || taken.count == 0 || taken.count > found->second.sent) {
    return Answer::kUnknown;
  }
  Unanswered& unanswered = found->second;
  unanswered.chunks -= taken.count;
  unanswered.sent -= taken.count;
  on_their_way_ -= taken.count;
  Answer answer = Answer::kMore;
  if (taken.ok == 0) {
    // No further answer of this lease and tag is due.
    on_their_way_ -= unanswered.sent;
    DropWaiting(found->first);
    answer = Answer::kDeclined;
  } else if (unanswered.chunks == 0) {
    answer = Answer::kComplete;
  }
  if (answer != Answer::kMore) unanswered_.erase(found);
  LookForUnread();
  // A peer that has closed is found by the loop's hang-up.
  static_cast<void>(FlushLocked().ok());
  return answer;
}

void HandleSocket::Shutdown() {
  MutexLock lock(mutex_);
  closed_ = true;
  waiting_.clear();
  shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace gpulease::peers
