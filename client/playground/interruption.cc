// SPDX-License-Identifier: Apache-2.0
#include "client/playground/interruption.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace gpulease::playground {
namespace {

int signals = -1;  // a signalfd; -1: signals are not held. Set before the first thread starts.

}  // namespace

Interrupted::Interrupted(int signal)
    : std::runtime_error(std::string("interrupted: ") + strsignal(signal)), signal_(signal) {}

void HoldSignals() {
  sigset_t held;
  sigemptyset(&held);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&held, signal);
  sigprocmask(SIG_BLOCK, &held, nullptr);
  signals = signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK);
  // A reader of our output that went away is no reason to leave the daemon behind.
  signal(SIGPIPE, SIG_IGN);
}

void ThrowIfInterrupted() {
  signalfd_siginfo came;
  if (signals >= 0 && read(signals, &came, sizeof came) == sizeof came) {
    throw Interrupted(static_cast<int>(came.ssi_signo));
  }
}

bool WaitReadable(int descriptor, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd waiting[] = {{descriptor, POLLIN, 0}, {signals, POLLIN, 0}};
    const int ready = poll(waiting, 2, left.count() > 0 ? static_cast<int>(left.count()) : 0);
    if (ready < 0 && errno != EINTR) throw std::runtime_error("poll failed");
    ThrowIfInterrupted();
    if (ready > 0 && waiting[0].revents != 0) return true;
    if (left.count() <= 0) return false;
  }
}

}  // namespace gpulease::playground
