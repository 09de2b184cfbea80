// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "daemon/peers/reception.h"
#include "daemon/startup/descriptor_budget.h"
#include "daemon/startup/membership.h"
#include "daemon/startup/reload.h"
#include "gpulease/v1/config.pb.h"

namespace gpulease::startup {
namespace {

TEST(DescriptorBudgetTest, TheSharesNeverExceedTheLimit) {
  for (std::uint32_t limit = 256; limit < 3'000'000; limit += limit / 7) {
    const DescriptorBudget budget = Divide(limit);
    const std::uint64_t taken =
        std::uint64_t{budget.connections} * peers::Reception::kDescriptorsPerConnection +
        budget.chunks;
    EXPECT_LE(taken + 64, limit) << limit;
    EXPECT_GT(budget.connections, 0u) << limit;
    EXPECT_GT(budget.chunks, limit / 4) << limit;
    EXPECT_EQ(budget.limit, limit);
  }
}

peers::Peer PeerOf(std::uint32_t uid, std::uint32_t gid, std::vector<std::uint32_t> groups = {},
                   std::string cgroup = "") {
  peers::Peer peer;
  peer.user.uid = uid;
  peer.user.gid = gid;
  peer.user.groups = std::move(groups);
  peer.cgroup = std::move(cgroup);
  return peer;
}

peers::Peer RootOf(const std::string& container) {
  peers::Peer peer = PeerOf(0, 0, {0});
  peer.cgroup = container;
  peer.user.realm = container;
  peer.user.root = container.empty();
  return peer;
}

TEST(MembershipTest, TheFirstTenantWhoseConditionsAllHoldPays) {
  settings::Settings settings;
  settings.tenants = {
      {.name = "both", .uid = 4700007, .gid = 100, .cgroup_prefix = ""},
      {.name = "group", .uid = {}, .gid = 100, .cgroup_prefix = "", .device_limit = kGiB},
      {.name = "pods", .uid = {}, .gid = {}, .cgroup_prefix = "/pods/a"},
  };
  // Users without a name are called by their number.
  const Result<Membership> membership = Membership::Make(settings);
  ASSERT_TRUE(membership.ok());
  const auto tenant = [&](const peers::Peer& peer) { return membership->TenantOf(peer).name; };
  EXPECT_EQ(tenant(PeerOf(4700007, 100)), "both");
  EXPECT_EQ(tenant(PeerOf(4700008, 100)), "group");
  EXPECT_EQ(tenant(PeerOf(4700008, 1, {5, 100})), "group") << "supplementary groups count";
  EXPECT_EQ(tenant(PeerOf(4700008, 1, {}, "/pods/a")), "pods");
  EXPECT_EQ(tenant(PeerOf(4700008, 1, {}, "/pods/a/b")), "pods");
  EXPECT_EQ(tenant(PeerOf(4700008, 1, {}, "/pods/ab")), "user:4700008")
      << "a prefix ends at a slash";
  EXPECT_EQ(tenant(PeerOf(4700007, 1)), "user:4700007");
  EXPECT_EQ(membership->TenantOf(PeerOf(4700008, 100)).device_limit, kGiB);
}

TEST(MembershipTest, RootAndTheAdministratorsGroupAdminister) {
  const Result<Membership> none = Membership::Make({});
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->IsAdministrator(RootOf("").user));
  EXPECT_FALSE(none->IsAdministrator(PeerOf(0, 5).user)) << "a number is not enough";
  EXPECT_FALSE(none->IsAdministrator(PeerOf(5, 0, {0}).user)) << "root's group is not root";
  settings::Settings settings;
  settings.admin_group = "root";
  const Result<Membership> group = Membership::Make(settings);
  ASSERT_TRUE(group.ok());
  EXPECT_TRUE(group->IsAdministrator(PeerOf(5, 5, {0}).user));
  EXPECT_FALSE(group->IsAdministrator(PeerOf(5, 5).user));
  EXPECT_FALSE(group->IsAdministrator(RootOf("/docker/a").user))
      << "a container has its own groups";
  settings.admin_group = "no-such-group";
  EXPECT_FALSE(Membership::Make(settings).ok());
}

TEST(MembershipTest, TheOperatorsGroupSeesAndDoesNotAdminister) {
  settings::Settings settings;
  settings.operator_group = "root";
  const Result<Membership> membership = Membership::Make(settings);
  ASSERT_TRUE(membership.ok());
  EXPECT_TRUE(membership->IsObserver(PeerOf(5, 5, {0}).user));
  EXPECT_FALSE(membership->IsAdministrator(PeerOf(5, 5, {0}).user));
  EXPECT_FALSE(membership->IsObserver(PeerOf(5, 5).user));
  EXPECT_FALSE(membership->IsObserver(RootOf("/docker/a").user));
  EXPECT_TRUE(membership->IsObserver(RootOf("").user)) << "who administers sees, too";
  settings.operator_group = "no-such-group";
  EXPECT_FALSE(Membership::Make(settings).ok());
}

TEST(MembershipTest, AContainersUsersAreItsOwnUnlessARealmSaysOtherwise) {
  settings::Settings settings;
  settings.realms = {{"team", "/pods/a"}, {"", "/user.slice"}};
  settings.tenants = {{.name = "zero", .uid = 0, .gid = {}, .cgroup_prefix = ""},
                      {.name = "pods", .uid = {}, .gid = {}, .cgroup_prefix = "/pods"}};
  const Result<Membership> membership = Membership::Make(settings);
  ASSERT_TRUE(membership.ok());
  const auto placed = [&](const std::string& container) {
    peers::Peer peer = RootOf(container);
    membership->Place(peer);
    return peer;
  };
  EXPECT_EQ(placed("/pods/a/1").user.realm, "team");
  EXPECT_EQ(placed("/pods/ab").user.realm, "/pods/ab");
  EXPECT_EQ(placed("/user.slice/user-7.slice").user.realm, "");
  EXPECT_EQ(placed("?17").user.realm, "?17");
  EXPECT_FALSE(membership->IsAdministrator(placed("/user.slice/user-7.slice").user));
  // A container's root may take any number: tenants know containers by their cgroup.
  EXPECT_EQ(membership->TenantOf(RootOf("")).name, "zero");
  EXPECT_EQ(membership->TenantOf(placed("/pods/ab")).name, "pods");
  EXPECT_EQ(membership->TenantOf(placed("/x")).name, "user:root@/x");
  EXPECT_EQ(membership->TenantOf(placed("?17")).name, "user:root@?");
}

TEST(MembershipTest, OneRealmMayBeAllContainers) {
  settings::Settings settings;
  settings.realms = {{"all", "/"}};
  const Result<Membership> membership = Membership::Make(settings);
  ASSERT_TRUE(membership.ok());
  for (const char* container : {"/docker/a", "?17"}) {
    peers::Peer peer = RootOf(container);
    membership->Place(peer);
    EXPECT_EQ(peer.user.realm, "all");
  }
  peers::Peer host = RootOf("");
  membership->Place(host);
  EXPECT_EQ(host.user.realm, "");
}

TEST(ReloadTest, EveryOptionChangesNowOrAtTheNextStart) {
  settings::Settings before, after;
  EXPECT_TRUE(Compare(before, after).now.empty());
  EXPECT_TRUE(Compare(before, after).next.empty());
  const Result<settings::Settings> all = settings::ParseSettings(
      "simulate: \"1x1GiB\" socket_group: \"a\" admin_group: \"a\" device_headroom: \"1GiB\" "
      "host_memory_percent: 1 largest_chunk: \"2MiB\" sessions_per_user: 1 leases_per_user: 1 "
      "waits_per_user: 1 session_grace_ms: 1 release_bound_ms: 1 driver_retry_ms: 1 "
      "populate_threads: 1 log_level: \"error\" tenants { name: \"a\" uid: 1 } "
      "expected_gpus: \"GPU-00000000-1111-2222-3333-444444444444\" expected_gpu_count: 1 "
      "gpu_wait_ms: 1 operator_group: \"a\" label_bytes_per_user: \"1B\" "
      "realms { cgroup_prefix: \"/\" } fatal_xids: 1 lasting_bytes_per_user: \"1B\" "
      "longest_linger_ms: 1",
      "x");
  ASSERT_TRUE(all.ok()) << all.error().message;
  const Difference difference = Compare(before, *all);
  EXPECT_EQ(difference.now.size() + difference.next.size(),
            static_cast<std::size_t>(v1::Config::descriptor()->field_count()));
}

}  // namespace
}  // namespace gpulease::startup
