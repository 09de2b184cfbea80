// SPDX-License-Identifier: Apache-2.0
//
// WaitingCall: a call that is answered some time after it was asked, from any thread, or ended by
// its caller before.
#pragma once

#include <atomic>
#include <memory>

#include "daemon/rpc/call.h"

namespace gpulease::rpc {

// The parts that calls which wait have in common. gRPC holds one reference for each tag that it has
// not returned; others may hold more.
class WaitingCall : public std::enable_shared_from_this<WaitingCall> {
 public:
  virtual ~WaitingCall() = default;

 protected:
  explicit WaitingCall(const Services& services) : services_(services), live_(*services.calls) {}

  // The call came; `ok` is false when the server ends before one did.
  virtual void Arrive() = 0;
  // Its caller is gone, or it was answered. Called once for each call that arrived.
  virtual void End() {}

  // Tags. A tag keeps the call alive, and calls `method` with what became of it.
  class Tag final : public Completion {
   public:
    Tag(std::shared_ptr<WaitingCall> call, void (*then)(WaitingCall&, bool))
        : call_(std::move(call)), then_(then) {}
    void Complete(bool ok) override {
      then_(*call_, ok);
      delete this;
    }

   private:
    const std::shared_ptr<WaitingCall> call_;
    void (*const then_)(WaitingCall&, bool);
  };
  Tag* NewTag(void (*then)(WaitingCall&, bool)) { return new Tag(shared_from_this(), then); }

  // Before the call is asked for. gRPC returns the end's tag only for a call that arrives; the
  // other is kept until then.
  Tag* ListenTag() {
    end_tag_.reset(NewTag([](WaitingCall& call, bool) { call.End(); }));
    context_.AsyncNotifyWhenDone(end_tag_.get());
    return NewTag([](WaitingCall& call, bool ok) {
      if (!ok) {
        call.end_tag_.reset();
        return;
      }
      static_cast<void>(call.end_tag_.release());
      call.Arrive();
    });
  }

  const Services& services_;
  const LiveCall live_;
  grpc::ServerContext context_;

 private:
  std::unique_ptr<Tag> end_tag_;
};

}  // namespace gpulease::rpc
