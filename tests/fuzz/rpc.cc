// SPDX-License-Identifier: Apache-2.0
//
// The API's methods: requests made of arbitrary bytes, from several users and processes, against
// the real services, broker, ledger and handle socket over a simulated GPU. Small numbers in a
// request's ids stand for sessions and leases that are there, so that mutation finds them.
#include <google/protobuf/stubs/logging.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/descriptor_channel.h"
#include "daemon/broker/broker.h"
#include "daemon/rpc/lease_service.h"
#include "daemon/rpc/node_service.h"
#include "daemon/startup/machine.h"
#include "tests/fuzz/front.h"
#include "tests/fuzz/input.h"

namespace gpulease::fuzz {
namespace {

using ledger::LeaseId;
using ledger::SessionId;

constexpr std::size_t kUsers = 3;
constexpr std::size_t kClients = 5;

// What the kernel would say of the callers: two users, an administrator, and one of the users'
// number in a container.
peers::Peer PeerOf(std::size_t client) {
  peers::Peer peer;
  peer.user.uid = static_cast<std::uint32_t>(client % kUsers);
  peer.user.gid = peer.user.uid;
  peer.user.groups = {100};
  if (client == kClients - 1) peer.user.realm = "/box.scope";
  peer.pid = 1000 + static_cast<std::int32_t>(client);
  peer.process = 1 + client;
  peer.program = "fuzz";
  return peer;
}

// Gives each connection the identity of the client that is about to say Hello.
class Masks final : public peers::Registrar {
 public:
  Result<Admitted> Admit(const peers::Peer&, const handle::Hello& hello,
                         const Lifeline& lifeline) override {
    Result<Admitted> admitted = broker->Admit(PeerOf(client), hello, lifeline);
    if (admitted.ok()) session = admitted->session;
    return admitted;
  }
  void Took(SessionId id, LeaseId lease, bool ok) override { broker->Took(id, lease, ok); }
  void LostConnection(SessionId id) override { broker->LostConnection(id); }
  void Died(SessionId id) override { broker->Died(id); }

  broker::Broker* broker = nullptr;
  std::size_t client = 0;
  SessionId session;
};

struct World {
  Masks masks;
  Front front{masks};
  peers::PeerTable table;
  rpc::UserNames users;
  std::unique_ptr<broker::Broker> broker;
  std::unique_ptr<rpc::Services> services;
  std::unique_ptr<rpc::LeaseService> leases;
  std::unique_ptr<rpc::NodeService> node;

  World() {
    settings::Settings settings;
    settings.simulate = "2x64MiB";
    settings.largest_chunk = 2 * kMiB;
    Result<startup::Machine> machine =
        startup::FindMachine(settings, front.directory(), startup::Continuation());
    GPULEASE_CHECK(machine.ok(), machine.error().message);
    broker::Options options;
    options.pools = machine->pools;
    for (broker::Pool& pool : options.pools) {
      // Pinned memory is real memory, here too.
      if (pool.spec.kind == ledger::PoolKind::kHost) pool.spec.total = kMiB;
    }
    options.limits.sessions_per_user = 8;
    options.limits.leases_per_user = 64;
    options.limits.waits_per_user = 8;
    options.limits.chunks = 256;
    options.limits.release_wait = std::chrono::milliseconds(1);
    options.limits.driver_retry = std::chrono::milliseconds(1);
    options.cuda = machine->cuda;
    options.nvml = machine->nvml;
    options.tenant_of = [](const peers::Peer& peer) {
      return ledger::TenantSpec{"t" + std::to_string(peer.user.uid), peer.user.uid * 32 * kMiB, 0};
    };
    options.is_administrator = [](const ledger::UserSpec& user) { return user.uid == 0; };
    options.is_observer = options.is_administrator;
    options.report = [](const std::string&) {};
    broker = std::make_unique<broker::Broker>(std::move(options));
    broker->Attach(&front.reception());
    masks.broker = broker.get();
    services =
        std::make_unique<rpc::Services>(rpc::Services{*broker, table, users, std::string(32, '0')});
    leases = std::make_unique<rpc::LeaseService>(*services);
    node = std::make_unique<rpc::NodeService>(*services, rpc::NodeFacts());
  }

  // Nobody is here: every byte comes back.
  void AwaitNothing() {
    const Time until = After(BootClock::now(), std::chrono::seconds(20));
    for (;;) {
      front.Run();
      broker->Tick();
      const broker::NodeView view = broker->Node();
      bool free = view.leases == 0 && view.sessions == 0 && view.chunks == 0;
      for (const broker::GpuView& gpu : view.gpus) free = free && gpu.use.free == gpu.use.total;
      for (const broker::HostView& host : view.host) free = free && host.use.free == host.use.total;
      if (free) return;
      GPULEASE_CHECK(BootClock::now() < until, "something is left when nobody is here");
      usleep(500);
    }
  }
};

struct Client {
  UniqueFd handles;
  SessionId session;
};

class Play {
 public:
  Play(World& world, Input input) : world_(world), input_(input) {}

  void Run() {
    for (int step = 0; step < 48 && !input_.empty(); ++step) {
      Step();
      world_.front.Run();
    }
    for (const std::uint64_t subscription : subscriptions_) {
      world_.broker->events().Unsubscribe(subscription);
    }
    for (const std::uint64_t ticket : tickets_) world_.broker->CancelAwait(ticket);
    for (const std::uint64_t ticket : seals_) world_.broker->CancelAwaitSealed(ticket);
    for (Client& client : clients_) {
      client.handles.Reset();
      world_.front.Run();
    }
    for (const SessionId session : sessions_) world_.broker->Died(session);
    // What outlived them all.
    const peers::Peer root = PeerOf(0);
    for (const broker::LeaseView& orphan : world_.broker->ListLeases(
             root, {}, 1000,
             [](const broker::LeaseView& view) { return ledger::IsOrphan(view.lease); }))
      Check(world_.broker->Release(root, {}, orphan.lease.id, false).ok()
                ? Status()
                : Status(MakeError(Code::kInternal, Reason::kUnspecified, "an orphan stays")));
    world_.front.Run();
    GPULEASE_CHECK(world_.broker->Node().sessions == 0, "no session is left");
    // By a lane, perhaps, that has the last word just now.
    for (int i = 0; i < 2000 && *waiting_ > 0; ++i) usleep(1000);
    GPULEASE_CHECK(*waiting_ == 0, "who waits is answered");
  }

 private:
  template <typename Request>
  bool Parse(Request& request) {
    const std::string_view bytes = input_.LongPart();
    return request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  }
  std::uint64_t Session(std::uint64_t id, std::size_t caller) const {
    if (id == 1) return clients_[caller].session.value;
    return id > 1 && id - 2 < kClients ? clients_[id - 2].session.value : id;
  }
  std::uint64_t Lease(std::uint64_t id) const {
    return id > 0 && id - 1 < known_.size() ? known_[id - 1].value : id;
  }
  void Learn(const v1::Lease& lease) {
    if (known_.size() < 100) known_.push_back(LeaseId{lease.lease_id()});
  }

  // Every refusal says why, and none blames the daemon.
  static void Check(const Status& status) {
    if (status.ok()) return;
    const Error& error = status.error();
    GPULEASE_CHECK(!error.message.empty(), "an error has a sentence");
    GPULEASE_CHECK(error.code != Code::kOk && error.code != Code::kUnknown, error.message);
    GPULEASE_CHECK(error.code != Code::kInternal, error.message);
    const grpc::Status sent = rpc::ToGrpc(error);
    GPULEASE_CHECK(!sent.error_details().empty(), "an error has details");
  }

  // gRPC refuses to send what is not UTF-8 in a string.
  template <typename Response>
  static void CheckSendable(const Response& response) {
    Response copy;
    GPULEASE_CHECK(copy.ParseFromString(response.SerializeAsString()), "a reply can be read");
  }

  void Step() {
    const std::size_t caller = input_.Below(kClients);
    const peers::Peer peer = PeerOf(caller);
    switch (input_.Below(20)) {
      case 0:
        Hello(caller);
        break;
      case 1:
      case 2: {
        v1::AllocateRequest request;
        v1::AllocateResponse response;
        if (!Parse(request)) break;
        request.set_session_id(Session(request.session_id(), caller));
        Check(world_.leases->Allocate(peer, request, response));
        for (const v1::Lease& lease : response.leases()) Learn(lease);
        CheckSendable(response);
        break;
      }
      case 3: {
        v1::OpenRequest request;
        v1::OpenResponse response;
        if (!Parse(request)) break;
        request.set_session_id(Session(request.session_id(), caller));
        if (request.lease_case() == v1::OpenRequest::kLeaseId) {
          request.set_lease_id(Lease(request.lease_id()));
        }
        Check(world_.leases->Open(peer, request, response));
        CheckSendable(response);
        break;
      }
      case 4: {
        v1::CloseRequest request;
        v1::CloseResponse response;
        if (!Parse(request)) break;
        request.set_session_id(Session(request.session_id(), caller));
        request.set_lease_id(Lease(request.lease_id()));
        Check(world_.leases->Close(peer, request, response));
        break;
      }
      case 5: {
        v1::ReleaseRequest request;
        v1::ReleaseResponse response;
        if (!Parse(request)) break;
        request.set_session_id(Session(request.session_id(), caller));
        request.set_lease_id(Lease(request.lease_id()));
        Check(world_.leases->Release(peer, request, response));
        break;
      }
      case 6: {
        v1::GetLeaseRequest request;
        v1::GetLeaseResponse response;
        if (!Parse(request)) break;
        if (request.lease_case() == v1::GetLeaseRequest::kLeaseId) {
          request.set_lease_id(Lease(request.lease_id()));
        }
        Check(world_.leases->GetLease(peer, request, response));
        CheckSendable(response);
        break;
      }
      case 7: {
        v1::ListLeasesRequest request;
        v1::ListLeasesResponse response;
        if (!Parse(request)) break;
        Check(world_.leases->ListLeases(peer, request, response));
        CheckSendable(response);
        break;
      }
      case 8: {
        v1::ListSessionsRequest request;
        v1::ListSessionsResponse response;
        if (!Parse(request)) break;
        Check(world_.node->ListSessions(peer, request, response));
        CheckSendable(response);
        v1::GetNodeResponse node;
        Check(world_.node->GetNode(node));
        CheckSendable(node);
        break;
      }
      case 12: {
        v1::SealRequest request;
        v1::SealResponse response;
        if (!Parse(request)) break;
        request.set_session_id(Session(request.session_id(), caller));
        request.set_lease_id(Lease(request.lease_id()));
        Check(world_.leases->Seal(peer, request, response));
        CheckSendable(response);
        break;
      }
      case 13: {
        v1::ClaimRequest request;
        v1::ClaimResponse response;
        if (!Parse(request)) break;
        request.set_session_id(Session(request.session_id(), caller));
        if (request.lease_case() == v1::ClaimRequest::kLeaseId)
          request.set_lease_id(Lease(request.lease_id()));
        Check(world_.leases->Claim(peer, request, response));
        CheckSendable(response);
        break;
      }
      case 14: {
        v1::GetDirectoryRequest request;
        v1::GetDirectoryResponse response;
        if (!Parse(request)) break;
        if (request.lease_case() == v1::GetDirectoryRequest::kLeaseId)
          request.set_lease_id(Lease(request.lease_id()));
        Check(world_.leases->GetDirectory(peer, request, response));
        CheckSendable(response);
        v1::GetBudgetResponse budget;
        rpc::ToProto(world_.broker->Budget(peer), &budget);
        CheckSendable(budget);
        break;
      }
      case 15:
        AwaitSealed(peer);
        break;
      case 16: {
        v1::ResizeRequest request;
        v1::ResizeResponse response;
        if (!Parse(request)) break;
        request.set_session_id(Session(request.session_id(), caller));
        request.set_lease_id(Lease(request.lease_id()));
        Check(world_.leases->Resize(peer, request, response));
        CheckSendable(response);
        break;
      }
      case 17: {
        v1::RefreshRequest request;
        v1::RefreshResponse response;
        if (!Parse(request)) break;
        request.set_session_id(Session(request.session_id(), caller));
        request.set_lease_id(Lease(request.lease_id()));
        Check(world_.leases->Refresh(peer, request, response));
        CheckSendable(response);
        break;
      }
      case 18: {
        v1::SuspendRequest request;
        v1::SuspendResponse response;
        if (!Parse(request)) break;
        request.set_session_id(Session(request.session_id(), caller));
        request.set_lease_id(Lease(request.lease_id()));
        Check(world_.leases->Suspend(peer, request, response));
        CheckSendable(response);
        break;
      }
      case 19: {
        v1::ResumeRequest request;
        v1::ResumeResponse response;
        if (!Parse(request)) break;
        request.set_session_id(Session(request.session_id(), caller));
        request.set_lease_id(Lease(request.lease_id()));
        Check(world_.leases->Resume(peer, request, response));
        CheckSendable(response);
        break;
      }
      case 9:
        Await(peer, caller);
        break;
      case 10:
        Read(caller);
        break;
      default:
        Rest(peer, caller);
    }
  }

  void Hello(std::size_t caller) {
    Client& client = clients_[caller];
    client.handles = world_.front.Connect(true);
    world_.front.Run();
    handle::Hello hello;
    if (input_.Flag()) hello.resume_session_id = client.session.value;
    const std::string_view program = input_.Take(input_.Below(sizeof hello.program + 1));
    program.copy(hello.program, program.size());
    world_.masks.client = caller;
    world_.masks.session = {};
    (void)SendMessage(client.handles.get(), handle::BytesOf(hello), {}).ok();
    world_.front.Run();
    client.session = world_.masks.session;
    if (client.session) sessions_.push_back(client.session);
  }

  void Await(const peers::Peer& peer, std::size_t caller) {
    v1::AwaitRequest request;
    if (!Parse(request)) return;
    ++*waiting_;
    tickets_.push_back(world_.broker->Await(
        peer, SessionId{Session(request.session_id(), caller)}, request.push_tag(),
        LeaseId{Lease(request.lease_id())},
        [users = &world_.users, waiting = waiting_](Result<broker::Grant> grant) {
          if (grant.ok()) {
            v1::AllocateResponse response;
            rpc::ToProto(*grant, *users, &response);
            CheckSendable(response);
          }
          --*waiting;
        }));
  }

  void AwaitSealed(const peers::Peer& peer) {
    ++*waiting_;
    seals_.push_back(world_.broker->AwaitSealed(
        peer, LeaseId{Lease(input_.Below(16))},
        [users = &world_.users, waiting = waiting_](Result<broker::LeaseView> view) {
          if (view.ok()) {
            v1::Lease lease;
            rpc::ToProto(*view, *users, &lease);
            CheckSendable(lease);
          }
          --*waiting;
        }));
  }

  // Reads what was pushed, and answers some of it.
  void Read(std::size_t caller) {
    const Client& client = clients_[caller];
    std::array<std::byte, handle::kMaxMessageBytes> buffer;
    for (std::uint64_t n = 1 + input_.Below(8); n > 0 && client.handles; --n) {
      const Result<ReceivedMessage> message =
          ReceiveMessage(client.handles.get(), buffer, /*dont_wait=*/true);
      if (!message.ok() || message->size == 0) return;
      const auto push = handle::Parse<handle::Push>(std::span(buffer).first(message->size));
      const std::uint64_t answer = input_.Below(8);
      if (!push || answer == 0) continue;
      handle::Taken taken;
      taken.tag = push->tag;
      taken.lease_id = push->lease_id;
      taken.count = answer == 1 ? input_.Number<std::uint32_t>() : push->count;
      taken.ok = answer == 2 ? 0 : 1;
      (void)SendMessage(client.handles.get(), handle::BytesOf(taken), {}).ok();
    }
  }

  void Rest(const peers::Peer& peer, std::size_t caller) {
    Client& client = clients_[caller];
    switch (input_.Below(5)) {
      case 0:
        client.handles.Reset();
        break;
      case 1:
        if (client.session) world_.broker->Died(client.session);
        break;
      case 2:
        world_.broker->Tick();
        break;
      case 3:
        if (!tickets_.empty()) world_.broker->CancelAwait(tickets_[input_.Below(tickets_.size())]);
        break;
      default: {
        const SessionId session{Session(input_.Below(8), caller)};
        if (subscriptions_.size() >= 4 || !world_.broker->CheckSession(peer, session).ok()) break;
        const Result<std::uint64_t> subscription = world_.broker->events().Subscribe(
            peer.user.id(), session, [](const std::shared_ptr<const broker::Event>& event) {
              v1::Event out;
              rpc::ToProto(*event, &out);
              CheckSendable(out);
            });
        if (subscription.ok()) subscriptions_.push_back(*subscription);
      }
    }
  }

  World& world_;
  Input input_;
  std::array<Client, kClients> clients_;
  std::vector<SessionId> sessions_;
  std::vector<LeaseId> known_;
  std::vector<std::uint64_t> tickets_, seals_, subscriptions_;
  std::shared_ptr<std::atomic<int>> waiting_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace
}  // namespace gpulease::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulease::fuzz;
  signal(SIGPIPE, SIG_IGN);
  signal(SIGIO, SIG_IGN);
  static const google::protobuf::LogSilencer silent;
  static auto* const world = new World;
  static int count = 0;
  Play(*world, Input(data, size)).Run();
  if (++count % 64 == 1) {
    world->AwaitNothing();
    GPULEASE_CHECK(world->front.RunUntilEmpty(), "every place is free again");
  }
  return 0;
}
