// SPDX-License-Identifier: Apache-2.0
#include "client/playground/worker.h"

#include <sys/socket.h>

#include <array>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/descriptor_channel.h"
#include "client/playground/interruption.h"

namespace gpulease::playground {
namespace {

constexpr int kChannel = 3;
constexpr std::size_t kLongestLine = 8192;
constexpr std::string_view kFailed = "failed ";

Result<Message> ReceiveLine(int socket) {
  std::array<std::byte, kLongestLine> buffer;
  Result<ReceivedMessage> received = ReceiveMessage(socket, buffer, false);
  if (!received.ok()) return std::move(received).error();
  return Message{{reinterpret_cast<const char*>(buffer.data()), received->size},
                 std::move(received->descriptors)};
}

Status SendLine(int socket, std::string_view text, std::span<const int> descriptors) {
  return SendMessage(socket, std::as_bytes(std::span(text)), descriptors);
}

}  // namespace

std::vector<std::string> Words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

Worker::Worker(std::string title, const std::vector<std::string>& arguments)
    : title_(std::move(title)) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::runtime_error("socketpair failed");
  }
  socket_.Reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  Process::Options options;
  options.path = MyPath();
  options.arguments = arguments;
  options.channel = theirs.get();
  process_ = Process::Start(options);
}

void Worker::Send(std::string_view text) {
  const Status sent = SendLine(socket_.get(), text, {});
  if (!sent.ok()) throw std::runtime_error(title_ + " is gone: " + sent.error().message);
}

Message Worker::Receive(std::chrono::milliseconds timeout) {
  if (!WaitReadable(socket_.get(), timeout)) {
    throw std::runtime_error(title_ + " does not answer");
  }
  Result<Message> message = ReceiveLine(socket_.get());
  if (!message.ok()) throw std::runtime_error(title_ + ": " + message.error().message);
  if (message->text.empty()) throw std::runtime_error(title_ + " ended before it answered");
  if (message->text.starts_with(kFailed)) {
    throw std::runtime_error(title_ + ": " + message->text.substr(kFailed.size()));
  }
  return std::move(*message);
}

Message Worker::Ask(std::string_view text) {
  Send(text);
  return Receive();
}

Leader::Leader() : socket_(kChannel) {}

std::optional<Message> Leader::Next() {
  Result<Message> message = ReceiveLine(socket_.get());
  if (!message.ok() || message->text.empty()) return std::nullopt;
  return std::move(*message);
}

void Leader::Answer(std::string_view text, std::span<const int> descriptors) {
  const Status sent = SendLine(socket_.get(), text, descriptors);
  if (!sent.ok()) throw std::runtime_error("the leader is gone: " + sent.error().message);
}

int Leader::Serve(const std::function<std::string(const std::vector<std::string>&)>& work) {
  while (const std::optional<Message> message = Next()) {
    try {
      Answer(work(Words(message->text)));
    } catch (const std::exception& error) {
      const std::string what = std::string(kFailed) + error.what();
      Answer(std::string_view(what).substr(0, kLongestLine));
    }
  }
  return EXIT_SUCCESS;
}

}  // namespace gpulease::playground
