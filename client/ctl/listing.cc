// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/listing.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/usage_hint.h"

namespace gpulease::ctl {
namespace {

using ctl::Word;

// An enum's value without the prefix that every value of it has, in small letters.
std::string WordOf(const std::string& name, std::string_view prefix) {
  std::string word = name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name;
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return c == '_' ? '-' : std::tolower(c); });
  return word;
}

std::string Word(v1::MemoryKind kind) { return WordOf(v1::MemoryKind_Name(kind), "MEMORY_KIND_"); }
std::string Word(v1::PageSize size) { return WordOf(v1::PageSize_Name(size), "PAGE_SIZE_"); }
std::string Word(v1::Access access) { return WordOf(v1::Access_Name(access), "ACCESS_"); }

Cell Text(std::string text, bool unusual = false) { return {std::move(text), unusual}; }
Cell Number(std::uint64_t number, bool unusual = false) { return {number, unusual}; }
Cell Signed(std::int64_t number) { return {number}; }
Cell Flag(bool flag) { return {flag}; }
Cell Rows(Table table) { return {std::make_shared<const Table>(std::move(table))}; }

// Builds a table column by column, each with the way to a row's cell.
template <typename Row>
class Builder {
 public:
  template <typename CellOf>
  Builder& Add(Column column, CellOf cell_of) {
    table_.columns.push_back(std::move(column));
    cells_.emplace_back(cell_of);
    return *this;
  }

  // The columns of the MemoryUse that `use_of` finds in a row.
  Builder& AddMemory(const v1::MemoryUse& (*use_of)(const Row&)) {
    const auto bytes = [&](const char* key, const char* heading, Show show, bool unusual,
                           std::uint64_t (v1::MemoryUse::*field)() const) {
      Add({key, heading, Unit::kBytes, show}, [use_of, field, unusual](const Row& row) {
        const std::uint64_t amount = (use_of(row).*field)();
        return Number(amount, unusual && amount > 0);
      });
    };
    using Use = v1::MemoryUse;
    bytes("total_bytes", "TOTAL", Show::kAlways, false, &Use::total_bytes);
    bytes("leased_bytes", "LEASED", Show::kAlways, false, &Use::leased_bytes);
    bytes("offered_bytes", "OFFERED", Show::kAlways, false, &Use::offered_bytes);
    bytes("releasing_bytes", "RELEASING", Show::kAlways, false, &Use::releasing_bytes);
    bytes("unconfirmed_bytes", "UNCONFIRMED", Show::kUnlessEmpty, true, &Use::unconfirmed_bytes);
    bytes("quarantined_bytes", "QUARANTINED", Show::kUnlessEmpty, true, &Use::quarantined_bytes);
    bytes("outside_bytes", "OUTSIDE", Show::kAlways, false, &Use::outside_bytes);
    bytes("free_bytes", "FREE", Show::kAlways, false, &Use::free_bytes);
    bytes("overcommitted_bytes", "OVERCOMMITTED", Show::kUnlessEmpty, true,
          &Use::overcommitted_bytes);
    Add({"lease_count", "LEASES"},
        [use_of](const Row& row) { return Number(use_of(row).lease_count()); });
    Add({"queue_length", "WAITING"},
        [use_of](const Row& row) { return Number(use_of(row).queue_length()); });
    return *this;
  }

  template <typename List>
  Table Build(const List& rows) {
    for (const Row& row : rows) {
      std::vector<Cell> cells;
      for (const auto& cell_of : cells_) cells.push_back(cell_of(row));
      table_.rows.push_back(std::move(cells));
    }
    return std::move(table_);
  }

  Table BuildRecord(const Row& row) {
    Table table = Build(std::vector<Row>{row});
    table.single = true;
    return table;
  }

 private:
  Table table_;
  std::vector<std::function<Cell(const Row&)>> cells_;
};

Table SuspectTable(const v1::Gpu& gpu) {
  using Row = v1::Suspect;
  return Builder<Row>()
      .Add({"pid", "PID", Unit::kId}, [](const Row& row) { return Signed(row.pid()); })
      .Add({"program", "PROGRAM"}, [](const Row& row) { return Text(row.program()); })
      .Add({"why", "WHY"}, [](const Row& row) { return Text(row.why()); })
      .Build(gpu.suspects());
}

Table HolderTable(const v1::Lease& lease) {
  using Row = v1::Holder;
  return Builder<Row>()
      .Add({"session_id", "SESSION"}, [](const Row& row) { return Number(row.session_id()); })
      .Add({"pid", "PID", Unit::kId}, [](const Row& row) { return Signed(row.pid()); })
      .Add({"uid", "UID"}, [](const Row& row) { return Number(row.uid()); })
      .Add({"realm", "REALM", Unit::kNone, Show::kUnlessEmpty},
           [](const Row& row) { return Text(row.realm()); })
      .Add({"program", "PROGRAM"}, [](const Row& row) { return Text(row.program()); })
      .Add({"access", "ACCESS"}, [](const Row& row) { return Text(Word(row.access())); })
      .Add({"owner", "OWNER"}, [](const Row& row) { return Flag(row.owner()); })
      .Build(lease.holders());
}

Table BlockerTable(const google::protobuf::RepeatedPtrField<v1::Blocker>& blockers) {
  using Row = v1::Blocker;
  return Builder<Row>()
      .Add({"lease_id", "LEASE", Unit::kId}, [](const Row& row) { return Number(row.lease_id()); })
      .Add({"pid", "PID", Unit::kId}, [](const Row& row) { return Signed(row.pid()); })
      .Add({"uid", "UID"}, [](const Row& row) { return Number(row.uid()); })
      .Add({"size_bytes", "SIZE", Unit::kBytes},
           [](const Row& row) { return Number(row.size_bytes()); })
      .Build(blockers);
}

Table ChunkTable(const v1::Lease& lease) {
  using Row = v1::Chunk;
  return Builder<Row>()
      .Add({"size_bytes", "SIZE", Unit::kBytes},
           [](const Row& row) { return Number(row.size_bytes()); })
      .Build(lease.chunks());
}

Cell Labels(const v1::Lease& lease) {
  return {std::map<std::string, std::string>(lease.labels().begin(), lease.labels().end())};
}

// Where a lease's memory is; for a queued one, where it shall be.
std::string Place(const v1::Lease& lease) {
  if (lease.kind() == v1::MEMORY_KIND_DEVICE)
    return (lease.gpu_uuid().empty() ? "any GPU" : ShortUuid(lease.gpu_uuid())) +
           (lease.ipc() ? " ipc" : "");
  return lease.numa_node() < 0 ? "host" : "numa" + std::to_string(lease.numa_node());
}

bool IsUnusual(v1::LeaseState state) {
  return state == v1::LEASE_STATE_REVOKING || state == v1::LEASE_STATE_UNCONFIRMED ||
         state == v1::LEASE_STATE_QUARANTINED;
}

std::string Word(v1::Residence residence) {
  if (residence == v1::RESIDENCE_UNSPECIFIED) return "resident";
  return WordOf(v1::Residence_Name(residence), "RESIDENCE_");
}

// "leased", or what it is beside that.
std::string Status(const v1::Lease& lease) {
  if (lease.state() != v1::LEASE_STATE_LEASED) return Word(lease.state());
  if (lease.orphan()) return lease.sealed() ? "orphan, sealed" : "orphan";
  switch (lease.residence()) {
    case v1::RESIDENCE_SUSPENDING:
      return "suspending";
    case v1::RESIDENCE_SUSPENDED:
      return "suspended, " + FormatBytes(lease.suspended_bytes());
    case v1::RESIDENCE_RESUMING:
      return "resuming";
    default:
      break;
  }
  if (lease.loading()) return "loading";
  if (lease.target_bytes() > lease.size_bytes()) return "growing";
  if (lease.target_bytes() != 0) return "shrinking";
  return lease.sealed() ? "sealed" : Word(lease.state());
}

// "no", "until it is released", "by 10 s", "by 10 s, 4 s left".
std::string Lifetime(const v1::Lease& lease) {
  if (lease.persistent()) return "until it is released";
  if (lease.linger_ms() == 0) return "no";
  std::string text = "by " + FormatMillis(static_cast<std::int64_t>(lease.linger_ms()));
  if (lease.ends_in_ms() > 0) text += ", " + FormatMillis(lease.ends_in_ms()) + " left";
  return text;
}

using LeaseBuilder = Builder<v1::Lease>;

// What listing and record share; the record shows more of it in text.
LeaseBuilder LeaseColumns(bool record) {
  using Row = v1::Lease;
  const auto heading = [record](const char* listing, const char* alone) {
    return std::string(record ? alone : listing);
  };
  const Show detail = record ? Show::kAlways : Show::kJsonOnly;
  LeaseBuilder builder;
  builder
      .Add({"lease_id", heading("LEASE", "lease")},
           [](const Row& row) { return Number(row.lease_id()); })
      .Add({"name", heading("NAME", "name")}, [](const Row& row) { return Text(row.name()); })
      .Add({"owner", heading("OWNER", "owner"), record ? Unit::kNone : Unit::kShortUser},
           [](const Row& row) { return Text(row.owner()); })
      .Add({"state", "state", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Text(Word(row.state())); })
      .Add({"", heading("STATE", "state"), Unit::kNone, Show::kTextOnly},
           [](const Row& row) { return Text(Status(row), IsUnusual(row.state())); })
      .Add({"queue_position", heading("PLACE", "place in queue"), Unit::kNone, Show::kUnlessEmpty},
           [](const Row& row) { return Number(row.queue_position()); })
      .Add({"size_bytes", heading("SIZE", "size"), Unit::kBytes},
           [](const Row& row) { return Number(row.size_bytes()); })
      .Add({"requested_bytes", "asked for", Unit::kBytes, detail},
           [](const Row& row) { return Number(row.requested_bytes()); })
      .Add({"target_bytes", "changes to", Unit::kBytes,
            record ? Show::kUnlessEmpty : Show::kJsonOnly},
           [](const Row& row) { return Number(row.target_bytes()); })
      .Add({"reserved_bytes", "may grow to", Unit::kBytes,
            record ? Show::kUnlessEmpty : Show::kJsonOnly},
           [](const Row& row) { return Number(row.reserved_bytes()); })
      .Add({"residence", "residence", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Text(Word(row.residence())); })
      .Add({"suspended_bytes", "needs again", Unit::kBytes,
            record ? Show::kUnlessEmpty : Show::kJsonOnly},
           [](const Row& row) { return Number(row.suspended_bytes()); })
      .Add({"", heading("WHERE", "where"), Unit::kNone, Show::kTextOnly},
           [](const Row& row) { return Text(Place(row)); })
      .Add({"kind", "kind", Unit::kNone, detail},
           [](const Row& row) { return Text(Word(row.kind())); })
      .Add({"gpu_uuid", "GPU", Unit::kNone, record ? Show::kUnlessEmpty : Show::kJsonOnly},
           [](const Row& row) { return Text(row.gpu_uuid()); })
      .Add({"numa_node", "NUMA node", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Signed(row.numa_node()); })
      .Add({"page_size", "page size", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Text(Word(row.page_size())); })
      .Add({"alignment_bytes", "alignment", Unit::kBytes, detail},
           [](const Row& row) { return Number(row.alignment_bytes()); })
      .Add({"mode", "mode", Unit::kMode, detail}, [](const Row& row) { return Number(row.mode()); })
      .Add({"uid", "uid", Unit::kNone, detail}, [](const Row& row) { return Number(row.uid()); })
      .Add({"gid", "gid", Unit::kNone, detail}, [](const Row& row) { return Number(row.gid()); })
      .Add({"realm", "realm", Unit::kNone, record ? Show::kUnlessEmpty : Show::kJsonOnly},
           [](const Row& row) { return Text(row.realm()); })
      .Add({"tenant", "tenant", Unit::kNone, detail},
           [](const Row& row) { return Text(row.tenant()); })
      .Add({"generation", "generation", Unit::kNone, detail},
           [](const Row& row) { return Number(row.generation()); })
      .Add({"persistent", "persistent", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Flag(row.persistent()); })
      .Add({"linger_ms", "linger", Unit::kMillis, Show::kJsonOnly},
           [](const Row& row) { return Number(row.linger_ms()); })
      .Add({"ends_in_ms", "ends in", Unit::kMillis, Show::kJsonOnly},
           [](const Row& row) { return Signed(row.ends_in_ms()); })
      .Add({"has_directory", "directory", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Flag(row.has_directory()); })
      .Add({"orphan", "orphan", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Flag(row.orphan()); })
      .Add({"loading", "loading", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Flag(row.loading()); })
      .Add({"sealed", "sealed", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Flag(row.sealed()); })
      .Add({"content_tag", "contents", Unit::kNone, record ? Show::kUnlessEmpty : Show::kJsonOnly},
           [](const Row& row) { return Text(row.content_tag()); })
      .Add({"labels", "labels", Unit::kNone, record ? Show::kUnlessEmpty : Show::kJsonOnly},
           [](const Row& row) { return Labels(row); })
      .Add({"death_notice", "death notice", Unit::kNone,
            record ? Show::kUnlessEmpty : Show::kJsonOnly},
           [](const Row& row) { return Flag(row.death_notice()); })
      .Add({"ipc", "IPC handle, importers untracked", Unit::kNone,
            record ? Show::kUnlessEmpty : Show::kJsonOnly},
           [](const Row& row) { return Flag(row.ipc()); })
      .Add({"chunks", "chunks", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Rows(ChunkTable(row)); });
  if (record)
    builder.Add({"", "outlives its owner", Unit::kNone, Show::kTextOnly},
                [](const Row& row) { return Text(Lifetime(row)); });
  if (record)
    builder.Add({"", "chunks", Unit::kNone, Show::kTextOnly}, [](const Row& row) {
      return Number(static_cast<std::uint64_t>(row.chunks_size()));
    });
  const auto age = [](const Row& row) { return Signed(row.age_ms()); };
  const auto holders = [](const Row& row) { return Rows(HolderTable(row)); };
  if (record) builder.Add({"age_ms", "age", Unit::kMillis}, age);
  builder.Add({"holders", heading("HOLDERS", "held by"), Unit::kNone,
               record ? Show::kUnlessEmpty : Show::kAlways},
              holders);
  if (!record) builder.Add({"age_ms", "AGE", Unit::kMillis}, age);
  builder.Add({"blockers", "waits for memory of", Unit::kNone,
               record ? Show::kUnlessEmpty : Show::kJsonOnly},
              [](const Row& row) { return Rows(BlockerTable(row.blockers())); });
  return builder;
}

}  // namespace

std::string Word(v1::GpuState state) { return WordOf(v1::GpuState_Name(state), "GPU_STATE_"); }

std::string Word(v1::LeaseState state) {
  return WordOf(v1::LeaseState_Name(state), "LEASE_STATE_");
}

std::string Describe(const v1::Lease& lease) {
  std::string text = "lease " + std::to_string(lease.lease_id());
  if (!lease.name().empty()) text += " (" + Printable(lease.name()) + ")";
  return text + " of " + Printable(lease.owner()) + ", " + FormatBytes(lease.size_bytes()) +
         (lease.state() == v1::LEASE_STATE_QUEUED ? ", queued for " : " on ") + Place(lease);
}

Table GpuTable(const v1::GetNodeResponse& node, bool brief) {
  using Row = v1::Gpu;
  Builder<Row> builder;
  builder
      .Add({"uuid", "GPU", brief ? Unit::kShortUuid : Unit::kNone},
           [](const Row& row) { return Text(row.uuid()); })
      .Add({"name", "NAME"}, [](const Row& row) { return Text(row.name()); })
      .Add({"state", "STATE"},
           [](const Row& row) {
             return Text(Word(row.state()), row.state() != v1::GPU_STATE_READY);
           })
      .Add({"message", "", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Text(row.message()); })
      .AddMemory([](const Row& row) -> const v1::MemoryUse& { return row.memory(); })
      .Add({"utilization_percent", "BUSY %", Unit::kNone, brief ? Show::kJsonOnly : Show::kAlways},
           [](const Row& row) { return Signed(row.utilization_percent()); })
      .Add({"numa_node", "NUMA", Unit::kNone, brief ? Show::kJsonOnly : Show::kAlways},
           [](const Row& row) { return Signed(row.numa_node()); })
      .Add({"pci_bus_id", "PCI", Unit::kNone, brief ? Show::kJsonOnly : Show::kAlways},
           [](const Row& row) { return Text(row.pci_bus_id()); });
  const auto capability = [&](const char* key, auto cell_of) {
    builder.Add({key, "", Unit::kNone, Show::kJsonOnly},
                [cell_of](const Row& row) { return cell_of(row.capabilities()); });
  };
  using Capabilities = v1::GpuCapabilities;
  capability("virtual_memory", [](const Capabilities& c) { return Flag(c.virtual_memory()); });
  capability("unified_addressing",
             [](const Capabilities& c) { return Flag(c.unified_addressing()); });
  capability("posix_fd_export", [](const Capabilities& c) { return Flag(c.posix_fd_export()); });
  capability("peer_uuids", [](const Capabilities& c) {
    return Cell{std::vector<std::string>(c.peer_uuids().begin(), c.peer_uuids().end())};
  });
  capability("compute_mode", [](const Capabilities& c) { return Text(c.compute_mode()); });
  capability("compute_capability_major",
             [](const Capabilities& c) { return Signed(c.compute_capability_major()); });
  capability("compute_capability_minor",
             [](const Capabilities& c) { return Signed(c.compute_capability_minor()); });
  capability("granularity_bytes",
             [](const Capabilities& c) { return Number(c.granularity_bytes()); });
  builder.Add({"suspects", "SUSPECTS", Unit::kNone, Show::kJsonOnly},
              [](const Row& row) { return Rows(SuspectTable(row)); });
  return builder.Build(node.gpus());
}

Table HostTable(const v1::GetNodeResponse& node) {
  using Row = v1::HostMemory;
  return Builder<Row>()
      .Add({"numa_node", "NUMA NODE"}, [](const Row& row) { return Signed(row.numa_node()); })
      .AddMemory([](const Row& row) -> const v1::MemoryUse& { return row.memory(); })
      .Add({"huge_page_free_bytes", "FREE HUGE PAGES", Unit::kBytes, Show::kUnlessEmpty},
           [](const Row& row) { return Number(row.huge_page_free_bytes()); })
      .Build(node.host());
}

Table BudgetTable(const v1::GetBudgetResponse& budget) {
  using Row = v1::Budget;
  return Builder<Row>()
      .Add({"", "WHERE", Unit::kNone, Show::kTextOnly},
           [](const Row& row) {
             return Text(row.kind() == v1::MEMORY_KIND_DEVICE
                             ? ShortUuid(row.gpu_uuid())
                             : "NUMA node " + std::to_string(row.numa_node()));
           })
      .Add({"kind", "kind", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Text(Word(row.kind())); })
      .Add({"gpu_uuid", "GPU", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Text(row.gpu_uuid()); })
      .Add({"numa_node", "NUMA node", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Signed(row.numa_node()); })
      .Add({"leasable_bytes", "LEASABLE NOW", Unit::kBytes},
           [](const Row& row) { return Number(row.leasable_bytes()); })
      .Add({"mine_bytes", "MINE", Unit::kBytes},
           [](const Row& row) { return Number(row.mine_bytes()); })
      .Add({"tenant_left_bytes", "LEFT OF LIMIT", Unit::kLimit},
           [](const Row& row) {
             return Number(row.tenant_left_bytes() == ~std::uint64_t{0} ? 0
                                                                        : row.tenant_left_bytes());
           })
      .Add({"free_bytes", "FREE", Unit::kBytes},
           [](const Row& row) { return Number(row.free_bytes()); })
      .Add({"waiting", "WAITING"}, [](const Row& row) { return Number(row.waiting()); })
      .Add({"message", "NOTHING NOW SINCE", Unit::kNone, Show::kUnlessEmpty},
           [](const Row& row) { return Text(row.message()); })
      .Add({"holders", "WHAT WOULD MAKE ROOM", Unit::kNone, Show::kUnlessEmpty},
           [](const Row& row) { return Rows(BlockerTable(row.holders())); })
      .Build(budget.budgets());
}

Table AdviceTable(std::string_view name) {
  using Row = UsageAdvice;
  std::vector<UsageAdvice> rows;
  for (const UsageAdvice& advice : kUsageAdvice) {
    if (name.empty() || advice.name == name) rows.push_back(advice);
  }
  const auto text = [](std::string_view word) { return Text(std::string(word)); };
  return Builder<Row>()
      .Add({"usage", "USAGE"}, [&](const Row& row) { return text(row.name); })
      .Add({"purpose", "FOR WHAT"}, [&](const Row& row) { return text(row.purpose); })
      .Add({"kind", "MEMORY"}, [&](const Row& row) { return text(row.host ? "host" : "device"); })
      .Add({"page_size", "PAGES"},
           [&](const Row& row) {
             return text(row.pages == UsageAdvice::Pages::kAuto    ? "huge where there are some"
                         : row.pages == UsageAdvice::Pages::kSmall ? "small"
                                                                   : "2 MiB");
           })
      .Add({"placement", "WHERE"}, [&](const Row& row) { return text(row.placement); })
      .Add({"reason", "SINCE"}, [&](const Row& row) { return text(row.reason); })
      .Build(rows);
}

Table TenantTable(const v1::GetNodeResponse& node) {
  using Row = v1::Tenant;
  return Builder<Row>()
      .Add({"name", "TENANT", Unit::kShortUser}, [](const Row& row) { return Text(row.name()); })
      .Add({"device_bytes", "GPU MEMORY", Unit::kBytes},
           [](const Row& row) { return Number(row.device_bytes()); })
      .Add({"device_limit_bytes", "LIMIT", Unit::kLimit},
           [](const Row& row) { return Number(row.device_limit_bytes()); })
      .Add({"host_bytes", "HOST MEMORY", Unit::kBytes},
           [](const Row& row) { return Number(row.host_bytes()); })
      .Add({"host_limit_bytes", "LIMIT", Unit::kLimit},
           [](const Row& row) { return Number(row.host_limit_bytes()); })
      .Add({"lease_count", "LEASES"}, [](const Row& row) { return Number(row.lease_count()); })
      .Add({"session_count", "SESSIONS"},
           [](const Row& row) { return Number(row.session_count()); })
      .Build(node.tenants());
}

Table LeaseTable(const std::vector<v1::Lease>& leases) {
  return LeaseColumns(/*record=*/false).Build(leases);
}

Table LeaseRecord(const v1::Lease& lease) {
  return LeaseColumns(/*record=*/true).BuildRecord(lease);
}

Table SessionTable(const std::vector<v1::Session>& sessions) {
  using Row = v1::Session;
  return Builder<Row>()
      .Add({"session_id", "SESSION"}, [](const Row& row) { return Number(row.session_id()); })
      .Add({"pid", "PID", Unit::kId}, [](const Row& row) { return Signed(row.pid()); })
      .Add({"user", "USER", Unit::kShortUser}, [](const Row& row) { return Text(row.user()); })
      .Add({"uid", "", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Number(row.uid()); })
      .Add({"gid", "", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Number(row.gid()); })
      .Add({"realm", "", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Text(row.realm()); })
      .Add({"program", "PROGRAM"}, [](const Row& row) { return Text(row.program()); })
      .Add({"client_version", "", Unit::kNone, Show::kJsonOnly},
           [](const Row& row) { return Text(row.client_version()); })
      .Add({"tenant", "TENANT", Unit::kShortUser},
           [](const Row& row) { return Text(row.tenant()); })
      .Add({"lease_count", "OWNS"}, [](const Row& row) { return Number(row.lease_count()); })
      .Add({"open_count", "OPEN"}, [](const Row& row) { return Number(row.open_count()); })
      .Add({"device_bytes", "GPU MEMORY", Unit::kBytes},
           [](const Row& row) { return Number(row.device_bytes()); })
      .Add({"host_bytes", "HOST MEMORY", Unit::kBytes},
           [](const Row& row) { return Number(row.host_bytes()); })
      .Add({"age_ms", "AGE", Unit::kMillis}, [](const Row& row) { return Signed(row.age_ms()); })
      .Add({"connected", "CONNECTED"},
           [](const Row& row) {
             return Cell{row.connected(), !row.connected()};
           })
      .Build(sessions);
}

Table NodeRecord(const v1::GetNodeResponse& node) {
  using Row = v1::GetNodeResponse;
  return Builder<Row>()
      .Add({"version", ""}, [](const Row& row) { return Text(row.version()); })
      .Add({"instance", ""}, [](const Row& row) { return Text(row.instance()); })
      .Add({"uptime_ms", ""}, [](const Row& row) { return Signed(row.uptime_ms()); })
      .Add({"simulated", ""}, [](const Row& row) { return Flag(row.simulated()); })
      .Add({"driver_version", ""}, [](const Row& row) { return Text(row.driver_version()); })
      .Add({"message", ""}, [](const Row& row) { return Text(row.message()); })
      .Add({"session_count", ""}, [](const Row& row) { return Number(row.session_count()); })
      .Add({"lease_count", ""}, [](const Row& row) { return Number(row.lease_count()); })
      .Add({"descriptors_used", ""}, [](const Row& row) { return Number(row.descriptors_used()); })
      .Add({"descriptors_limit", ""},
           [](const Row& row) { return Number(row.descriptors_limit()); })
      .Add({"resident_bytes", ""}, [](const Row& row) { return Number(row.resident_bytes()); })
      .Add({"keeper_connected", ""}, [](const Row& row) { return Flag(row.keeper().connected()); })
      .Add({"keeper_set_aside", ""},
           [](const Row& row) { return Number(row.keeper().set_aside()); })
      .Add({"gpus", ""}, [](const Row& row) { return Rows(GpuTable(row, false)); })
      .Add({"host", ""}, [](const Row& row) { return Rows(HostTable(row)); })
      .Add({"tenants", ""}, [](const Row& row) { return Rows(TenantTable(row)); })
      .BuildRecord(node);
}

Table ReleaseRecord(const v1::Lease& lease, const v1::ReleaseResponse& released, bool dry_run) {
  using Row = v1::ReleaseResponse;
  return Builder<Row>()
      .Add({"lease_id", "lease"}, [&](const Row&) { return Number(lease.lease_id()); })
      .Add({"name", "name"}, [&](const Row&) { return Text(lease.name()); })
      .Add({"size_bytes", "size", Unit::kBytes},
           [&](const Row&) { return Number(lease.size_bytes()); })
      .Add({"state", "state"}, [](const Row& row) { return Text(Word(row.state())); })
      .Add({"holders", "held by"}, [](const Row& row) { return Number(row.holders()); })
      .Add({"dry_run", "dry run", Unit::kNone, Show::kUnlessEmpty},
           [&](const Row&) { return Flag(dry_run); })
      .BuildRecord(released);
}

}  // namespace gpulease::ctl
