// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/closer.h"

#include <iterator>

namespace gpulease::keeper {

Closer::Closer() {
  for (unsigned i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Work(); });
}

Closer::~Closer() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Closer::Close(std::vector<UniqueFd> descriptors) {
  if (descriptors.empty()) return;
  MutexLock lock(mutex_);
  std::move(descriptors.begin(), descriptors.end(), std::back_inserter(waiting_));
  wake_.NotifyAll();
}

void Closer::Work() {
  for (;;) {
    UniqueFd next;
    {
      MutexLock lock(mutex_);
      while (waiting_.empty() && !ending_) wake_.Wait(mutex_);
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
  }
}

}  // namespace gpulease::keeper
