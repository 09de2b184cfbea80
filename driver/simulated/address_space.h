// SPDX-License-Identifier: Apache-2.0
//
// AddressSpace: the device addresses of this process. A device pointer is an ordinary address, of
// memory that is mapped without access until the driver grants it, so that a stray store ends in a
// fault as it would on a GPU.
//
// Invariant: mappings lie within reservations and do not overlap. The caller holds the process's
// lock; what is mapped at exit stays mapped, for a forked child may share it.
#pragma once

#include <cstdint>
#include <map>

#include "base/bytes.h"
#include "driver/cuda_abi.h"

namespace gpulease::simulated {

using Address = cuda::CUdeviceptr;

enum class Origin { kVirtual, kAllocated, kIpc };

struct Region {
  Bytes size = 0;
  int gpu = 0;
  Origin origin = Origin::kVirtual;
  // Of kVirtual: per GPU, as bits; the others are readable and writable.
  std::uint32_t readers = 0;
  std::uint32_t writers = 0;
  int descriptor = -1;      // kAllocated: of the chunk, kept for cuIpcGetMemHandle
  std::uint64_t inode = 0;  // kIpc: of the chunk
  int opened = 1;           // kIpc: how often
};

class AddressSpace {
 public:
  // 0 when the kernel has no such range.
  Address Reserve(Bytes size, Bytes alignment, Address hint);
  // False when it is no reservation of that size, or something is mapped in it.
  bool Free(Address address, Bytes size);

  // Maps the chunk at `address`, without access. False when the range is not reserved and free, or
  // the kernel refuses.
  bool Map(Address address, const Region& region, int chunk, Bytes offset);
  // True when [address, address + size) is made of whole regions of VMM memory, with no gap.
  bool IsWhole(Address address, Bytes size) const;
  // Unmaps the regions of a whole range; the reservation stays.
  void Unmap(Address address, Bytes size);
  // Grants a GPU access to a whole range, or takes it away. False when the kernel refuses.
  bool SetAccess(Address address, Bytes size, int gpu, bool read, bool write);

  // A range of its own for a chunk that is readable and writable from the start; 0 when the kernel
  // refuses.
  Address MapWhole(const Region& region, int chunk);
  void UnmapWhole(Address address);

  // The region that contains the address, or nullptr.
  const Region* Find(Address address, Address* start = nullptr) const;
  // The region that starts there, or nullptr.
  Region* At(Address address);
  std::map<Address, Region>& regions() { return regions_; }

  enum class Verdict { kOk, kNotDevice, kNoAccess };
  // May [address, address + size) be read or written? kNotDevice when its start lies in no region.
  Verdict Check(Address address, Bytes size, bool write) const;
  // True when the address lies in a reservation, mapped or not.
  bool IsReserved(Address address) const;

 private:
  std::map<Address, Bytes> reservations_;
  std::map<Address, Region> regions_;
};

}  // namespace gpulease::simulated
