// SPDX-License-Identifier: Apache-2.0
//
// PublicationPage: the memory by which the publisher of a lease tells others how far it has come: a
// number that rises, and the handle of the event that its work on the GPU ends with. It knows no
// lease and no daemon.
//
// One process publishes at a time. There is no lock that a death could leave taken: a writer who
// dies half-way leaves a handle that reads as none, until the next one writes his.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/sdk/src/order/bell.h"
#include "client/sdk/src/order/event_pool.h"

namespace gpulease {

class PublicationPage {
 public:
  // Who publishes: a session; kNobody before the first, kLeft when the last one let go.
  static constexpr std::uint64_t kNobody = 0;
  static constexpr std::uint64_t kLeft = ~std::uint64_t{0};
  struct Publisher {
    std::uint64_t session = kNobody;
    std::uint32_t pid = 0;
  };
  struct Event {
    bool torn = false;                  // just being written: look again
    std::optional<EventHandle> handle;  // none: all that was published is there
    std::uint64_t session = kNobody;    // whose event it is
  };

  // `memory` has at least kOrderPageBytes and outlives this; for the methods that are not const it
  // is mapped for writing.
  explicit PublicationPage(std::byte* memory);

  // Makes a page of memory that reads as zeros.
  void Lay();
  bool valid() const;

  std::uint64_t sequence() const;
  Publisher publisher() const;
  Event event() const;
  Bell& bell() { return bell_; }
  const Bell& bell() const { return bell_; }

  void SetPublisher(const Publisher& publisher);
  void SetEvent(const std::optional<EventHandle>& handle, std::uint64_t session);
  // One more is published. Wakes all who wait; gives its number.
  std::uint64_t Announce();

 private:
  struct Layout;
  Layout* layout_;
  Bell bell_;
};

}  // namespace gpulease
