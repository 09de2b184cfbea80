// SPDX-License-Identifier: Apache-2.0
//
// Charge: one lease's bytes and chunks in the books of its pool, its tenant and its owner.
//
// The one place that adds to these books and takes from them. What it added it takes back when it
// goes, so that no way out of a command can leave a byte behind.
#pragma once

#include <utility>

#include "daemon/ledger/ledger.h"
#include "daemon/ledger/pool_account.h"

namespace gpulease::ledger {

struct SessionRecord;
struct TenantAccount;

// Movable; not copyable. The accounts outlive it.
class Charge {
 public:
  Charge() = default;
  // Charges `lease`, a lease of `size` bytes in `chunks` chunks that are about to be made.
  // `owner` is null for one that has none any more.
  Charge(PoolAccount& pool, TenantAccount& tenant, SessionRecord* owner, LeaseId lease, Bytes size,
         std::uint64_t chunks);
  Charge(Charge&& other) noexcept { *this = std::move(other); }
  Charge& operator=(Charge&& other) noexcept;
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() { Undo(); }

  void MoveTo(Column column);
  // `bytes` of it are free again.
  void Shrink(Bytes bytes);
  // The daemon's descriptors are closed.
  void CloseChunks();
  // The owner has let go: only pool and tenant go on. Another may take its place.
  void LeaveOwner();
  void TakeOwner(SessionRecord& owner);
  // `other`, of the same pool, tenant and owner, is a part of this one from here on.
  void Absorb(Charge other);
  // `bytes` in `chunks` chunks become a charge of their own, of `lease`, which has no owner.
  Charge Split(LeaseId lease, Bytes bytes, std::uint64_t chunks);
  void Undo();

  PoolAccount* pool() const { return pool_; }
  TenantAccount* tenant() const { return tenant_; }
  Bytes bytes() const { return bytes_; }
  std::uint64_t chunks() const { return chunks_; }
  Column column() const { return column_; }
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  void Resize(Bytes size, Bytes bytes, std::uint64_t chunks);
  Bytes& OwnerBytes() const;

  PoolAccount* pool_ = nullptr;
  TenantAccount* tenant_ = nullptr;
  SessionRecord* owner_ = nullptr;
  LeaseId lease_;
  Bytes size_ = 0;   // as charged at first, with what it grew and shrank by
  Bytes bytes_ = 0;  // as charged now
  std::uint64_t chunks_ = 0;
  Column column_ = Column::kMaking;
};

}  // namespace gpulease::ledger
