// SPDX-License-Identifier: Apache-2.0
#include "daemon/ledger/charge.h"

#include "daemon/ledger/accounts.h"

namespace gpulease::ledger {

Charge::Charge(PoolAccount& pool, TenantAccount& tenant, SessionRecord* owner, LeaseId lease,
               Bytes size, std::uint64_t chunks)
    : pool_(&pool),
      tenant_(&tenant),
      owner_(owner),
      lease_(lease),
      size_(size),
      bytes_(size),
      chunks_(chunks) {
  pool_->columns[static_cast<std::size_t>(column_)] += bytes_;
  pool_->chunks += chunks_;
  pool_->leases += 1;
  pool_->by_size.emplace(size_, lease_);
  tenant_->bytes[Index(pool_->spec.kind)] += bytes_;
  tenant_->leases += 1;
  if (owner_ != nullptr) OwnerBytes() += bytes_;
}

Charge& Charge::operator=(Charge&& other) noexcept {
  if (this == &other) return *this;
  Undo();
  pool_ = std::exchange(other.pool_, nullptr);
  tenant_ = std::exchange(other.tenant_, nullptr);
  owner_ = std::exchange(other.owner_, nullptr);
  lease_ = other.lease_;
  size_ = other.size_;
  bytes_ = std::exchange(other.bytes_, 0);
  chunks_ = std::exchange(other.chunks_, 0);
  column_ = other.column_;
  return *this;
}

void Charge::MoveTo(Column column) {
  pool_->columns[static_cast<std::size_t>(column_)] -= bytes_;
  column_ = column;
  pool_->columns[static_cast<std::size_t>(column_)] += bytes_;
}

void Charge::Shrink(Bytes bytes) {
  pool_->columns[static_cast<std::size_t>(column_)] -= bytes;
  tenant_->bytes[Index(pool_->spec.kind)] -= bytes;
  if (owner_ != nullptr) OwnerBytes() -= bytes;
  bytes_ -= bytes;
}

void Charge::CloseChunks() { pool_->chunks -= std::exchange(chunks_, 0); }

void Charge::LeaveOwner() {
  if (owner_ == nullptr) return;
  OwnerBytes() -= bytes_;
  owner_ = nullptr;
}

void Charge::TakeOwner(SessionRecord& owner) {
  LeaveOwner();
  owner_ = &owner;
  OwnerBytes() += bytes_;
}

void Charge::Absorb(Charge other) {
  const Bytes bytes = other.bytes_;
  const std::uint64_t chunks = other.chunks_;
  other.Undo();
  Resize(size_ + bytes, bytes_ + bytes, chunks_ + chunks);
}

Charge Charge::Split(LeaseId lease, Bytes bytes, std::uint64_t chunks) {
  Resize(size_ - bytes, bytes_ - bytes, chunks_ - chunks);
  Charge part(*pool_, *tenant_, nullptr, lease, bytes, chunks);
  part.MoveTo(column_);
  return part;
}

void Charge::Resize(Bytes size, Bytes bytes, std::uint64_t chunks) {
  pool_->by_size.erase({size_, lease_});
  size_ = size;
  pool_->by_size.emplace(size_, lease_);
  pool_->chunks = pool_->chunks - chunks_ + chunks;
  chunks_ = chunks;
  Bytes& column = pool_->columns[static_cast<std::size_t>(column_)];
  column = column - bytes_ + bytes;
  Bytes& tenant = tenant_->bytes[Index(pool_->spec.kind)];
  tenant = tenant - bytes_ + bytes;
  if (owner_ != nullptr) OwnerBytes() = OwnerBytes() - bytes_ + bytes;
  bytes_ = bytes;
}

void Charge::Undo() {
  if (pool_ == nullptr) return;
  Shrink(bytes_);
  CloseChunks();
  pool_->leases -= 1;
  pool_->by_size.erase({size_, lease_});
  tenant_->leases -= 1;
  pool_ = nullptr;
  tenant_ = nullptr;
  owner_ = nullptr;
}

Bytes& Charge::OwnerBytes() const {
  return pool_->spec.kind == PoolKind::kDevice ? owner_->session.device_bytes
                                               : owner_->session.host_bytes;
}

}  // namespace gpulease::ledger
