// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/fake_daemon.h"

#include <fcntl.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <list>
#include <set>
#include <utility>

#include "base/descriptor_channel.h"
#include "gpulease/v1/error.pb.h"
#include "gpulease/v1/lease.grpc.pb.h"
#include "gpulease/v1/node.grpc.pb.h"

namespace gpulease::fakes {
namespace {

using std::chrono::seconds;

UniqueFd Listen(const std::string& path, int type) {
  unlink(path.c_str());
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), 128) != 0) {
    std::abort();
  }
  return fd;
}

UniqueFd Memfd(std::uint64_t size) {
  UniqueFd fd(memfd_create("fake-chunk", MFD_CLOEXEC));
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) std::abort();
  return fd;
}

}  // namespace

struct FakeDaemon::Impl {
  struct Lease {
    v1::Lease message;
    std::vector<UniqueFd> chunks;
    std::set<std::uint64_t> holders;
    std::uint64_t owner = 0;
    std::string request_id;
    bool granted = true;
  };

  std::string directory;
  std::mutex mutex;
  std::condition_variable changed;
  // under mutex
  Behaviour behaviour;
  Seen seen;
  std::map<std::uint64_t, std::shared_ptr<UniqueFd>> sessions;  // socket, null while lost
  std::map<std::uint64_t, Lease> leases;
  std::list<std::pair<std::uint64_t, v1::Event>> events;  // numbered
  std::uint64_t event_count = 0;
  std::uint64_t next_session = 100;
  std::uint64_t next_lease = 1;
  std::uint32_t runs = 0;
  std::string instance;
  bool stopping = false;

  UniqueFd calls_listener;
  UniqueFd handles_listener;
  UniqueFd wake;
  std::thread thread;

  class LeaseCalls;
  class NodeCalls;
  std::unique_ptr<LeaseCalls> lease_calls;
  std::unique_ptr<NodeCalls> node_calls;
  std::unique_ptr<grpc::Server> server;  // under mutex

  void StartServer();
  void StopServer();
  void Run();
  void Welcome(UniqueFd socket, std::list<std::pair<std::uint64_t, std::shared_ptr<UniqueFd>>>&);
  void Took(std::uint64_t session, const handle::Taken& taken);

  // Counts the call and says how it ends before it began. With the lock.
  grpc::Status Begin(grpc::ServerContext* context, const char* method) {
    ++seen.calls[method];
    changed.notify_all();
    const bool ends = std::string_view(method) == "Release" || std::string_view(method) == "Close";
    if (!ends || behaviour.endings_cut_off == 0)
      context->AddTrailingMetadata("gpulease-instance", instance);
    if (behaviour.error_code == 0) return grpc::Status::OK;
    v1::ErrorDetail detail;
    detail.set_reason(v1::REASON_MEMORY_SHORT);
    detail.set_requested_bytes(64);
    detail.set_available_bytes(16);
    auto* blocker = detail.add_blockers();
    blocker->set_lease_id(17);
    blocker->set_pid(4211);
    v1::ErrorStatus status;
    status.set_code(behaviour.error_code);
    status.add_details()->PackFrom(detail);
    return {static_cast<grpc::StatusCode>(behaviour.error_code), behaviour.error_message,
            status.SerializeAsString()};
  }

  // Of a call that was carried out. With the lock.
  grpc::Status EndingAnswer() {
    if (behaviour.endings_cut_off == 0) return grpc::Status::OK;
    --behaviour.endings_cut_off;
    return {grpc::StatusCode::CANCELLED, "cut off by a server that stops"};
  }

  grpc::Status Over() {
    v1::ErrorDetail detail;
    detail.set_reason(v1::REASON_SESSION_ENDED);
    v1::ErrorStatus status;
    status.add_details()->PackFrom(detail);
    return {grpc::StatusCode::FAILED_PRECONDITION, "no such session", status.SerializeAsString()};
  }

  // Sends the chunks of a lease. With the lock, which it gives up while it waits for answers.
  void Push(std::unique_lock<std::mutex>& lock, std::uint64_t session, std::uint64_t tag,
            std::uint64_t lease_id) {
    for (std::uint32_t first = 0;;) {
      auto at = leases.find(lease_id);
      if (at == leases.end() || !sessions[session]) return;
      const auto total = static_cast<std::uint32_t>(at->second.chunks.size());
      if (first >= total) return;
      handle::Push push;
      push.tag = tag;
      push.lease_id = lease_id;
      push.generation = 1;
      push.first = first;
      push.count = std::min(behaviour.chunks_per_push, total - first);
      push.total = total;
      std::vector<int> fds;
      for (std::uint32_t i = 0; i < push.count; ++i) {
        fds.push_back(at->second.chunks[first + i].get());
      }
      const std::size_t answers = seen.taken.size();
      (void)SendMessage(sessions[session]->get(), handle::BytesOf(push), fds).ok();
      first += push.count;
      if (behaviour.await_taken) {
        changed.wait_for(lock, seconds(10), [&] { return seen.taken.size() > answers; });
      }
    }
  }

  v1::Lease* Make(std::uint64_t session, const v1::AllocationSpec& spec,
                  const std::string& request_id) {
    const std::uint64_t id = next_lease++;
    Lease& lease = leases[id];
    lease.owner = session;
    lease.holders.insert(session);
    lease.request_id = request_id;
    v1::Lease& message = lease.message;
    message.set_lease_id(id);
    message.set_generation(1);
    message.set_kind(spec.kind());
    message.set_requested_bytes(spec.size_bytes());
    message.set_alignment_bytes(std::max<std::uint64_t>(spec.alignment_bytes(), 4096));
    message.set_gpu_uuid(behaviour.gpu_uuid);
    message.set_name(spec.name());
    message.set_owner("tester");
    message.set_mode(spec.mode());
    message.set_state(v1::LEASE_STATE_OFFERED);
    const std::uint64_t unit = behaviour.chunk_bytes;
    for (std::uint64_t at = 0; at < spec.size_bytes(); at += unit) {
      message.add_chunks()->set_size_bytes(unit);
      message.set_size_bytes(message.size_bytes() + unit);
      lease.chunks.push_back(behaviour.make_chunk ? behaviour.make_chunk(unit) : Memfd(unit));
    }
    return &message;
  }
};

class FakeDaemon::Impl::LeaseCalls final : public v1::LeaseService::Service {
 public:
  explicit LeaseCalls(Impl& impl) : impl_(impl) {}

  grpc::Status Allocate(grpc::ServerContext* context, const v1::AllocateRequest* request,
                        v1::AllocateResponse* response) override {
    std::unique_lock lock(impl_.mutex);
    grpc::Status status = impl_.Begin(context, "Allocate");
    if (!status.ok()) return status;
    if (!impl_.sessions.contains(request->session_id())) return impl_.Over();
    std::vector<std::uint64_t> ids;
    for (auto& [id, lease] : impl_.leases) {
      if (lease.owner == request->session_id() && lease.request_id == request->request_id()) {
        ids.push_back(id);
      }
    }
    if (ids.empty()) {
      for (const v1::AllocationSpec& spec : request->specs()) {
        v1::Lease* made = impl_.Make(request->session_id(), spec, request->request_id());
        if (impl_.behaviour.queue) {
          impl_.leases[made->lease_id()].granted = false;
          made->set_state(v1::LEASE_STATE_QUEUED);
          response->set_queue_position(3);
        }
        ids.push_back(made->lease_id());
      }
    }
    return Answer(lock, request->session_id(), request->push_tag(), ids, response);
  }

  grpc::Status Await(grpc::ServerContext* context, const v1::AwaitRequest* request,
                     v1::AllocateResponse* response) override {
    std::unique_lock lock(impl_.mutex);
    grpc::Status status = impl_.Begin(context, "Await");
    if (!status.ok()) return status;
    for (;;) {
      auto at = impl_.leases.find(request->lease_id());
      if (at == impl_.leases.end()) return {grpc::StatusCode::NOT_FOUND, "no such wait"};
      if (at->second.granted) break;
      if (impl_.stopping) return {grpc::StatusCode::UNAVAILABLE, "stopping"};
      if (context->IsCancelled()) {
        ++impl_.seen.cancelled;
        impl_.changed.notify_all();
        return grpc::Status::CANCELLED;
      }
      impl_.changed.wait_for(lock, std::chrono::milliseconds(5));
    }
    return Answer(lock, request->session_id(), request->push_tag(), {request->lease_id()},
                  response);
  }

  grpc::Status Open(grpc::ServerContext* context, const v1::OpenRequest* request,
                    v1::OpenResponse* response) override {
    std::unique_lock lock(impl_.mutex);
    grpc::Status status = impl_.Begin(context, "Open");
    if (!status.ok()) return status;
    if (!impl_.sessions.contains(request->session_id())) return impl_.Over();
    for (auto& [id, lease] : impl_.leases) {
      if (id != request->lease_id() &&
          (request->name().empty() || lease.message.name() != request->name())) {
        continue;
      }
      lease.holders.insert(request->session_id());
      const std::uint64_t lease_id = id;
      impl_.Push(lock, request->session_id(), request->push_tag(), lease_id);
      *response->mutable_lease() = impl_.leases[lease_id].message;
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::NOT_FOUND, "no lease named " + request->name()};
  }

  grpc::Status Close(grpc::ServerContext* context, const v1::CloseRequest* request,
                     v1::CloseResponse*) override {
    std::lock_guard lock(impl_.mutex);
    grpc::Status status = impl_.Begin(context, "Close");
    if (!status.ok()) return status;
    auto at = impl_.leases.find(request->lease_id());
    if (at == impl_.leases.end() || at->second.holders.erase(request->session_id()) == 0) {
      return {grpc::StatusCode::NOT_FOUND, "not held"};
    }
    return impl_.EndingAnswer();
  }

  grpc::Status Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                       v1::ReleaseResponse* response) override {
    std::lock_guard lock(impl_.mutex);
    grpc::Status status = impl_.Begin(context, "Release");
    if (!status.ok()) return status;
    response->set_state(v1::LEASE_STATE_RELEASING);
    if (impl_.leases.erase(request->lease_id()) == 0) {
      return {grpc::StatusCode::NOT_FOUND, "no such lease"};
    }
    impl_.changed.notify_all();
    return impl_.EndingAnswer();
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::Event>* writer) override {
    std::unique_lock lock(impl_.mutex);
    grpc::Status status = impl_.Begin(context, "Watch");
    if (!status.ok()) return status;
    if (!impl_.sessions.contains(request->session_id())) return impl_.Over();
    std::uint64_t next = impl_.event_count;
    v1::Event ready;
    ready.set_type(v1::Event::TYPE_READY);
    if (!writer->Write(ready)) return grpc::Status::CANCELLED;
    while (!impl_.stopping && !context->IsCancelled()) {
      for (const auto& [number, event] : impl_.events) {
        if (number < next) continue;
        next = number + 1;
        if (!writer->Write(event)) return grpc::Status::CANCELLED;
      }
      impl_.changed.wait_for(lock, std::chrono::milliseconds(5));
    }
    return {grpc::StatusCode::UNAVAILABLE, "stopping"};
  }

 private:
  grpc::Status Answer(std::unique_lock<std::mutex>& lock, std::uint64_t session, std::uint64_t tag,
                      const std::vector<std::uint64_t>& ids, v1::AllocateResponse* response) {
    for (std::uint64_t id : ids) {
      if (impl_.leases[id].granted) impl_.Push(lock, session, tag, id);
    }
    for (std::uint64_t id : ids) {
      // One that was given back meanwhile is answered as it was: that is what the client knows.
      v1::Lease* lease = response->add_leases();
      if (auto at = impl_.leases.find(id); at != impl_.leases.end()) {
        *lease = at->second.message;
      } else {
        lease->set_lease_id(id);
        lease->set_state(v1::LEASE_STATE_OFFERED);
      }
    }
    return grpc::Status::OK;
  }

  Impl& impl_;
};

class FakeDaemon::Impl::NodeCalls final : public v1::NodeService::Service {
 public:
  explicit NodeCalls(Impl& impl) : impl_(impl) {}

  grpc::Status GetNode(grpc::ServerContext* context, const v1::GetNodeRequest*,
                       v1::GetNodeResponse* response) override {
    std::unique_lock lock(impl_.mutex);
    grpc::Status status = impl_.Begin(context, "GetNode");
    if (!status.ok()) return status;
    while (impl_.behaviour.hang && !context->IsCancelled() && !impl_.stopping) {
      impl_.changed.wait_for(lock, std::chrono::milliseconds(5));
    }
    if (context->IsCancelled()) {
      ++impl_.seen.cancelled;
      impl_.changed.notify_all();
      return grpc::Status::CANCELLED;
    }
    response->set_version(std::string(impl_.behaviour.reply_bytes, 'v'));
    response->set_instance(impl_.instance);
    if (impl_.behaviour.header_bytes > 0) {
      // In two parts: gRPC leaves out one that is too long by itself.
      for (const char* name : {"long", "longer"}) {
        context->AddTrailingMetadata(name, std::string(impl_.behaviour.header_bytes / 2, 'x'));
      }
    }
    return grpc::Status::OK;
  }

 private:
  Impl& impl_;
};

void FakeDaemon::Impl::StartServer() {
  grpc::ServerBuilder builder;
  builder.RegisterService(lease_calls.get());
  builder.RegisterService(node_calls.get());
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  server = builder.BuildAndStart();
}

void FakeDaemon::Impl::StopServer() {
  std::unique_ptr<grpc::Server> ending;
  {
    std::lock_guard lock(mutex);
    ending = std::move(server);
  }
  ending->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  ending->Wait();
}

void FakeDaemon::Impl::Welcome(
    UniqueFd socket, std::list<std::pair<std::uint64_t, std::shared_ptr<UniqueFd>>>& peers) {
  std::array<std::byte, handle::kMaxMessageBytes> buffer;
  auto message = ReceiveMessage(socket.get(), buffer, false);
  if (!message.ok() || message->size == 0) return;
  auto hello = handle::Parse<handle::Hello>({buffer.data(), message->size});
  if (!hello) return;
  std::lock_guard lock(mutex);
  seen.hellos.push_back(*hello);
  seen.hello_descriptors += static_cast<int>(message->descriptors.size());
  if (behaviour.refuse) {
    handle::Refused refused;
    refused.code = static_cast<int>(Code::kFailedPrecondition);
    refused.reason = static_cast<int>(Reason::kUnsupported);
    std::strcpy(refused.message, "libgpulease 0.0.1 is too old: 0.1 is needed");
    (void)SendMessage(socket.get(), handle::BytesOf(refused), {}).ok();
    return;
  }
  handle::Welcome welcome;
  const std::uint64_t asked = hello->resume_session_id;
  auto known = sessions.find(asked);
  if (known != sessions.end()) {
    welcome.flags |= handle::kWelcomeResumed;
    welcome.session_id = asked;
  } else {
    welcome.session_id = next_session++;
  }
  for (int i = 0; i < 16; ++i) {
    welcome.instance[i] = static_cast<std::uint8_t>(
        std::stoi(instance.substr(2 * static_cast<std::size_t>(i), 2), nullptr, 16));
  }
  std::strcpy(welcome.daemon_version, "0.1.0-fake");
  if (!behaviour.simulated_directory.empty()) {
    welcome.flags |= handle::kWelcomeSimulated;
    std::strcpy(welcome.simulated_directory, behaviour.simulated_directory.c_str());
  }
  (void)SendMessage(socket.get(), handle::BytesOf(welcome), {}).ok();
  auto shared = std::make_shared<UniqueFd>(std::move(socket));
  sessions[welcome.session_id] = shared;
  peers.emplace_back(welcome.session_id, shared);
  changed.notify_all();
}

void FakeDaemon::Impl::Took(std::uint64_t session, const handle::Taken& taken) {
  std::lock_guard lock(mutex);
  seen.taken.push_back(taken);
  if (taken.ok == 0) {
    auto at = leases.find(taken.lease_id);
    if (at != leases.end()) {
      if (at->second.owner == session) {
        leases.erase(at);
      } else {
        at->second.holders.erase(session);
      }
    }
  }
  changed.notify_all();
}

// Accepts on both sockets and reads the answers.
void FakeDaemon::Impl::Run() {
  std::list<std::pair<std::uint64_t, std::shared_ptr<UniqueFd>>> peers;
  for (;;) {
    std::vector<pollfd> polled = {{wake.get(), POLLIN, 0},
                                  {calls_listener.get(), POLLIN, 0},
                                  {handles_listener.get(), POLLIN, 0}};
    for (auto& [id, socket] : peers) polled.push_back({socket->get(), POLLIN, 0});
    poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) return;
    std::size_t index = 3;
    for (auto at = peers.begin(); at != peers.end(); ++index) {
      if (polled[index].revents == 0) {
        ++at;
        continue;
      }
      std::array<std::byte, handle::kMaxMessageBytes> buffer;
      auto message = ReceiveMessage(at->second->get(), buffer, true);
      if (message.ok() && message->size > 0) {
        if (auto taken = handle::Parse<handle::Taken>({buffer.data(), message->size})) {
          Took(at->first, *taken);
        }
        ++at;
        continue;
      }
      {
        std::lock_guard lock(mutex);
        if (sessions[at->first] == at->second) sessions[at->first] = nullptr;
        changed.notify_all();
      }
      at = peers.erase(at);
    }
    if (polled[1].revents != 0) {
      const int fd = accept4(calls_listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      std::lock_guard lock(mutex);
      if (fd >= 0 && server) grpc::AddInsecureChannelFromFd(server.get(), fd);
    }
    if (polled[2].revents != 0) {
      UniqueFd fd(accept4(handles_listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (fd) Welcome(std::move(fd), peers);
    }
  }
}

FakeDaemon::FakeDaemon(std::string directory)
    : directory_(std::move(directory)), impl_(std::make_unique<Impl>()) {
  impl_->directory = directory_;
  impl_->lease_calls = std::make_unique<Impl::LeaseCalls>(*impl_);
  impl_->node_calls = std::make_unique<Impl::NodeCalls>(*impl_);
  Start(false);
}

FakeDaemon::~FakeDaemon() {
  if (impl_->thread.joinable()) Stop();
}

void FakeDaemon::Start(bool keep_sessions) {
  std::lock_guard lock(impl_->mutex);
  impl_->stopping = false;
  char text[40];
  std::snprintf(text, sizeof text, "%032x", ++impl_->runs);
  impl_->instance = text;
  if (!keep_sessions) {
    impl_->sessions.clear();
    impl_->leases.clear();
  }
  impl_->calls_listener = Listen(directory_ + "/gpulease.sock", SOCK_STREAM);
  impl_->handles_listener = Listen(directory_ + "/handles.sock", SOCK_SEQPACKET);
  impl_->wake = UniqueFd(eventfd(0, EFD_CLOEXEC));
  impl_->StartServer();
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

void FakeDaemon::Stop() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = write(impl_->wake.get(), &one, sizeof one);
  impl_->thread.join();
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->changed.notify_all();
    for (auto& [id, socket] : impl_->sessions) socket = nullptr;
  }
  impl_->StopServer();
  std::lock_guard lock(impl_->mutex);
  impl_->calls_listener.Reset();
  impl_->handles_listener.Reset();
}

void FakeDaemon::RenewCalls() {
  impl_->StopServer();
  std::lock_guard lock(impl_->mutex);
  impl_->StartServer();
}

void FakeDaemon::Change(const std::function<void(Behaviour&)>& change) {
  std::lock_guard lock(impl_->mutex);
  change(impl_->behaviour);
  impl_->changed.notify_all();
}

Seen FakeDaemon::seen() {
  std::lock_guard lock(impl_->mutex);
  return impl_->seen;
}

bool FakeDaemon::WaitFor(const std::function<bool(const Seen&)>& condition) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, seconds(10), [&] { return condition(impl_->seen); });
}

std::size_t FakeDaemon::lease_count() {
  std::lock_guard lock(impl_->mutex);
  return impl_->leases.size();
}

std::size_t FakeDaemon::session_count() {
  std::lock_guard lock(impl_->mutex);
  return impl_->sessions.size();
}

void FakeDaemon::Grant() {
  std::lock_guard lock(impl_->mutex);
  for (auto& [id, lease] : impl_->leases) {
    lease.granted = true;
    lease.message.set_state(v1::LEASE_STATE_OFFERED);
  }
  impl_->changed.notify_all();
}

void FakeDaemon::Send(const v1::Event& event) {
  std::lock_guard lock(impl_->mutex);
  impl_->events.emplace_back(impl_->event_count++, event);
  impl_->changed.notify_all();
}

std::string FakeDaemon::instance() {
  std::lock_guard lock(impl_->mutex);
  return impl_->instance;
}

}  // namespace gpulease::fakes
