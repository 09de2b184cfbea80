// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/reception.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpulease::peers {
namespace {

constexpr Duration kHelloBound = std::chrono::seconds(10);
constexpr Duration kLookAtLingering = std::chrono::milliseconds(250);
constexpr Duration kRetryPushes = std::chrono::milliseconds(20);
// A client that takes nothing for so long, with descriptors waiting, is in everybody's way.
constexpr Duration kStallBound = std::chrono::seconds(30);

int OpenFileLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1u << 30));
}

}  // namespace

// One living process with connections: its pidfd, watched once.
struct Reception::Process {
  std::uint64_t number = 0;
  UniqueFd pidfd;
  EventLoop::Source death;
  std::set<int> handles;
  std::set<int> grpcs;
  std::set<ledger::SessionId> sessions;  // those that wait for a lost connection, too
};

struct Reception::HandleConnection {
  std::shared_ptr<HandleSocket> socket;
  Identity identity;
  ledger::UserId account = 0;        // whose place it takes
  std::shared_ptr<Process> process;  // once its pidfd is known
  ledger::SessionId session;         // once it said Hello
  Time hello_by = kNever;
  EventLoop::Source source;
};

struct Reception::GrpcConnection {
  ledger::UserId account = 0;
  std::shared_ptr<Process> process;
  UniqueFd watched;
  EventLoop::Source source;
};

Reception::Reception(EventLoop& loop, Endpoint& endpoint, PeerTable& table, Registrar& registrar,
                     std::function<void(UniqueFd)> serve, Options options)
    : loop_(loop),
      endpoint_(endpoint),
      table_(table),
      registrar_(registrar),
      serve_(std::move(serve)),
      options_(std::move(options)),
      allowance_(std::make_shared<Allowance>(static_cast<std::uint32_t>(OpenFileLimit()))),
      next_number_(OpenFileLimit() / 2) {
  for (const UniqueFd* listener : {&endpoint_.handle_listener, &endpoint_.grpc_listener}) {
    const int off = 0;
    // An older kernel has no such option, and needs the pidfds that clients send.
    static_cast<void>(
        setsockopt(listener->get(), SOL_SOCKET, handle::kPassRights, &off, sizeof off));
  }
  timer_ = loop_.MakeTimer([this] { OnTimer(); });
  accept_handle_ = loop_.WatchDescriptor(endpoint_.handle_listener.get(), EPOLLIN,
                                         [this](std::uint32_t) { AcceptHandle(); });
  accept_grpc_ = loop_.WatchDescriptor(endpoint_.grpc_listener.get(), EPOLLIN,
                                       [this](std::uint32_t) { AcceptGrpc(); });
}

Reception::~Reception() = default;

void Reception::StopAccepting() {
  accept_handle_.reset();
  accept_grpc_.reset();
}

void Reception::SetTerms(Duration session_grace, std::uint32_t connections_per_user) {
  options_.session_grace = session_grace;
  options_.connections_per_user = connections_per_user;
}

// ------------------------------------------------------------------------------------------------
// accepting

bool Reception::HasRoom(const Peer& peer) const {
  const std::uint32_t spare = peer.user.root ? kSpareConnections : 0;
  if (connection_count_ >= options_.connections + spare) return false;
  const auto found = connections_of_user_.find(ledger::AccountOf(peer.user));
  return peer.user.root || found == connections_of_user_.end() ||
         found->second < options_.connections_per_user;
}

UniqueFd Reception::Accept(int listener) {
  UniqueFd socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
    // The budget keeps this from happening; if the machine is out of files all the same, look again
    // in a while instead of spinning on a listener that stays readable.
    accept_again_ = After(BootClock::now(), std::chrono::milliseconds(100));
    EventLoop::ChangeEvents(accept_handle_, 0);
    EventLoop::ChangeEvents(accept_grpc_, 0);
    ArmTimer();
  }
  return socket;
}

std::shared_ptr<Reception::Process> Reception::Join(Identity& identity) {
  std::weak_ptr<Process>& entry = processes_[identity.peer.process];
  if (std::shared_ptr<Process> known = entry.lock()) {
    identity.pidfd.Reset();
    return known;
  }
  const std::uint64_t number = identity.peer.process;
  std::shared_ptr<Process> process(new Process, [this](Process* gone) {
    processes_.erase(gone->number);
    delete gone;
  });
  process->number = number;
  process->pidfd = std::move(identity.pidfd);
  process->death = loop_.WatchDescriptor(process->pidfd.get(), EPOLLIN,
                                         [this, number](std::uint32_t) { OnDeath(number); });
  entry = process;
  return process;
}

std::shared_ptr<UserAllowance> Reception::AllowanceOf(const ledger::UserId& user) {
  std::shared_ptr<UserAllowance> allowance = allowances_[user].lock();
  if (!allowance) {
    std::erase_if(allowances_, [](const auto& entry) { return entry.second.expired(); });
    allowance = std::make_shared<UserAllowance>(allowance_);
    allowances_[user] = allowance;
  }
  return allowance;
}

void Reception::AcceptHandle() {
  UniqueFd accepted = Accept(endpoint_.handle_listener.get());
  if (!accepted) return;
  auto connection = std::make_unique<HandleConnection>();
  const int fd = accepted.get();
  Result<Identity> identity = IdentifyPeer(fd);
  if (!identity.ok()) return Refuse(fd, identity.error());
  options_.place(identity->peer);
  if (!HasRoom(identity->peer)) {
    return Refuse(fd, MakeError(Code::kResourceExhausted, Reason::kSessionLimit,
                                "too many connections: " + std::to_string(connection_count_) +
                                    " of " + std::to_string(options_.connections) + ", at most " +
                                    std::to_string(options_.connections_per_user) +
                                    " of a user (twice sessions_per_user, and 64): close some"));
  }
  connection->account = ledger::AccountOf(identity->peer.user);
  connection->socket =
      std::make_shared<HandleSocket>(std::move(accepted), AllowanceOf(connection->account));
  connection->identity = std::move(*identity);
  if (connection->identity.pidfd) {
    connection->process = Join(connection->identity);
    connection->process->handles.insert(fd);
  }
  connection->hello_by = After(BootClock::now(), kHelloBound);
  silent_.emplace_back(connection->hello_by, fd);
  Register(std::move(connection));
  ArmTimer();
}

Reception::HandleConnection& Reception::Register(std::unique_ptr<HandleConnection> connection) {
  const int fd = connection->socket->descriptor();
  connection->source = loop_.WatchDescriptor(
      fd, EPOLLIN | EPOLLRDHUP, [this, fd](std::uint32_t events) { OnHandleEvent(fd, events); });
  ++connections_of_user_[connection->account];
  ++connection_count_;
  return *(handles_[fd] = std::move(connection));
}

void Reception::Connect(HandleConnection& connection, ledger::SessionId session) {
  connection.session = session;
  connection.process->sessions.insert(session);
  sessions_[session] = connection.process;
  MutexLock lock(mutex_);
  sockets_[session] = connection.socket;
}

Result<Peer> Reception::Adopt(ledger::SessionId session, UniqueFd socket, UniqueFd pidfd) {
  pollfd dead{pidfd.get(), POLLIN, 0};
  if (poll(&dead, 1, 0) != 0)
    return MakeError(Code::kUnavailable, Reason::kSessionEnded, "the process is dead");
  Result<Identity> identity = IdentifyPeer(socket.get());
  if (!identity.ok()) return std::move(identity).error();
  if (!identity->pidfd) GPULEASE_RETURN_IF_ERROR(AdoptPidfd(*identity, std::move(pidfd)));
  options_.place(identity->peer);
  auto connection = std::make_unique<HandleConnection>();
  const int fd = socket.get();
  connection->account = ledger::AccountOf(identity->peer.user);
  connection->socket =
      std::make_shared<HandleSocket>(std::move(socket), AllowanceOf(connection->account),
                                     /*begun=*/true);
  connection->identity = std::move(*identity);
  connection->process = Join(connection->identity);
  connection->process->handles.insert(fd);
  HandleConnection& registered = Register(std::move(connection));
  Connect(registered, session);
  return registered.identity.peer;
}

void Reception::ForEachSession(
    const std::function<void(ledger::SessionId, const Registrar::Lifeline&)>& each) const {
  for (const auto& [fd, connection] : handles_) {
    if (connection->session) each(connection->session, {fd, connection->process->pidfd.get()});
  }
}

void Reception::AcceptGrpc() {
  UniqueFd accepted = Accept(endpoint_.grpc_listener.get());
  if (!accepted) return;
  Result<Identity> identity = IdentifyPeer(accepted.get());
  // gRPC has no word for "go away" before a call; a closed connection is UNAVAILABLE at the client.
  if (!identity.ok()) return;
  if (!identity->pidfd && !OpenPidfd(*identity).ok()) return;
  options_.place(identity->peer);
  if (!HasRoom(identity->peer)) return;

  // Numbers only rise, so that a call still queued for a closed connection does not meet the next
  // one's peer.
  const int limit = OpenFileLimit();
  int number = fcntl(accepted.get(), F_DUPFD_CLOEXEC, next_number_);
  if (number < 0) {
    next_number_ = limit / 2;
    number = fcntl(accepted.get(), F_DUPFD_CLOEXEC, next_number_);
  }
  if (number < 0) return;
  next_number_ = number + 1;
  UniqueFd served(number);

  auto connection = std::make_unique<GrpcConnection>();
  connection->account = ledger::AccountOf(identity->peer.user);
  connection->process = Join(*identity);
  connection->process->grpcs.insert(number);
  connection->watched = std::move(accepted);
  connection->source = loop_.WatchDescriptor(connection->watched.get(), EPOLLRDHUP,
                                             [this, number](std::uint32_t) { DropGrpc(number); });
  ++connections_of_user_[connection->account];
  ++connection_count_;
  table_.Add(number, std::make_shared<const Peer>(std::move(identity->peer)));
  grpcs_[number] = std::move(connection);
  serve_(std::move(served));
}

// ------------------------------------------------------------------------------------------------
// messages

void Reception::Refuse(int socket, const Error& error) {
  handle::Refused refused;
  refused.code = static_cast<std::int32_t>(error.code);
  refused.reason = static_cast<std::int32_t>(error.reason);
  CopyText(refused.message, error.message);
  // Who does not read his refusal loses it.
  static_cast<void>(SendMessage(socket, handle::BytesOf(refused), {}).ok());
}

void Reception::OnHandleEvent(int fd, std::uint32_t events) {
  HandleConnection& connection = *handles_.at(fd);
  if (events & EPOLLIN) {
    std::array<std::byte, handle::kMaxMessageBytes> buffer;
    // A bounded number of messages, so that one busy client does not keep the others waiting.
    for (int i = 0; i < 64; ++i) {
      Result<ReceivedMessage> message = ReceiveMessage(fd, buffer, /*dont_wait=*/true);
      if (!message.ok()) {
        if (message.error().code == Code::kUnavailable) return;
        return DropHandle(fd);
      }
      if (message->size == 0) return DropHandle(fd);
      if (!OnMessage(connection, std::span(buffer).first(message->size),
                     std::move(message->descriptors))) {
        return DropHandle(fd);
      }
    }
    return;
  }
  if (events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) DropHandle(fd);
}

bool Reception::OnMessage(HandleConnection& connection, std::span<const std::byte> bytes,
                          std::vector<UniqueFd> descriptors) {
  const std::optional<handle::Kind> kind = handle::KindOf(bytes);
  if (kind == handle::Kind::kHello && !connection.session) {
    const std::optional<handle::Hello> hello = handle::Parse<handle::Hello>(bytes);
    if (!hello) {
      Refuse(connection.socket->descriptor(),
             MakeError(Code::kUnimplemented, Reason::kUnsupported,
                       "this daemon (gpuleased " + options_.version + ") speaks version " +
                           std::to_string(handle::kVersion) +
                           " of the handle protocol; update the client library or the daemon"));
      return false;
    }
    return OnHello(connection, *hello, descriptors);
  }
  if (kind == handle::Kind::kTaken && connection.session && descriptors.empty()) {
    const std::optional<handle::Taken> taken = handle::Parse<handle::Taken>(bytes);
    if (!taken) return false;
    switch (connection.socket->Acknowledge(*taken)) {
      case HandleSocket::Answer::kComplete:
        registrar_.Took(connection.session, ledger::LeaseId{taken->lease_id}, true);
        break;
      case HandleSocket::Answer::kDeclined:
        registrar_.Took(connection.session, ledger::LeaseId{taken->lease_id}, false);
        break;
      case HandleSocket::Answer::kMore:
      case HandleSocket::Answer::kUnknown:
        break;
    }
    return true;
  }
  return false;
}

bool Reception::OnHello(HandleConnection& connection, const handle::Hello& hello,
                        std::vector<UniqueFd>& descriptors) {
  const int fd = connection.socket->descriptor();
  if (descriptors.size() > 1) return false;
  if (!connection.process) {
    Status adopted =
        descriptors.empty()
            ? Status(
                  MakeError(Code::kFailedPrecondition, Reason::kUnsupported,
                            "this kernel has no SO_PEERPIDFD: Hello must carry the client's pidfd"))
            : AdoptPidfd(connection.identity, std::move(descriptors[0]));
    if (!adopted.ok()) {
      Refuse(fd, adopted.error());
      return false;
    }
    options_.place(connection.identity.peer);
    connection.process = Join(connection.identity);
    connection.process->handles.insert(fd);
  }
  Result<Registrar::Admitted> admitted =
      registrar_.Admit(connection.identity.peer, hello, {fd, connection.process->pidfd.get()});
  if (!admitted.ok()) {
    Refuse(fd, admitted.error());
    return false;
  }
  Connect(connection, admitted->session);
  handle::Welcome welcome;
  welcome.session_id = connection.session.value;
  std::memcpy(welcome.instance, options_.instance.data(), sizeof welcome.instance);
  welcome.flags = (admitted->resumed ? handle::kWelcomeResumed : 0) |
                  (options_.simulated_directory.empty() ? 0 : handle::kWelcomeSimulated);
  welcome.grace_ms = static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.session_grace).count());
  CopyText(welcome.daemon_version, options_.version);
  CopyText(welcome.simulated_directory, options_.simulated_directory);
  return connection.socket->Send(welcome).ok();
}

// ------------------------------------------------------------------------------------------------
// pushing

std::shared_ptr<HandleSocket> Reception::FindSocket(ledger::SessionId session) const {
  MutexLock lock(mutex_);
  const auto found = sockets_.find(session);
  return found == sockets_.end() ? nullptr : found->second;
}

Status Reception::Push(ledger::SessionId session, Parcel parcel) {
  const std::shared_ptr<HandleSocket> socket = FindSocket(session);
  if (!socket) {
    return MakeError(
        Code::kUnavailable, Reason::kHandOver,
        "the session has no handle socket now: nothing was handed over; connect anew and retry");
  }
  GPULEASE_RETURN_IF_ERROR(socket->Push(std::move(parcel)));
  if (!socket->idle()) {
    loop_.Post([this, session] {
      stalled_.try_emplace(session, BootClock::now());
      ArmTimer();
    });
  }
  return {};
}

void Reception::Forget(ledger::SessionId session) {
  loop_.Post([this, session] {
    if (const std::shared_ptr<HandleSocket> socket = FindSocket(session))
      DropHandle(socket->descriptor());
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return;
    found->second->sessions.erase(session);
    sessions_.erase(found);
  });
}

// ------------------------------------------------------------------------------------------------
// ends

void Reception::Leave(const ledger::UserId& user) {
  const auto found = connections_of_user_.find(user);
  if (--found->second == 0) connections_of_user_.erase(found);
  --connection_count_;
}

void Reception::DropHandle(int fd) {
  const auto found = handles_.find(fd);
  if (found == handles_.end()) return;
  const std::unique_ptr<HandleConnection> connection = std::move(found->second);
  handles_.erase(found);
  connection->source.reset();
  connection->socket->Shutdown();
  if (connection->socket->HasUnread()) {
    lingering_.emplace_back(connection->account, connection->socket);
    ArmTimer();
  } else {
    Leave(connection->account);
  }
  if (connection->process) connection->process->handles.erase(fd);
  if (!connection->session) return;
  stalled_.erase(connection->session);
  {
    MutexLock lock(mutex_);
    const auto entry = sockets_.find(connection->session);
    if (entry != sockets_.end() && entry->second == connection->socket) sockets_.erase(entry);
  }
  registrar_.LostConnection(connection->session);
}

void Reception::DropGrpc(int fd) {
  const auto found = grpcs_.find(fd);
  if (found == grpcs_.end()) return;
  const std::unique_ptr<GrpcConnection> connection = std::move(found->second);
  grpcs_.erase(found);
  table_.Remove(fd);
  connection->source.reset();
  connection->process->grpcs.erase(fd);
  Leave(connection->account);
  // gRPC's own descriptor of this socket sees the end, too, and is closed by gRPC.
  shutdown(connection->watched.get(), SHUT_RDWR);
}

void Reception::OnDeath(std::uint64_t number) {
  const auto found = processes_.find(number);
  if (found == processes_.end()) return;
  const std::shared_ptr<Process> process = found->second.lock();
  if (!process) return;
  process->death.reset();
  // Rights end first; what the sockets still held follows.
  for (const ledger::SessionId session : process->sessions) registrar_.Died(session);
  while (!process->handles.empty()) DropHandle(*process->handles.begin());
  while (!process->grpcs.empty()) DropGrpc(*process->grpcs.begin());
}

// ------------------------------------------------------------------------------------------------
// time

void Reception::ArmTimer() {
  Time next = accept_again_;
  if (!silent_.empty()) next = std::min(next, silent_.front().first);
  if (!stalled_.empty()) next = std::min(next, After(BootClock::now(), kRetryPushes));
  if (!lingering_.empty()) next = std::min(next, After(BootClock::now(), kLookAtLingering));
  EventLoop::SetTimer(timer_, next);
}

void Reception::OnTimer() {
  const Time now = BootClock::now();
  if (now >= accept_again_) {
    accept_again_ = kNever;
    if (accept_handle_) EventLoop::ChangeEvents(accept_handle_, EPOLLIN);
    if (accept_grpc_) EventLoop::ChangeEvents(accept_grpc_, EPOLLIN);
  }
  while (!silent_.empty() && silent_.front().first <= now) {
    const auto found = handles_.find(silent_.front().second);
    silent_.pop_front();
    // The number may be a later connection's by now, which has an entry of its own.
    if (found != handles_.end() && !found->second->session && found->second->hello_by <= now) {
      DropHandle(found->first);
    }
  }
  std::vector<ledger::SessionId> too_long;
  std::erase_if(stalled_, [&](const auto& entry) {
    const std::shared_ptr<HandleSocket> socket = FindSocket(entry.first);
    if (!socket || !socket->Flush()) return true;
    if (now - entry.second > kStallBound) too_long.push_back(entry.first);
    return false;
  });
  for (const ledger::SessionId session : too_long) {
    if (const std::shared_ptr<HandleSocket> socket = FindSocket(session))
      DropHandle(socket->descriptor());
  }
  std::erase_if(lingering_, [this](const auto& entry) {
    if (entry.second->HasUnread()) return false;
    Leave(entry.first);
    return true;
  });
  ArmTimer();
}

}  // namespace gpulease::peers
