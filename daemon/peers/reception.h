// SPDX-License-Identifier: Apache-2.0
//
// Reception: accepts on both sockets, knows which process each connection is of, and notices when a
// process dies.
//
// It says who somebody is and whether he lives; what a session may do, and what its end means, is
// the Registrar's. Death is the pidfd's word: by then the process's GPU work has ended and the
// driver has its mappings back. A hang-up is only a lost connection.
//
// Threads: everything on the loop's thread, but for Push, FindSocket, Forget and connection_count.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/handle_protocol.h"
#include "base/mutex.h"
#include "daemon/ledger/ids.h"
#include "daemon/peers/endpoint.h"
#include "daemon/peers/event_loop.h"
#include "daemon/peers/handle_socket.h"
#include "daemon/peers/identity.h"
#include "daemon/peers/peer_table.h"

namespace gpulease::peers {

// Who decides about sessions. Called on the loop's thread.
class Registrar {
 public:
  struct Admitted {
    ledger::SessionId session;
    bool resumed = false;
  };
  // What a session lives on, borrowed: its connection, and its process's pidfd.
  struct Lifeline {
    int socket = -1;
    int pidfd = -1;
  };
  virtual ~Registrar() = default;
  // Opens or resumes a session; an Error is sent to the client as Refused.
  virtual Result<Admitted> Admit(const Peer& peer, const handle::Hello& hello,
                                 const Lifeline& lifeline) = 0;
  // The client took all descriptors of a lease, or could not.
  virtual void Took(ledger::SessionId session, ledger::LeaseId lease, bool ok) = 0;
  // The connection is lost; the process lives, as far as is known.
  virtual void LostConnection(ledger::SessionId session) = 0;
  // The process of these sessions is dead.
  virtual void Died(ledger::SessionId session) = 0;
};

class Reception {
 public:
  struct Options {
    std::array<std::uint8_t, 16> instance{};
    std::string version;
    std::string simulated_directory;  // empty: real GPUs
    Duration session_grace{};
    std::uint32_t connections_per_user = 0;
    std::uint32_t connections = 0;  // of all users; root has kSpareConnections more
    // What the configuration says of where a peer belongs; may change its realm.
    std::function<void(Peer&)> place = [](Peer&) {};
  };
  static constexpr std::uint32_t kSpareConnections = 32;
  // A connection costs its descriptor, gRPC's or ours, a duplicate to watch it, and half a pidfd or
  // a whole one.
  static constexpr std::uint32_t kDescriptorsPerConnection = 3;

  // `serve` takes an accepted gRPC connection, non-blocking, already in `table`. `registrar`
  // outlives the Reception.
  Reception(EventLoop& loop, Endpoint& endpoint, PeerTable& table, Registrar& registrar,
            std::function<void(UniqueFd)> serve, Options options);
  ~Reception();

  // Goes on with a session of a former life of the daemon, on the connection that it has: the
  // client notices nothing. On the loop's thread, before it runs.
  // Errors: kUnavailable when the process is dead; those of IdentifyPeer and AdoptPidfd.
  Result<Peer> Adopt(ledger::SessionId session, UniqueFd socket, UniqueFd pidfd);
  // Calls `each` for every connected session. On the loop's thread.
  void ForEachSession(
      const std::function<void(ledger::SessionId, const Registrar::Lifeline&)>& each) const;

  // Sends a parcel to the session. From any thread.
  // Errors: kUnavailable/kHandOver when the session has no connection now.
  Status Push(ledger::SessionId session, Parcel parcel);
  // The session's socket, or null. From any thread.
  std::shared_ptr<HandleSocket> FindSocket(ledger::SessionId session) const;
  // Closes the session's connection, soon. From any thread.
  void Forget(ledger::SessionId session);
  std::uint32_t connection_count() const { return connection_count_; }
  // For those who connect from here on.
  void SetTerms(Duration session_grace, std::uint32_t connections_per_user);
  // Accepts nobody any more.
  void StopAccepting();

 private:
  struct Process;
  struct HandleConnection;
  struct GrpcConnection;

  void AcceptHandle();
  void AcceptGrpc();
  UniqueFd Accept(int listener);
  bool HasRoom(const Peer& peer) const;
  std::shared_ptr<Process> Join(Identity& identity);
  // Watches and counts a connection of the handle socket from here on.
  HandleConnection& Register(std::unique_ptr<HandleConnection> connection);
  void Connect(HandleConnection& connection, ledger::SessionId session);
  void OnHandleEvent(int fd, std::uint32_t events);
  bool OnMessage(HandleConnection& connection, std::span<const std::byte> bytes,
                 std::vector<UniqueFd> descriptors);
  bool OnHello(HandleConnection& connection, const handle::Hello& hello,
               std::vector<UniqueFd>& descriptors);
  void Refuse(int socket, const Error& error);
  std::shared_ptr<UserAllowance> AllowanceOf(const ledger::UserId& user);
  void Leave(const ledger::UserId& user);
  void DropHandle(int fd);
  void DropGrpc(int fd);
  void OnDeath(std::uint64_t process);
  void OnTimer();
  void ArmTimer();

  EventLoop& loop_;
  Endpoint& endpoint_;
  PeerTable& table_;
  Registrar& registrar_;
  const std::function<void(UniqueFd)> serve_;
  Options options_;

  std::map<std::uint64_t, std::weak_ptr<Process>> processes_;
  std::map<ledger::SessionId, std::shared_ptr<Process>> sessions_;
  std::map<int, std::unique_ptr<HandleConnection>> handles_;
  std::map<int, std::unique_ptr<GrpcConnection>> grpcs_;
  std::map<ledger::UserId, std::uint32_t> connections_of_user_;
  const std::shared_ptr<Allowance> allowance_;
  std::map<ledger::UserId, std::weak_ptr<UserAllowance>> allowances_;
  // Connections that are over, with descriptors that the peer has not read: the kernel counts them
  // until it has, or ends. They keep their place, so that who connects anew gains nothing.
  std::vector<std::pair<ledger::UserId, std::shared_ptr<HandleSocket>>> lingering_;
  std::atomic<std::uint32_t> connection_count_ = 0;
  int next_number_ = 0;
  std::deque<std::pair<Time, int>>
      silent_;  // handle connections that have not said Hello, by deadline
  std::map<ledger::SessionId, Time> stalled_;  // sockets with something waiting, since when
  Time accept_again_ = kNever;                 // after the descriptor limit was met all the same
  EventLoop::Source timer_, accept_handle_, accept_grpc_;

  mutable Mutex mutex_;
  std::map<ledger::SessionId, std::shared_ptr<HandleSocket>> sockets_ GPULEASE_GUARDED_BY(mutex_);
};

}  // namespace gpulease::peers
