// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_channel.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace gpulease {
namespace {

constexpr std::size_t kControlBytes = CMSG_SPACE(kMaxDescriptorsPerMessage * sizeof(int));

std::string OpenFileLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return std::to_string(limit.rlim_cur);
}

}  // namespace

Status SendMessage(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  if (descriptors.size() > kMaxDescriptorsPerMessage) return ErrnoError("sendmsg", EINVAL);
  iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[kControlBytes];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return {};
  Error error = ErrnoError("sendmsg", errno);
  if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN || errno == EAGAIN)
    error.code = Code::kUnavailable;
  if (errno == ETOOMANYREFS) {
    error.code = Code::kResourceExhausted;
    error.reason = Reason::kDescriptorLimit;
  }
  return error;
}

Result<ReceivedMessage> ReceiveMessage(int socket, std::span<std::byte> buffer, bool dont_wait) {
  iovec vector{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[kControlBytes];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t size;
  do {
    size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | (dont_wait ? MSG_DONTWAIT : 0));
  } while (size < 0 && errno == EINTR);
  if (size < 0) {
    if (errno == ECONNRESET) return ReceivedMessage{};
    Error error = ErrnoError("recvmsg", errno);
    if (errno == EAGAIN) error.code = Code::kUnavailable;
    return error;
  }
  ReceivedMessage received;
  received.size = static_cast<std::size_t>(size);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      received.descriptors.emplace_back(fd);
    }
  }
  if (message.msg_flags & MSG_CTRUNC) {
    return MakeError(Code::kResourceExhausted, Reason::kDescriptorLimit,
                     "descriptors were cut off: this process may have " + OpenFileLimit() +
                         " open files; raise its limit (ulimit -n, LimitNOFILE=) or close some");
  }
  if (message.msg_flags & MSG_TRUNC) {
    return MakeError(Code::kDataLoss, Reason::kUnspecified,
                     "message is longer than " + std::to_string(buffer.size()) + " bytes");
  }
  return received;
}

}  // namespace gpulease
