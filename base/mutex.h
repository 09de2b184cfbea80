// SPDX-License-Identifier: Apache-2.0
//
// Mutex: std::mutex with the annotations by which clang checks, at compile time, that what is
// guarded is touched under its lock alone. The macros are prefixed, since Abseil owns the bare
// names.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define GPULEASE_ANNOTATION(x) __attribute__((x))
#else
#define GPULEASE_ANNOTATION(x)
#endif
#define GPULEASE_GUARDED_BY(x) GPULEASE_ANNOTATION(guarded_by(x))
#define GPULEASE_REQUIRES(...) GPULEASE_ANNOTATION(requires_capability(__VA_ARGS__))
#define GPULEASE_EXCLUDES(...) GPULEASE_ANNOTATION(locks_excluded(__VA_ARGS__))
#define GPULEASE_CAPABILITY(x) GPULEASE_ANNOTATION(capability(x))
#define GPULEASE_SCOPED_CAPABILITY GPULEASE_ANNOTATION(scoped_lockable)
#define GPULEASE_ACQUIRE(...) GPULEASE_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GPULEASE_RELEASE(...) GPULEASE_ANNOTATION(release_capability(__VA_ARGS__))
#define GPULEASE_UNCHECKED GPULEASE_ANNOTATION(no_thread_safety_analysis)

namespace gpulease {

class GPULEASE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() GPULEASE_ACQUIRE() { mutex_.lock(); }
  void Unlock() GPULEASE_RELEASE() { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Holds a Mutex for a scope.
class GPULEASE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) GPULEASE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() GPULEASE_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits for what another thread changes under the same Mutex. Wakes without reason too: wait in a
// loop.
class Condition {
 public:
  void Wait(Mutex& mutex) GPULEASE_REQUIRES(mutex) GPULEASE_UNCHECKED {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False when `timeout` is over.
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds timeout)
      GPULEASE_REQUIRES(mutex) GPULEASE_UNCHECKED {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace gpulease
