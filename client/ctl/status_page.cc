// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/status_page.h"

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "client/ctl/listing.h"

namespace gpulease::ctl {
namespace {

std::string Count(std::size_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string Amounts(Bytes device, Bytes host) {
  return FormatBytes(device) + " of GPU memory, " + FormatBytes(host) + " of host memory";
}

// What an administrator should look at, a line each.
std::vector<std::string> Warnings(const v1::GetNodeResponse& node) {
  std::vector<std::string> lines;
  if (!node.message().empty()) lines.push_back("nobody is served: " + node.message());
  if (node.gpus().empty() && node.message().empty())
    lines.push_back("no GPU is there to lease memory of");
  for (const v1::Gpu& gpu : node.gpus()) {
    const std::string name = gpu.uuid().empty() ? "a GPU" : ShortUuid(gpu.uuid());
    if (gpu.state() != v1::GPU_STATE_READY)
      lines.push_back(name + " is " + Word(gpu.state()) +
                      (gpu.message().empty() ? "" : ": " + gpu.message()));
    const auto amount = [&](Bytes bytes, const char* what) {
      if (bytes > 0) lines.push_back(name + ": " + FormatBytes(bytes) + " " + what);
    };
    amount(gpu.memory().unconfirmed_bytes(),
           "were released and do not show as free: a process still has them mapped");
    amount(gpu.memory().quarantined_bytes(),
           "are quarantined: their rights ended while a living process may map them");
    amount(gpu.memory().overcommitted_bytes(), "more are taken than there are");
    for (const v1::Suspect& suspect : gpu.suspects())
      lines.push_back(name + ": pid " + std::to_string(suspect.pid()) + " (" + suspect.program() +
                      ") may keep them: " + suspect.why());
  }
  if (node.has_keeper() && !node.keeper().connected())
    lines.push_back(
        "no keeper is connected: when gpuleased ends, so does every lease; start gpulease-keeper");
  if (node.keeper().set_aside() > 0)
    lines.push_back(
        Count(node.keeper().set_aside(), "entry", "entries") +
        " of the keeper could not be taken up (see the daemon's log); their memory is kept "
        "and leased to nobody until gpulease-keeper is restarted");
  if (std::uint64_t{node.descriptors_used()} * 10 >= std::uint64_t{node.descriptors_limit()} * 9 &&
      node.descriptors_limit() > 0)
    lines.push_back("descriptors run short: raise LimitNOFILE of gpuleased");
  return lines;
}

}  // namespace

void PrintStatus(const v1::GetNodeResponse& node, const TextStyle& style, std::ostream& out) {
  out << "gpuleased " << Printable(node.version()) << (node.simulated() ? ", simulated GPUs" : "")
      << ", up " << FormatMillis(node.uptime_ms());
  if (!node.driver_version().empty()) out << ", driver " << Printable(node.driver_version());
  out << ", instance " << Printable(node.instance()) << "\n"
      << Count(node.session_count(), "session", "sessions") << ", "
      << Count(node.lease_count(), "lease", "leases") << ", " << node.descriptors_used() << " of "
      << node.descriptors_limit() << " descriptors, " << FormatBytes(node.resident_bytes())
      << " resident\n";
  for (const Table& table : {GpuTable(node, true), HostTable(node), TenantTable(node)}) {
    if (table.rows.empty()) continue;
    out << "\n";
    PrintText(table, style, out);
  }
  const std::vector<std::string> warnings = Warnings(node);
  if (!warnings.empty()) out << "\n";
  for (const std::string& line : warnings)
    out << Emphasised("! " + Printable(line), style.colour) << "\n";
}

std::string GpuTotals(const v1::GetNodeResponse& node) {
  Bytes leased = 0;
  Bytes free = 0;
  Bytes total = 0;
  for (const v1::Gpu& gpu : node.gpus()) {
    leased += gpu.memory().leased_bytes();
    free += gpu.memory().free_bytes();
    total += gpu.memory().total_bytes();
  }
  return Count(static_cast<std::size_t>(node.gpus_size()), "GPU", "GPUs") + ": " +
         FormatBytes(leased) + " leased, " + FormatBytes(free) + " free of " + FormatBytes(total);
}

std::string LeaseTotals(const std::vector<v1::Lease>& leases) {
  Bytes device = 0;
  Bytes host = 0;
  std::size_t queued = 0;
  for (const v1::Lease& lease : leases) {
    if (lease.state() == v1::LEASE_STATE_QUEUED)
      ++queued;
    else
      (lease.kind() == v1::MEMORY_KIND_DEVICE ? device : host) += lease.size_bytes();
  }
  std::string text = Count(leases.size(), "lease", "leases") + ": " + Amounts(device, host);
  if (queued > 0) text += ", " + std::to_string(queued) + " queued";
  return text;
}

std::string SessionTotals(const std::vector<v1::Session>& sessions) {
  Bytes device = 0;
  Bytes host = 0;
  for (const v1::Session& session : sessions) {
    device += session.device_bytes();
    host += session.host_bytes();
  }
  return Count(sessions.size(), "session", "sessions") + ": " + Amounts(device, host);
}

}  // namespace gpulease::ctl
