// SPDX-License-Identifier: Apache-2.0
//
// gpulease-test-client: what runs in a ClientProcess. The commands are in client_process.h.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "base/check.h"
#include "base/descriptor_channel.h"
#include "tests/e2e/chunk_mapping.h"
#include "tests/e2e/raw_client.h"

namespace gpulease::e2e {
namespace {

constexpr int kSocket = 3;

std::string Say(const Error& error) {
  return "error " + std::string(CodeName(error.code)) + " " +
         v1::Reason_Name(static_cast<v1::Reason>(error.reason)) + ": " + error.message;
}

template <typename Message>
std::string Say(const Reply<Message>& reply) {
  return "error " + Describe(reply.status, reply.detail);
}

class Performer {
 public:
  explicit Performer(const std::string& runtime_dir) : client_(runtime_dir) {}

  std::string Perform(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "dial") return Answer(client_.Dial());
    if (verb == "hello") {
      std::uint64_t resume = 0;
      words >> resume;
      const Result<handle::Welcome> welcome = client_.Hello(resume);
      return welcome.ok() ? std::to_string(welcome->session_id) : Say(welcome.error());
    }
    if (verb == "halfclose") {
      // The old socket stays open here, unread, while another is dialled.
      shutdown(client_.handle_socket(), SHUT_WR);
      kept_.push_back(UniqueFd(fcntl(client_.handle_socket(), F_DUPFD_CLOEXEC, 0)));
      return "ok";
    }
    if (verb == "hangup") {
      client_.HangUp();
      return "ok";
    }
    if (verb == "session") {
      std::uint64_t id = 0;
      words >> id;
      client_.set_session_id(id);
      return "ok";
    }
    if (verb == "device" || verb == "host") return Allocate(verb == "host", words);
    if (verb == "await") return Await(Lease(words));
    if (verb == "open") return Open(words);
    if (verb == "take") {
      const std::uint64_t id = Lease(words);
      return Receive(id, untaken_[id], true);
    }
    if (verb == "map") return Map(words);
    if (verb == "fill") {
      Held& held = held_[Lease(words)];
      return Answer(held.mapping->Fill(Byte(words)));
    }
    if (verb == "check") {
      const Held& held = held_[Lease(words)];
      const Result<Bytes> other = held.mapping->FirstOther(Byte(words));
      if (!other.ok()) return Say(other.error());
      return *other == held.mapping->size() ? "yes" : std::to_string(*other);
    }
    if (verb == "poke") return Poke(held_[Lease(words)].chunks.at(0).get());
    if (verb == "reopen") {
      const std::string path =
          "/proc/self/fd/" + std::to_string(held_[Lease(words)].chunks.at(0).get());
      const UniqueFd opened(open(path.c_str(), O_RDWR | O_CLOEXEC));
      return opened ? "ok" : strerrorname_np(errno);
    }
    if (verb == "unmap") {
      held_[Lease(words)].mapping.reset();
      return "ok";
    }
    if (verb == "drop") {
      held_[Lease(words)].chunks.clear();
      return "ok";
    }
    if (verb == "close") return Finish(client_.Close(Lease(words)));
    if (verb == "release") return Finish(client_.Release(Lease(words)));
    if (verb == "fork") return Fork();
    if (verb == "files") {
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      words >> limit.rlim_cur;
      return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? "ok" : strerrorname_np(errno);
    }
    if (verb == "node") {
      const Reply<v1::GetNodeResponse> reply = client_.GetNode();
      if (!reply.ok()) return Say(reply);
      return std::to_string(reply.message.lease_count()) + " " +
             std::to_string(reply.message.session_count());
    }
    if (verb == "show") return Show(words);
    if (verb == "leases") {
      const Reply<v1::ListLeasesResponse> reply = client_.ListLeases();
      if (!reply.ok()) return Say(reply);
      std::set<std::string> sorted;
      for (const v1::Lease& lease : reply.message.leases()) sorted.insert(lease.name());
      std::string names;
      for (const std::string& name : sorted) names += (names.empty() ? "" : " ") + name;
      return names.empty() ? "none" : names;
    }
    if (verb == "sessions") {
      const Reply<v1::ListSessionsResponse> reply = client_.ListSessions();
      return reply.ok() ? std::to_string(reply.message.sessions_size()) : Say(reply);
    }
    return "error: what is \"" + line + "\"?";
  }

 private:
  struct Held {
    v1::Lease lease;
    std::vector<UniqueFd> chunks;
    std::unique_ptr<ChunkMapping> mapping;
  };

  static std::string Answer(const Status& status) {
    return status.ok() ? "ok" : Say(status.error());
  }
  template <typename Message>
  static std::string Finish(const Reply<Message>& reply) {
    return reply.ok() ? "ok" : Say(reply);
  }
  static std::uint64_t Lease(std::istringstream& words) {
    std::uint64_t id = 0;
    words >> id;
    return id;
  }
  static unsigned char Byte(std::istringstream& words) {
    unsigned int value = 0;
    words >> value;
    return static_cast<unsigned char>(value);
  }

  std::string Receive(std::uint64_t id, std::uint64_t tag, bool take) {
    Result<std::vector<UniqueFd>> chunks = client_.Chunks(tag, id, take);
    if (!chunks.ok()) {
      // As the protocol has it: what did not arrive is given back.
      if (take) static_cast<void>(client_.Take(tag, id, LastCount(id), false).ok());
      return Say(chunks.error());
    }
    held_[id].chunks = std::move(*chunks);
    return std::to_string(id) + " offered";
  }
  std::uint32_t LastCount(std::uint64_t id) {
    return static_cast<std::uint32_t>(held_[id].lease.chunks_size());
  }

  std::string Allocate(bool host, std::istringstream& words) {
    v1::AllocationSpec spec;
    spec.set_kind(host ? v1::MEMORY_KIND_HOST : v1::MEMORY_KIND_DEVICE);
    std::uint64_t number = 0;
    words >> number;
    spec.set_size_bytes(number);
    std::uint64_t wait = 0;
    std::string request_id;
    bool take = true;
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      const std::string key = word.substr(0, equals);
      const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
      if (key == "name") spec.set_name(value);
      if (key == "mode") spec.set_mode(static_cast<std::uint32_t>(std::stoul(value, nullptr, 8)));
      if (key == "gid") spec.set_gid(static_cast<std::uint32_t>(std::stoul(value)));
      if (key == "gpu") spec.set_gpu_uuid(value);
      if (key == "page")
        spec.set_page_size(value == "huge" ? v1::PAGE_SIZE_HUGE : v1::PAGE_SIZE_SMALL);
      if (key == "wait") wait = std::stoull(value);
      if (key == "id") request_id = value;
      if (key == "untaken") take = false;
      if (key == "loading") spec.set_loading(true);
      if (key == "linger") spec.set_linger_ms(std::stoull(value));
      if (key == "persistent") spec.set_persistent(true);
      if (key == "ipc") spec.set_ipc_handle(true);
    }
    const Reply<v1::AllocateResponse> reply = client_.Allocate({spec}, wait, request_id);
    if (!reply.ok()) return Say(reply);
    const v1::Lease& lease = reply.message.leases(0);
    held_[lease.lease_id()].lease = lease;
    if (lease.state() == v1::LEASE_STATE_QUEUED) {
      return std::to_string(lease.lease_id()) + " queued " +
             std::to_string(reply.message.queue_position());
    }
    if (!take) {
      untaken_[lease.lease_id()] = client_.last_tag();
      return std::to_string(lease.lease_id()) + " offered";
    }
    return Receive(lease.lease_id(), client_.last_tag(), true);
  }

  std::string Await(std::uint64_t id) {
    const Reply<v1::AllocateResponse> reply = client_.Await(id, std::chrono::minutes(1));
    if (!reply.ok()) return Say(reply);
    held_[id].lease = reply.message.leases(0);
    return Receive(id, client_.last_tag(), true);
  }

  std::string Open(std::istringstream& words) {
    std::string what, access, untaken;
    words >> what >> access >> untaken;
    const v1::Access wanted = access == "ro" ? v1::ACCESS_READ_ONLY : v1::ACCESS_READ_WRITE;
    const bool by_id = what.find_first_not_of("0123456789") == std::string::npos;
    const Reply<v1::OpenResponse> reply =
        by_id ? client_.Open(std::stoull(what), wanted) : client_.Open(what, wanted);
    if (!reply.ok()) return Say(reply);
    const v1::Lease& lease = reply.message.lease();
    held_[lease.lease_id()].lease = lease;
    if (!untaken.empty()) return std::to_string(lease.lease_id()) + " offered";
    return Receive(lease.lease_id(), client_.last_tag(), true);
  }

  std::string Show(std::istringstream& words) {
    std::string what;
    words >> what;
    const bool by_id = what.find_first_not_of("0123456789") == std::string::npos;
    const Reply<v1::GetLeaseResponse> reply =
        by_id ? client_.GetLease(std::stoull(what)) : client_.GetLease(what);
    return reply.ok() ? v1::LeaseState_Name(reply.message.lease().state()) : Say(reply);
  }

  std::string Map(std::istringstream& words) {
    const std::uint64_t id = Lease(words);
    std::string access;
    words >> access;
    Held& held = held_[id];
    std::shared_ptr<const driver::CudaDriver> cuda;
    if (held.lease.kind() == v1::MEMORY_KIND_DEVICE) {
      if (!cuda_) {
        auto loaded = driver::CudaDriver::Load({client_.welcome().simulated_directory});
        if (!loaded.ok()) return Say(loaded.error());
        cuda_ = *loaded;
      }
      cuda = cuda_;
    }
    std::vector<int> descriptors;
    std::vector<Bytes> sizes;
    for (const UniqueFd& chunk : held.chunks) descriptors.push_back(chunk.get());
    for (const v1::Chunk& chunk : held.lease.chunks()) sizes.push_back(chunk.size_bytes());
    if (descriptors.size() != sizes.size()) return "error: not all descriptors are here";
    auto mapping = ChunkMapping::Map(cuda, descriptors, sizes, access == "ro");
    if (!mapping.ok()) return Say(mapping.error());
    held.mapping = std::move(*mapping);
    return "ok";
  }

  static std::string Poke(int descriptor) {
    void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (page == MAP_FAILED) return strerrorname_np(errno);
    *static_cast<unsigned char*>(page) = 0xee;
    munmap(page, 4096);
    return "ok";
  }

  static std::string Fork() {
    const pid_t child = fork();
    if (child == 0) {
      // Keeps all that it inherits, but for the word of its parent's end, until it is killed.
      alarm(300);
      close(kSocket);
      for (;;) pause();
    }
    return std::to_string(child);
  }

  RawClient client_;
  std::shared_ptr<const driver::CudaDriver> cuda_;
  std::vector<UniqueFd> kept_;
  std::map<std::uint64_t, Held> held_;
  std::map<std::uint64_t, std::uint64_t> untaken_;  // lease, tag
};

int Main(const std::string& runtime_dir) {
  Performer performer(runtime_dir);
  for (;;) {
    std::array<std::byte, 4096> buffer;
    Result<ReceivedMessage> message = ReceiveMessage(kSocket, buffer, false);
    if (!message.ok() || message->size == 0) return 0;
    const std::string answer =
        performer.Perform(std::string(reinterpret_cast<const char*>(buffer.data()), message->size));
    const Status sent = SendMessage(kSocket, std::as_bytes(std::span(answer)), {});
    if (!sent.ok()) return 0;
  }
}

}  // namespace
}  // namespace gpulease::e2e

int main(int argc, char** argv) {
  GPULEASE_CHECK(argc == 2, "usage: gpulease-test-client RUNTIME_DIR");
  return gpulease::e2e::Main(argv[1]);
}
