// SPDX-License-Identifier: Apache-2.0
//
// What gpuleasectl prints and how it ends, run as the program that users run.
//
// What it prints is compared with files beside this one. When a change of them is meant:
//   GPULEASE_UPDATE_GOLDEN=1 ./dev test -R ctl_golden
// writes them anew; look at the difference before you commit it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/golden/fake_node.h"

extern char** environ;

namespace gpulease::golden {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Ended {
  int exit_code = -1;
  std::string out;
  std::string messages;
};

class CtlGoldenTest : public ::testing::Test {
 protected:
  CtlGoldenTest() {
    std::string name = "/tmp/gpulease-golden-XXXXXX";
    directory_ = ::mkdtemp(name.data());
  }
  ~CtlGoldenTest() override { std::filesystem::remove_all(directory_); }

  void Serve(bool idle = false) { node_ = std::make_unique<FakeNode>(directory_, idle); }

  // Runs gpuleasectl with nothing at its standard input, against the fake node.
  Ended Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"gpuleasectl", "--runtime-dir", directory_});
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string out = directory_ + "/out";
    const std::string messages = directory_ + "/messages";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    const int write_anew = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), write_anew, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, messages.c_str(), write_anew, 0600);
    const std::string program = FromEnvironment("GPULEASE_BUILD_DIR") + "/bin/gpuleasectl";
    pid_t pid = 0;
    const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    EXPECT_EQ(error, 0) << program;
    Ended ended;
    int status = 0;
    if (error != 0 || ::waitpid(pid, &status, 0) != pid) return ended;
    ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    ended.out = ReadFile(out);
    ended.messages = ReadFile(messages);
    return ended;
  }

  // Holds `text` against the golden file.
  static void ExpectGolden(const std::string& text, const std::string& file) {
    const std::filesystem::path path =
        std::filesystem::path(FromEnvironment("GPULEASE_SOURCE_DIR")) / file;
    if (!FromEnvironment("GPULEASE_UPDATE_GOLDEN").empty()) std::ofstream(path) << text;
    EXPECT_EQ(text, ReadFile(path)) << "see GPULEASE_UPDATE_GOLDEN at the top of this test";
  }

  void ExpectPrints(const std::vector<std::string>& arguments, const std::string& file) {
    const Ended ended = Ctl(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.messages;
    EXPECT_THAT(ended.messages, IsEmpty());
    ExpectGolden(ended.out, "tests/golden/" + file);
  }

  std::string directory_;
  std::unique_ptr<FakeNode> node_;
};

TEST_F(CtlGoldenTest, PrintsTablesForPeople) {
  Serve();
  ExpectPrints({}, "status.txt");
  ExpectPrints({"gpus"}, "gpus.txt");
  ExpectPrints({"leases"}, "leases.txt");
  ExpectPrints({"leases", "--no-headers"}, "leases_no_headers.txt");
  ExpectPrints({"sessions"}, "sessions.txt");
  ExpectPrints({"show", "alice/weights"}, "show_shared.txt");
  ExpectPrints({"show", "19"}, "show_queued.txt");
  ExpectPrints({"show", "20"}, "show_orphan.txt");
  ExpectPrints({"show", "21"}, "show_ipc.txt");
  ExpectPrints({"show", "22"}, "show_growing.txt");
  ExpectPrints({"show", "23"}, "show_suspended.txt");
  ExpectPrints({"leases", "--orphans"}, "leases_orphans.txt");
  ExpectPrints({"budget"}, "budget.txt");
  ExpectPrints({"advise"}, "advise.txt");
}

TEST_F(CtlGoldenTest, PrintsJsonForPrograms) {
  Serve();
  ExpectPrints({"-o", "json"}, "status_json.txt");
  ExpectPrints({"gpus", "-o", "json"}, "gpus_json.txt");
  ExpectPrints({"leases", "-o", "json"}, "leases_json.txt");
  ExpectPrints({"leases", "-o", "jsonl"}, "leases_jsonl.txt");
  ExpectPrints({"sessions", "-o", "json"}, "sessions_json.txt");
  ExpectPrints({"budget", "-o", "json"}, "budget_json.txt");
  ExpectPrints({"advise", "staging", "-o", "json"}, "advise_json.txt");
  ExpectPrints({"show", "alice/weights", "-o", "json"}, "show_shared_json.txt");
}

TEST_F(CtlGoldenTest, PrintsAnIdleNode) {
  Serve(/*idle=*/true);
  ExpectPrints({"status"}, "idle_status.txt");
  ExpectPrints({"leases"}, "idle_leases.txt");
  EXPECT_EQ(Ctl({"leases", "-o", "json"}).out, "[]\n");
  EXPECT_EQ(Ctl({"leases", "-o", "jsonl"}).out, "");
}

TEST_F(CtlGoldenTest, DescribesItself) {
  ExpectPrints({"--help"}, "help.txt");
  ExpectPrints({"release", "--help"}, "help_release.txt");
  ExpectPrints({"completion", "bash"}, "completion_bash.txt");
  ExpectGolden(Ctl({"man"}).out, "docs/man/gpuleasectl.1");
}

TEST_F(CtlGoldenTest, JsonHasEveryFieldOfALease) {
  Serve();
  google::protobuf::Struct json;
  const Ended ended = Ctl({"show", "17", "-o", "json"});
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(ended.out, &json).ok()) << ended.out;
  const google::protobuf::Descriptor& lease = *v1::Lease::descriptor();
  std::size_t shown = 0;
  for (int i = 0; i < lease.field_count(); ++i) {
    const std::string name(lease.field(i)->name());
    // Who only looks is not told how to write to it.
    if (name == "ipc_handle" || name == "ipc_offset_bytes") continue;
    EXPECT_TRUE(json.fields().contains(name)) << name;
    ++shown;
  }
  EXPECT_EQ(json.fields().size(), shown);
  EXPECT_EQ(json.fields().at("size_bytes").number_value(), 60.0 * (1ull << 30));
}

TEST_F(CtlGoldenTest, EveryJsonOutputIsJson) {
  Serve();
  for (const char* verb : {"status", "gpus", "leases", "sessions", "budget", "advise"}) {
    google::protobuf::Value json;
    const Ended ended = Ctl({verb, "-o", "json"});
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(ended.out, &json).ok()) << ended.out;
  }
}

TEST_F(CtlGoldenTest, FiltersLeases) {
  Serve();
  EXPECT_THAT(Ctl({"leases", "--user", "1001", "-o", "jsonl"}).out, HasSubstr("\"lease_id\":19"));
  EXPECT_THAT(Ctl({"leases", "--user", "1001", "-o", "jsonl"}).out,
              Not(HasSubstr("{\"lease_id\":17,\"name\"")));
  const Ended on_second =
      Ctl({"leases", "--gpu", "GPU-77d0aa10-0000-4000-8000-000000000002", "--no-headers"});
  EXPECT_EQ(on_second.out.substr(0, 2), "21");
}

TEST_F(CtlGoldenTest, EscapesWhatOthersCouldSteerATerminalWith) {
  Serve();
  const Ended ended = Ctl({"show", "17"});
  EXPECT_THAT(ended.out, HasSubstr("python3 \\x1b[31mx"));
  EXPECT_THAT(ended.out, Not(HasSubstr("\033")));
}

TEST_F(CtlGoldenTest, SaysHowItFailedByItsExitCode) {
  EXPECT_EQ(Ctl({"status"}).exit_code, 7);
  Serve();
  EXPECT_EQ(Ctl({"show", "missing"}).exit_code, 1);
  EXPECT_EQ(Ctl({"show", "internal"}).exit_code, 1);
  EXPECT_EQ(Ctl({"show", "denied"}).exit_code, 4);
  EXPECT_EQ(Ctl({"show", "broken"}).exit_code, 7);
  EXPECT_EQ(Ctl({"show", "stopping"}).exit_code, 75);
  EXPECT_EQ(Ctl({"show", "short"}).exit_code, 75);
}

TEST_F(CtlGoldenTest, RefusesCommandLinesThatItDoesNotUnderstand) {
  Serve();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"nonsense"}, {"-o", "xml"}, {"show"}, {"status", "--force"}, {"completion", "fish"}}) {
    const Ended ended = Ctl(arguments);
    EXPECT_EQ(ended.exit_code, 2) << arguments.front();
    EXPECT_THAT(ended.messages, HasSubstr("gpuleasectl: "));
    EXPECT_THAT(ended.out, IsEmpty());
  }
  EXPECT_EQ(Ctl({"--runtime-dir", "not/absolute"}).exit_code, 2);
}

TEST_F(CtlGoldenTest, PrintsTheDetailsOfAnErrorAsAMessage) {
  Serve();
  const Ended ended = Ctl({"show", "short", "-o", "json"});
  EXPECT_THAT(ended.out, IsEmpty());
  ExpectGolden(ended.messages, "tests/golden/error_short.txt");
}

TEST_F(CtlGoldenTest, ReleasesWhatTheNameStoodFor) {
  Serve();
  const Ended ended = Ctl({"release", "alice/weights", "--yes"});
  EXPECT_EQ(ended.exit_code, 0) << ended.messages;
  ExpectGolden(ended.out, "tests/golden/release.txt");
  ExpectGolden(ended.messages, "tests/golden/release_messages.txt");
  const std::vector<v1::ReleaseRequest> releases = node_->leases().releases();
  ASSERT_THAT(releases, SizeIs(1));
  EXPECT_EQ(releases[0].lease_id(), 17u);
  EXPECT_EQ(releases[0].session_id(), 0u);
  EXPECT_FALSE(releases[0].force());
}

TEST_F(CtlGoldenTest, ReleasesByForceWhenAskedTo) {
  Serve();
  const Ended ended = Ctl({"release", "17", "--force", "--yes", "-o", "jsonl"});
  EXPECT_THAT(ended.out, HasSubstr("\"state\":\"quarantined\""));
  EXPECT_THAT(ended.messages, HasSubstr("all their rights end at once"));
  const std::vector<v1::ReleaseRequest> releases = node_->leases().releases();
  ASSERT_THAT(releases, SizeIs(1));
  EXPECT_TRUE(releases[0].force());
}

TEST_F(CtlGoldenTest, ReleasesNothingThatNobodyConfirmed) {
  Serve();
  const Ended unconfirmed = Ctl({"release", "17"});
  EXPECT_EQ(unconfirmed.exit_code, 2);
  EXPECT_THAT(unconfirmed.messages, HasSubstr("add --yes"));
  const Ended dry = Ctl({"release", "17", "--dry-run", "-o", "json"});
  EXPECT_EQ(dry.exit_code, 0);
  EXPECT_THAT(dry.messages, HasSubstr("would release lease 17 (weights) of alice"));
  EXPECT_THAT(dry.out, HasSubstr("\"dry_run\": true"));
  EXPECT_THAT(node_->leases().releases(), IsEmpty());
}

}  // namespace
}  // namespace gpulease::golden
