// SPDX-License-Identifier: Apache-2.0
#include "driver/simulated/address_space.h"

#include <sys/mman.h>

#include <algorithm>

#include "driver/simulated/simulated.h"

namespace gpulease::simulated {
namespace {

void* Pointer(Address address) { return reinterpret_cast<void*>(address); }

}  // namespace

Address AddressSpace::Reserve(Bytes size, Bytes alignment, Address hint) {
  // More than needed, cut to the alignment: the kernel aligns to pages alone.
  const std::optional<Bytes> wide = CheckedAdd(size, alignment);
  if (!wide.has_value()) return 0;
  void* mapped =
      mmap(Pointer(hint), *wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return 0;
  const Address start = reinterpret_cast<Address>(mapped);
  const Address aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned != start) munmap(mapped, aligned - start);
  if (const Bytes behind = start + *wide - (aligned + size); behind != 0) {
    munmap(Pointer(aligned + size), behind);
  }
  reservations_[aligned] = size;
  return aligned;
}

bool AddressSpace::Free(Address address, Bytes size) {
  const auto reservation = reservations_.find(address);
  if (reservation == reservations_.end() || reservation->second != size) return false;
  const auto region = regions_.lower_bound(address);
  if (region != regions_.end() && region->first < address + size) return false;
  munmap(Pointer(address), size);
  reservations_.erase(reservation);
  return true;
}

bool AddressSpace::IsReserved(Address address) const {
  auto reservation = reservations_.upper_bound(address);
  if (reservation == reservations_.begin()) return false;
  --reservation;
  return address - reservation->first < reservation->second;
}

bool AddressSpace::Map(Address address, const Region& region, int chunk, Bytes offset) {
  auto reservation = reservations_.upper_bound(address);
  if (reservation == reservations_.begin()) return false;
  --reservation;
  const Bytes inside = address - reservation->first;
  if (inside >= reservation->second || region.size > reservation->second - inside) return false;
  const auto next = regions_.lower_bound(address);
  if (next != regions_.end() && next->first < address + region.size) return false;
  if (Find(address) != nullptr) return false;
  if (mmap(Pointer(address), region.size, PROT_NONE, MAP_SHARED | MAP_FIXED, chunk,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    return false;
  }
  regions_[address] = region;
  return true;
}

bool AddressSpace::IsWhole(Address address, Bytes size) const {
  const std::optional<Bytes> end = CheckedAdd(address, size);
  if (!end.has_value() || size == 0) return false;
  Address next = address;
  for (auto region = regions_.find(address); next < *end; ++region) {
    if (region == regions_.end() || region->first != next ||
        region->second.origin != Origin::kVirtual) {
      return false;
    }
    next += region->second.size;
  }
  return next == *end;
}

void AddressSpace::Unmap(Address address, Bytes size) {
  mmap(Pointer(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
  regions_.erase(regions_.lower_bound(address), regions_.lower_bound(address + size));
}

bool AddressSpace::SetAccess(Address address, Bytes size, int gpu, bool read, bool write) {
  const std::uint32_t bit = 1u << gpu;
  for (auto region = regions_.find(address);
       region != regions_.end() && region->first < address + size; ++region) {
    Region& at = region->second;
    const std::uint32_t readers = read ? at.readers | bit : at.readers & ~bit;
    const std::uint32_t writers = write ? at.writers | bit : at.writers & ~bit;
    const int protection = writers != 0   ? PROT_READ | PROT_WRITE
                           : readers != 0 ? PROT_READ
                                          : PROT_NONE;
    if (mprotect(Pointer(region->first), at.size, protection) != 0) return false;
    at.readers = readers;
    at.writers = writers;
  }
  return true;
}

Address AddressSpace::MapWhole(const Region& region, int chunk) {
  const Address address = Reserve(region.size, kGranularity, 0);
  if (address == 0) return 0;
  Region granted = region;
  granted.readers = granted.writers = ~0u;
  if (!Map(address, granted, chunk, 0) ||
      mprotect(Pointer(address), region.size, PROT_READ | PROT_WRITE) != 0) {
    regions_.erase(address);
    Free(address, region.size);
    return 0;
  }
  return address;
}

void AddressSpace::UnmapWhole(Address address) {
  const Bytes size = regions_.at(address).size;
  regions_.erase(address);
  Free(address, size);
}

const Region* AddressSpace::Find(Address address, Address* start) const {
  auto region = regions_.upper_bound(address);
  if (region == regions_.begin()) return nullptr;
  --region;
  if (address - region->first >= region->second.size) return nullptr;
  if (start != nullptr) *start = region->first;
  return &region->second;
}

Region* AddressSpace::At(Address address) {
  const auto region = regions_.find(address);
  return region == regions_.end() ? nullptr : &region->second;
}

AddressSpace::Verdict AddressSpace::Check(Address address, Bytes size, bool write) const {
  Address start = 0;
  const Region* region = Find(address, &start);
  if (region == nullptr) {
    return IsReserved(address) ? Verdict::kNoAccess : Verdict::kNotDevice;
  }
  for (;;) {
    if ((write ? region->writers : region->readers) == 0) return Verdict::kNoAccess;
    const Bytes here = region->size - (address - start);
    if (size <= here) return Verdict::kOk;
    size -= here;
    address += here;
    region = Find(address, &start);
    if (region == nullptr) return Verdict::kNoAccess;
  }
}

}  // namespace gpulease::simulated
