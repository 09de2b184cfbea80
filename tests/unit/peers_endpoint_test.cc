// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/unix_listener.h"
#include "daemon/peers/endpoint.h"

namespace gpulease::peers {
namespace {

class EndpointTest : public ::testing::Test {
 protected:
  EndpointTest() {
    char name[] = "/tmp/gpulease-endpoint-XXXXXX";
    folder_ = mkdtemp(name);
    paths_ = *ResolveRuntimePaths(folder_ + "/run");
  }
  ~EndpointTest() override { std::filesystem::remove_all(folder_); }
  static mode_t ModeOf(const std::string& path) {
    struct stat status {};
    return stat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
  }

  std::string folder_;
  RuntimePaths paths_;
};

TEST_F(EndpointTest, ModesAreThoseThatWereMeantWhateverTheUmask) {
  const mode_t before = umask(0077);
  const Result<Endpoint> endpoint = OpenEndpoint(paths_, "");
  umask(before);
  ASSERT_TRUE(endpoint.ok()) << endpoint.error().message;
  EXPECT_EQ(ModeOf(paths_.directory), 0755u);
  EXPECT_EQ(ModeOf(paths_.grpc_socket), 0666u);
  EXPECT_EQ(ModeOf(paths_.handle_socket), 0666u);
}

TEST_F(EndpointTest, ThereIsOneForADirectory) {
  Result<Endpoint> first = OpenEndpoint(paths_, "");
  ASSERT_TRUE(first.ok());
  const Result<Endpoint> second = OpenEndpoint(paths_, "");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  EXPECT_NE(second.error().message.find(std::to_string(getpid())), std::string::npos);
  *first = Endpoint();
  EXPECT_TRUE(OpenEndpoint(paths_, "").ok()) << "what is left is stale";
}

// Seen with gpuleased.socket: the sockets stayed open to everybody.
TEST_F(EndpointTest, TheServiceManagersSocketsAreForTheGroupToo) {
  ASSERT_TRUE(PrepareRuntimeDirectory(paths_.directory).ok());
  const Result<UniqueFd> grpc = ListenUnix(paths_.grpc_socket, SOCK_STREAM, 0666);
  const Result<UniqueFd> handles = ListenUnix(paths_.handle_socket, SOCK_SEQPACKET, 0666);
  ASSERT_TRUE(grpc.ok() && handles.ok());
  const std::string group = getgrgid(getgid())->gr_name;
  const auto activated_with = [&](const std::string& socket_group) {
    const pid_t child = fork();
    if (child == 0) {
      // The service manager's descriptors are 3 and 4; this process's may be anywhere.
      const int first = fcntl(grpc->get(), F_DUPFD, 10);
      const int second = fcntl(handles->get(), F_DUPFD, 10);
      dup2(first, 3);
      dup2(second, 4);
      setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
      setenv("LISTEN_FDS", "2", 1);
      const Result<Endpoint> endpoint = OpenEndpoint(paths_, socket_group);
      _exit(endpoint.ok() && endpoint->activated ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status == 0;
  };
  EXPECT_TRUE(activated_with(""));
  EXPECT_EQ(ModeOf(paths_.grpc_socket), 0666u);
  EXPECT_TRUE(activated_with(group));
  EXPECT_EQ(ModeOf(paths_.grpc_socket), 0660u);
  EXPECT_EQ(ModeOf(paths_.handle_socket), 0660u);
}

TEST_F(EndpointTest, AGroupThatIsNotThereIsRefusedBeforeAnythingIsMade) {
  const Result<Endpoint> endpoint = OpenEndpoint(paths_, "no-such-group");
  ASSERT_FALSE(endpoint.ok());
  EXPECT_EQ(endpoint.error().code, Code::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(paths_.directory));
}

TEST_F(EndpointTest, ALockThatIsALinkIsNotFollowed) {
  std::filesystem::create_directory(paths_.directory);
  std::filesystem::create_symlink(folder_ + "/elsewhere", paths_.directory + "/gpuleased.lock");
  EXPECT_FALSE(OpenEndpoint(paths_, "").ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/elsewhere"));
}

}  // namespace
}  // namespace gpulease::peers
