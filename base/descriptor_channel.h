// SPDX-License-Identifier: Apache-2.0
//
// Messages with descriptors over a SOCK_SEQPACKET unix socket: one call sends or receives one whole
// message.
//
// Invariant: a message that arrives cut short, in bytes or in descriptors, is an error and closes
// what did arrive; descriptors are close-on-exec from the moment they exist.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace gpulease {

// SCM_MAX_FD of the kernel: more descriptors in one message are refused with EINVAL.
inline constexpr std::size_t kMaxDescriptorsPerMessage = 253;

// Sends one message; never raises SIGPIPE.
//
// Errors:
//   kUnavailable        the peer has closed, or the socket is non-blocking and its buffer is full
//   (errno EAGAIN). kResourceExhausted  ETOOMANYREFS: too many descriptors of this user are on
//   their way: retry when peers have read. kInternal           everything else.
Status SendMessage(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

struct ReceivedMessage {
  std::size_t size = 0;  // bytes written to the buffer; 0 when the peer has closed
  std::vector<UniqueFd> descriptors;
};

// Receives one message into `buffer`. Waits unless `dont_wait`.
//
// Errors:
//   kUnavailable        `dont_wait` and nothing there.
//   kResourceExhausted  descriptors were cut off, as the limit of open files of this process is
//   reached (the message
//                       names it); those that did arrive are closed.
//   kDataLoss           the message is longer than the buffer.
//   kInternal           everything else.
Result<ReceivedMessage> ReceiveMessage(int socket, std::span<std::byte> buffer, bool dont_wait);

}  // namespace gpulease
