#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What an administrator sees of the packages, on a booted Debian with systemd that has nothing of gpulease:
#
#   installed_test.sh DIR        DIR has the packages of ./dev package; as root
#
# It installs, starts, restarts, kills, misconfigures, upgrades and purges, on simulated GPUs, and leaves nothing there.
# Where there is a C++ compiler it builds pattern_client.cc with the installed libgpulease-dev and has it hold leases
# meanwhile. It prints a line for each thing that it saw, and ends with 1 when one of them was wrong.
set -uo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
packages=$(readlink -f "${1:?DIR of the packages}")
readonly CONFIG=/etc/gpulease/gpuleased.textproto RUN=/run/gpulease
readonly UNITS=(gpuleased.service gpuleased.socket gpulease-keeper.service)
scratch=$(mktemp -d)
chmod 755 "$scratch"
export DEBIAN_FRONTEND=noninteractive SYSTEMD_COLORS=0 SYSTEMD_PAGER=
wrong=0 seen=0

# holds SENTENCE COMMAND...: the sentence is true when the command succeeds.
holds() {
  local sentence=$1 output
  shift
  seen=$((seen + 1))
  if output=$("$@" 2>&1); then
    echo "ok     $sentence"
  else
    wrong=$((wrong + 1))
    echo "WRONG  $sentence"
    printf '       | %s\n' "$* (in line ${BASH_LINENO[0]})"
    tail -20 <<<"$output" | sed 's/^/       | /'
    journalctl -b -n 8 --no-pager -o cat -u gpuleased.service -u gpuleased.socket -u gpulease-keeper.service |
      sed 's/^/       : /'
  fi
}
section() { echo "--- $*"; }

of() { systemctl show -P "$2" "$1"; }
is() { [[ $(of "$1" "$2") == "$3" ]] || { echo "$2 of $1 is '$(of "$1" "$2")', not '$3'"; return 1; }; }
not() { ! "$@"; }
# soon COMMAND...: it succeeds within 20 seconds.
soon() {
  local end=$((SECONDS + 20))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || { "$@"; return 1; }
    sleep 0.05
  done
}
# says PATTERN COMMAND...: what it prints matches.
says() {
  local pattern=$1 output
  shift
  output=$("$@" 2>&1)
  grep -qE -- "$pattern" <<<"$output" || { printf '%s\n' "$output"; return 1; }
}
# As a user without rights. (Not nobody, who is what another user namespace's users look like, and is refused.)
as_user() { setpriv --reuid games --regid games --clear-groups "$@"; }
inodes() { stat -c '%i %a %U' $RUN/gpulease.sock $RUN/handles.sock; }
configure() { printf '%s\n' "$@" >$CONFIG; }
served_by_another_than() { [[ $(of gpuleased.service MainPID) != "$1" ]] && gpuleasectl status; }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
install_packages() { apt-get install -q -y --no-install-recommends --allow-downgrades "$1"/*.deb </dev/null; }

# Connects all the time, as clients that lost the daemon do, until its file is gone.
pester() {
  while [[ -e $scratch/pester ]]; do
    timeout 2 gpuleasectl status >/dev/null 2>&1
  done
}
pestered() {
  local status
  touch "$scratch/pester"
  pester &
  local -r connecting=$!
  "$@"
  status=$?
  rm "$scratch/pester"
  wait "$connecting"
  return $status
}
stopped_for_good() {
  systemctl stop gpuleased.service || return 1
  for _ in {1..30}; do
    is gpuleased.service ActiveState inactive && is gpuleased.socket ActiveState inactive || return 1
    [[ ! -e $RUN/gpulease.sock && ! -e $RUN/handles.sock ]] || { ls -l $RUN; return 1; }
    sleep 0.1
  done
}

section "installation, without a driver and without a configuration of one's own"
holds "the packages install" install_packages "$packages"
holds "the daemon is enabled" says '^enabled$' systemctl is-enabled gpuleased.service
holds "its sockets are enabled" says '^enabled$' systemctl is-enabled gpuleased.socket
holds "its sockets listen" soon is gpuleased.socket ActiveState active
holds "the daemon runs, whether it has GPUs or waits for them" \
  soon says '^(active|activating)$' systemctl is-active gpuleased.service
holds "it does not fall" is gpuleased.service NRestarts 0
needed() { for deb in "$packages"/*.deb; do dpkg-deb -f "$deb" Depends Pre-Depends Recommends; done; }
holds "nothing of CUDA is asked for" not says '[Cc][Uu][Dd][Aa]|nvidia' needed
holds "the keeper runs" soon is gpulease-keeper.service ActiveState active
holds "both run as a user of their own" says '^gpulease +gpulease$' \
  ps -o user=,group= -p "$(of gpuleased.service MainPID)"
holds "gpuleasectl is answered" soon says 'gpuleased' gpuleasectl status
holds "no unit of ours has failed" not says gpulease systemctl list-units --failed --plain --no-legend

# --- A driver that is there 30 seconds late: the simulated one, under the driver's name.
if command -v c++ >/dev/null; then
  section "a driver that comes late"
  late=/usr/local/lib
  cat >"$scratch/driver.cc" <<'END'
extern "C" const char* gpulease_simulated_use(const char* directory);
__attribute__((constructor)) static void Use() { gpulease_simulated_use("/run/gpulease/late/simulated"); }
END
  for name in libcuda.so.1 libnvidia-ml.so.1; do
    c++ -shared -fPIC -o "$scratch/$name" "$scratch/driver.cc" -Wl,-soname,$name -Wl,--no-as-needed \
      /usr/lib/gpulease/libgpulease-simulated.so -Wl,-rpath,/usr/lib/gpulease
  done
  # A daemon beside it makes the node and goes.
  setpriv --reuid gpulease --regid gpulease --clear-groups gpuleased --simulate 2x16GiB \
    --runtime-dir $RUN/late & node=$!
  soon test -e $RUN/late/simulated/node && kill $node
  wait $node
  systemctl restart --no-block gpuleased.service
  sleep 30
  holds "the daemon waits, and is not ready" is gpuleased.service ActiveState activating
  holds "it says for what" says 'driver' of gpuleased.service StatusText
  holds "and says so to who asks" says 'nobody is served yet|driver' gpuleasectl status
  holds "it does not fall" is gpuleased.service NRestarts 0
  cp "$scratch"/lib*.so.1 $late/ && ldconfig
  holds "the driver is there, and the daemon is ready by itself" soon is gpuleased.service ActiveState active
  holds "with its GPUs" says 'GPU-.*ready' gpuleasectl gpus
  rm $late/libcuda.so.1 $late/libnvidia-ml.so.1 && ldconfig
fi

section "simulated GPUs"
configure 'simulate: "2x16GiB"'
holds "systemctl restart" systemctl restart gpuleased.service
holds "the daemon is ready" is gpuleased.service ActiveState active
holds "the keeper serves it" soon says '^a daemon is connected' of gpulease-keeper.service StatusText
for unit in gpuleased gpulease-keeper; do
  pid=$(of $unit.service MainPID)
  # A container may lack the right to it.
  if (echo -900 >/proc/self/oom_score_adj) 2>/dev/null; then score=$(cat "/proc/$pid/oom_score_adj"); else
    score=$(of $unit.service OOMScoreAdjust); fi
  holds "$unit is among the last that the kernel kills for memory: $score" test "$score" -le -900
done
holds "gpuleasectl shows two GPUs" says '"uuid"' gpuleasectl gpus -o json
holds "so it does for anybody" says 'simulated|GPU-' as_user gpuleasectl gpus
holds "the sockets are the daemon's, for everybody" \
  says '^[0-9]+ 666 gpulease [0-9]+ 666 gpulease $' eval "inodes | tr '\n' ' '"
holds "systemd-analyze has nothing against the units" systemd-analyze verify --man=no gpuleased.service \
  gpuleased.socket gpulease-keeper.service
for unit in gpuleased gpulease-keeper; do
  figure=$(systemd-analyze security --no-pager $unit.service | sed -n 's/.*exposure level for .*: \([0-9.]*\) .*/\1/p')
  holds "systemd-analyze security $unit: $figure, at most 2.0" awk -v f="${figure:-10}" 'BEGIN { exit !(f <= 2.0) }'
done
threads=$(find "/proc/$(of gpuleased.service MainPID)/task" -mindepth 1 -maxdepth 1 | wc -l)
holds "the daemon has $threads threads, far from its limit" test "$threads" -lt 256

section "one at a time"
before=$(inodes)
holds "a second daemon is refused" says 'already running \(pid' \
  setpriv --reuid gpulease --regid gpulease --init-groups gpuleased --config $CONFIG
holds "the sockets are the same" test "$(inodes)" == "$before"
holds "the first one serves" gpuleasectl status

section "activation"
holds "stop" systemctl stop gpuleased.service
holds "the sockets alone can be enabled" systemctl disable --no-reload gpuleased.service
systemctl enable -q gpuleased.socket
systemctl start gpuleased.socket
holds "the sockets listen, and no daemon runs" is gpuleased.service ActiveState inactive
holds "the first client waits for the daemon, and is served" gpuleasectl status
holds "the daemon runs" is gpuleased.service ActiveState active
systemctl enable -q gpuleased.service

section "restart"
before=$(inodes) pid=$(of gpuleased.service MainPID)
restart_and_call() {
  systemctl --no-block restart gpuleased.service && served_by_another_than "$pid"
}
holds "a client that calls during a restart is served" soon restart_and_call
soon is gpuleased.service ActiveState active
holds "the sockets are the same" test "$(inodes)" == "$before"
pid=$(of gpuleased.service MainPID) begun=$(milliseconds)
kill -KILL "$pid"
holds "killed, it comes back by itself" soon served_by_another_than "$pid"
holds "after $(($(milliseconds) - begun)) ms, within one second" test $(($(milliseconds) - begun)) -lt 1500
holds "with its sockets" is gpuleased.socket ActiveState active

section "stop"
keeper=$(of gpulease-keeper.service MainPID)
holds "stop means stop: the sockets are gone, and no client starts it again" pestered stopped_for_good
holds "a client is told that there is no daemon" says 'gpuleased' not gpuleasectl status
holds "the keeper stays" is gpulease-keeper.service MainPID "$keeper"
holds "started, all is there again" systemctl start gpuleased.service
holds "and serves" gpuleasectl status
holds "stopped by its sockets it goes on without them" systemctl stop gpuleased.socket
holds "and a restart brings them back" systemctl restart gpuleased.service
holds "so that it serves" gpuleasectl status

section "a configuration that is refused"
configure 'simulate: "2x16GiB"' 'no_such_option: 1'
misconfigured() {
  not systemctl restart gpuleased.service || return 1
  for _ in {1..20}; do
    is gpuleased.service ActiveState failed && is gpuleased.service ExecMainStatus 78 &&
      is gpuleased.service NRestarts 0 && is gpuleased.socket ActiveState inactive || return 1
    sleep 0.1
  done
}
holds "is not tried again, whoever connects" pestered misconfigured
holds "and is named in the journal" says 'no_such_option' journalctl -b -o cat -u gpuleased.service
configure 'simulate: "2x16GiB"'
holds "corrected, it starts" systemctl start gpuleased.service

section "devices"
# The policy is systemd's to carry out; in a container of a host with cgroup v1 it may not be able to.
allowed=$(of gpuleased.service DeviceAllow | tr '\n' ' ')
holds "the daemon may open the driver's devices alone: $allowed" is gpuleased.service DevicePolicy closed

# --- Programs of a user: one with 1,000 leases, and others that call all the time.
section "leases"
client='' client_pid='' crowd_pids=()
# start_client NAME COUNT: it is $client_pid, its input is $to and its answers come from $from.
start_client() {
  mkfifo "$scratch/$1.to" "$scratch/$1.from"
  # Some descriptors for each lease.
  (ulimit -n 16384 && exec setpriv --reuid games --regid games --clear-groups "$client" "$2") \
    <"$scratch/$1.to" >"$scratch/$1.from" 2>"$scratch/complaints" &
  client_pid=$!
  exec {to}>"$scratch/$1.to" {from}<"$scratch/$1.from"
  read -r -t 60 answer <&"$from"
  holds "$2 leases are taken and filled" test "$answer" == ready
}
end_client() {
  exec {to}>&- {from}<&-
  wait "$client_pid"
}
if command -v c++ >/dev/null && command -v pkg-config >/dev/null; then
  holds "a program builds with libgpulease-dev and pkg-config" eval \
    "c++ -std=c++20 -O1 -o $scratch/client $here/pattern_client.cc \$(pkg-config --cflags --libs gpulease) -pthread"
  if command -v cmake >/dev/null && command -v make >/dev/null; then
    cat >"$scratch/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.20)
project(user CXX)
find_package(gpulease 0.1 REQUIRED)
add_executable(client_by_cmake $here/pattern_client.cc)
target_link_libraries(client_by_cmake gpulease::client)
END
    holds "and with CMake" eval "cmake -S $scratch -B $scratch/b >/dev/null && cmake --build $scratch/b"
  fi
  client=$scratch/client
else
  echo "       no compiler here: leases are not tried"
fi
if [[ -n $client ]]; then
  chmod 755 "$client"
  start_client main 1000
  # Their complaints are in $scratch/crowd; they live as long as somebody has their input open.
  mkfifo "$scratch/crowd.to"
  exec {crowd_to}<>"$scratch/crowd.to"
  for _ in {1..4}; do
    as_user "$client" 10 <"$scratch/crowd.to" >/dev/null 2>>"$scratch/crowd" {to}>&- {from}<&- {crowd_to}>&- &
    crowd_pids+=($!)
  done
fi
# keeps WHAT: after it every byte is right, no call failed and none took longer than a second.
keeps() {
  [[ -n $client ]] || return 0
  local answer="" took
  echo >&"$to"
  read -r -t 60 answer <&"$from"
  holds "$1: $answer" test "${answer%%:*}" == ok
  [[ ${answer%%:*} == ok ]] || tail -5 "$scratch/complaints"
  took=${answer##*call }
  holds "$1: served again within a second" test "${took%% ms*}" -lt 1000
}
keeps "at rest"
if [[ -n $client ]]; then
  # daemon_anew WHAT COMMAND...: after the command another daemon serves, with everything that the last one had.
  daemon_anew() {
    local what=$1 pid
    pid=$(of gpuleased.service MainPID)
    shift
    "$@"
    holds "$what: another daemon serves" soon served_by_another_than "$pid"
    keeps "$what"
  }
  killed() { kill -KILL "$(of "$1" MainPID)"; }
  daemon_anew "systemctl restart" systemctl restart gpuleased.service
  daemon_anew "kill -9 of the daemon" killed gpuleased.service
  daemon_anew "kill -9 of the next one" killed gpuleased.service
  pid=$(of gpulease-keeper.service MainPID)
  killed gpulease-keeper.service
  another_keeper() { is gpulease-keeper.service ActiveState active && not is gpulease-keeper.service MainPID "$pid"; }
  holds "kill -9 of the keeper: another one runs" soon another_keeper
  holds "and has been told of everything" soon says ' 1[0-9]{3} entries' of gpulease-keeper.service StatusText
  keeps "kill -9 of the keeper"
  daemon_anew "kill -9 of the daemon, after that" killed gpuleased.service
  # A loop that hangs, as far as the service manager can see. (Not the shipped half a minute, to be done sooner.)
  mkdir -p /run/systemd/system/gpuleased.service.d
  printf '[Service]\nWatchdogSec=2\n' >/run/systemd/system/gpuleased.service.d/sooner.conf
  systemctl daemon-reload
  daemon_anew "restart with a watchdog of two seconds" systemctl restart gpuleased.service
  pid=$(of gpuleased.service MainPID)
  kill -STOP "$pid"
  holds "a daemon that hangs is killed by its watchdog" soon served_by_another_than "$pid"
  holds "every lease is there" test "$(echo >&"$to" && read -r -t 60 answer <&"$from" && echo "${answer%%:*}")" == ok
  rm -r /run/systemd/system/gpuleased.service.d
  systemctl daemon-reload
  daemon_anew "restart" systemctl restart gpuleased.service
fi

section "upgrade"
# The same package with a later version.
reversioned() {
  local deb name
  for deb in "$packages"/*.deb; do
    name=$(basename "$deb" .deb)
    dpkg-deb -R "$deb" "$scratch/tree" || return 1
    sed -i -E "s/0\.1\.0-[0-9]+/0.1.0-$1/" "$scratch/tree/DEBIAN/control"
    dpkg-deb -b --root-owner-group "$scratch/tree" "$scratch/$1/$name.deb" >/dev/null || return 1
    rm -rf "$scratch/tree"
  done
}
mkdir "$scratch"/{8,9}
reversioned 8 && reversioned 9
pid=$(of gpuleased.service MainPID) keeper=$(of gpulease-keeper.service MainPID) before=$(inodes)
holds "a later version installs" install_packages "$scratch/8"
holds "another daemon serves" served_by_another_than "$pid"
holds "the keeper is the same process" is gpulease-keeper.service MainPID "$keeper"
holds "executed anew" says "$(readlink -f /usr/bin/gpulease-keeper)\$" readlink "/proc/$keeper/exe"
holds "the sockets are the same" test "$(inodes)" == "$before"
holds "the configuration is as it was" says simulate cat $CONFIG
keeps "upgrade"
if [[ -n $client ]]; then
  crowd_lives() {
    local pid
    for pid in "$client_pid" "${crowd_pids[@]}"; do kill -0 "$pid" || return 1; done
  }
  holds "the programs are those that were started first" crowd_lives
  holds "and none of them has seen a call fail" not says . cat "$scratch/crowd"
  exec {crowd_to}>&-
  wait "${crowd_pids[@]}"

  section "stop of both"
  # The processes that have leased memory open or mapped.
  chunks() {
    find /proc/[0-9]*/fd /proc/[0-9]*/map_files -lname '/memfd:gpulease*' 2>/dev/null | cut -d/ -f3 | sort -u
  }
  both_stopped() {
    systemctl stop gpuleased.service gpulease-keeper.service || return 1
    for _ in {1..30}; do
      is gpuleased.service ActiveState inactive && is gpuleased.socket ActiveState inactive &&
        is gpulease-keeper.service ActiveState inactive && not pgrep -ax 'gpuleased|gpulease-keeper' || return 1
      sleep 0.1
    done
  }
  holds "leases are held, by daemon, keeper and programs" test "$(chunks | wc -l)" -ge 3
  holds "nobody starts them again, a program with leases that reconnects included" pestered both_stopped
  holds "the memory is with the program that has it mapped, and with nobody else" test "$(chunks)" == "$client_pid"
  end_client
  holds "and goes with it" test -z "$(chunks)"
  holds "started again" systemctl start gpuleased.service
  holds "there is no lease" test "$(gpuleasectl leases -o json | tr -d '[:space:]')" == '[]'
fi
systemctl stop gpuleased.service
holds "an upgrade of a daemon that is stopped" install_packages "$scratch/9"
holds "leaves it stopped" is gpuleased.service ActiveState inactive

# --- Little room, little memory. A file system of its own, for systemd needs /run as well.
if [[ -n $client ]] && systemctl stop gpuleased.service gpulease-keeper.service &&
  mount -t tmpfs -o size=256k,mode=755,uid=gpulease,gid=gpulease tmpfs $RUN; then
  section "no room in $RUN"
  fill() {
    local status=0
    head -c 1M /dev/zero >$RUN/filler 2>/dev/null
    ! printf x 2>/dev/null >$RUN/probe || status=1
    rm $RUN/probe
    return $status
  }
  fill
  systemctl start gpuleased.service 2>/dev/null
  holds "simulated GPUs that are new wait, and it is said for what" \
    soon says 'no room for the .* No space left on device' journalctl -b -n 20 -o cat -u gpuleased.service
  holds "with room it starts by itself" eval "rm $RUN/filler; soon gpuleasectl status"
  soon is gpuleased.service ActiveState active
  start_client full 100
  holds "it is full again" fill
  keeps "full"
  daemon_anew "full, systemctl restart" systemctl restart gpuleased.service
  daemon_anew "full, kill -9 of the daemon" killed gpuleased.service
  pid=$(of gpulease-keeper.service MainPID)
  killed gpulease-keeper.service
  holds "full, kill -9 of the keeper: another one runs" soon another_keeper
  holds "and has been told of everything" soon says ' 1[0-9]{2} entries' of gpulease-keeper.service StatusText
  daemon_anew "full, kill -9 of the daemon, after that" killed gpuleased.service
  rm $RUN/filler
  daemon_anew "with room again, systemctl restart" systemctl restart gpuleased.service
  end_client
  systemctl stop gpuleased.service gpulease-keeper.service
  umount $RUN
  holds "without that file system it starts" systemctl start gpuleased.service
fi

if [[ -n $client ]]; then
  section "more pinned memory than there is"
  pid=$(of gpuleased.service MainPID)
  pinned() { as_user timeout 60 "$client" --pinned "$1"; }
  holds "more than the machine has: $(pinned $((1 << 45)))" says '^refused: .*asked 32.0 TiB' pinned $((1 << 45))
  mkdir -p /run/systemd/system/gpuleased.service.d
  printf '[Service]\nMemoryMax=256M\n' >/run/systemd/system/gpuleased.service.d/limit.conf
  systemctl daemon-reload
  systemctl restart gpuleased.service
  pid=$(of gpuleased.service MainPID)
  if [[ $(of gpuleased.service MemoryCurrent) == [0-9]* ]]; then
    holds "more than MemoryMax=: $(pinned $((512 << 20)))" says '^refused: .*asked 512.0 MiB' pinned $((512 << 20))
    holds "what fits is granted" says '^granted' pinned $((64 << 20))
  else
    echo "       this systemd has no memory controller: MemoryMax= is not tried"
  fi
  holds "the daemon is the same process" is gpuleased.service MainPID "$pid"
  rm -r /run/systemd/system/gpuleased.service.d
  systemctl daemon-reload
  systemctl restart gpuleased.service
fi

section "removal"
holds "start" systemctl start gpuleased.service
holds "the package is removed" apt-get remove -q -y gpuleased
for unit in "${UNITS[@]}"; do
  holds "$unit does not run" not systemctl is-active "$unit"
done
holds "the configuration stays" test -e $CONFIG
holds "installed again, it starts" install_packages "$packages"
holds "and serves with that configuration" soon gpuleasectl status
holds "the packages are purged" \
  apt-get purge -q -y gpuleased gpuleasectl gpulease-simulated libgpulease0 libgpulease-dev
left() {
  getent passwd gpulease
  getent group gpulease
  systemctl list-unit-files --no-legend | grep gpulease
  systemctl list-units --all --no-legend --plain | grep gpulease
  pgrep -a gpulease
  find / -xdev -path /proc -prune -o -path /sys -prune -o -path "$packages" -prune -o -path "$scratch" -prune \
    -o -path "$(dirname "$(dirname "$here")")" -prune -o -path '/var/log/*' -prune -o -path '/var/cache/*' -prune \
    -o -name '*gpulease*' -print
  find /run -path /run/systemd/propagate -prune -o -name '*gpulease*' -print
}
nothing_left() { local found; found=$(left); [[ -z $found ]] || { printf '%s\n' "$found"; return 1; }; }
holds "nothing is left" nothing_left

rm -rf "$scratch"
echo "--- $seen seen, $wrong wrong"
((wrong == 0))
