// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/call_loop.h"

#include <pthread.h>

namespace gpulease::rpc {

void CallLoop::Start() {
  MutexLock lock(mutex_);
  for (unsigned i = 0; i < kLeastWaiting; ++i) AddThread();
}

void CallLoop::AddThread() {
  ++running_;
  ++waiting_;
  std::thread thread([this] { Work(); });
  pthread_setname_np(thread.native_handle(), "rpc");
  thread.detach();  // Join() counts
}

void CallLoop::Work() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    {
      MutexLock lock(mutex_);
      --waiting_;
      if (waiting_ == 0 && running_ < kMostThreads) AddThread();
    }
    static_cast<Completion*>(tag)->Complete(ok);
    MutexLock lock(mutex_);
    if (waiting_ >= kMostWaiting) {
      --running_;
      return;
    }
    ++waiting_;
  }
  MutexLock lock(mutex_);
  --waiting_;
  if (--running_ == 0) ended_.NotifyAll();
}

void CallLoop::Join() {
  MutexLock lock(mutex_);
  while (running_ > 0) ended_.Wait(mutex_);
}

}  // namespace gpulease::rpc
