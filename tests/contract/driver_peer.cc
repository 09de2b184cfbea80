// SPDX-License-Identifier: Apache-2.0
#include "tests/contract/driver_peer.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "base/descriptor_channel.h"
#include "driver/gpu_probe.h"

extern char** environ;

namespace gpulease::testing {
namespace {

constexpr char kDirectoryVariable[] = "GPULEASE_CONTRACT_DIRECTORY";
constexpr char kPeerArgument[] = "--driver-peer";
constexpr int kPeerSocket = 3;
constexpr std::size_t kLongest = 1024;

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "driver peer: %s\n", message.c_str());
  std::abort();
}

void SendLine(int socket, std::string_view line, int descriptor) {
  const std::span<const int> descriptors(&descriptor, descriptor >= 0 ? 1 : 0);
  const Status sent = SendMessage(socket, std::as_bytes(std::span(line)), descriptors);
  if (!sent.ok()) Die("send: " + sent.error().message);
}

// Empty when the other side is gone.
std::string ReceiveLine(int socket, UniqueFd* received) {
  std::array<std::byte, kLongest> buffer;
  Result<ReceivedMessage> message = ReceiveMessage(socket, buffer, false);
  if (!message.ok()) return "";
  if (received != nullptr && !message->descriptors.empty()) {
    *received = std::move(message->descriptors[0]);
  }
  return std::string(reinterpret_cast<const char*>(buffer.data()), message->size);
}

// What runs in the peer.
class Performer {
 public:
  explicit Performer(const driver::CudaDriver& cuda) : cuda_(cuda) {}

  std::string Perform(const std::string& line, UniqueFd given, UniqueFd* out) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "create") {
      int gpu = 0;
      words >> size_ >> gpu;
      const cuda::CUmemAllocationProp properties = driver::ChunkProperties(gpu);
      return Name(cuda_.cuMemCreate(&chunk_, size_, &properties, 0));
    }
    if (verb == "export") {
      int descriptor = -1;
      const cuda::CUresult result = cuda_.cuMemExportToShareableHandle(
          &descriptor, chunk_, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      if (result == cuda::CUDA_SUCCESS) out->Reset(descriptor);
      return Name(result);
    }
    if (verb == "import") {
      words >> size_;
      return Name(cuda_.cuMemImportFromShareableHandle(
          &chunk_, reinterpret_cast<void*>(static_cast<std::uintptr_t>(given.get())),
          cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    }
    if (verb == "release") return Name(cuda_.cuMemRelease(chunk_));
    if (verb == "map") return Map(words);
    if (verb == "unmap") return Name(cuda_.cuMemUnmap(address_, size_));
    if (verb == "fill") {
      unsigned int value = 0;
      words >> std::hex >> value;
      WithContext();
      const cuda::CUresult filled =
          cuda_.cuMemsetD8(address_, static_cast<unsigned char>(value), size_);
      // A GPU may notice what it must not do only when it does it.
      const cuda::CUresult done = cuda_.cuCtxSynchronize();
      return Name(filled != cuda::CUDA_SUCCESS ? filled : done);
    }
    if (verb == "read") return Read();
    if (verb == "alloc") {
      WithContext();
      words >> size_;
      return Name(cuda_.cuMemAlloc(&address_, size_));
    }
    if (verb == "handle") return Handle();
    if (verb == "open") return Open(words);
    if (verb == "follow") return Follow(words);
    if (verb == "close") return Name(cuda_.cuIpcCloseMemHandle(address_));
    if (verb == "context") {
      cuda::CUcontext context = nullptr;
      const cuda::CUresult result = cuda_.cuCtxGetCurrent(&context);
      return result != cuda::CUDA_SUCCESS ? Name(result) : context == nullptr ? "none" : "some";
    }
    if (verb == "fork") {
      const pid_t child = fork();
      if (child == 0) {
        // Lives on whatever happens to its parent, and ends with the test.
        ReceiveLine(kPeerSocket, nullptr);
        _exit(0);
      }
      return std::to_string(child);
    }
    Die("what is \"" + line + "\"?");
  }

 private:
  std::string Name(cuda::CUresult result) {
    const char* name = nullptr;
    cuda_.cuGetErrorName(result, &name);
    return name != nullptr ? name : "CUDA error " + std::to_string(result);
  }

  void WithContext() {
    cuda::CUcontext current = nullptr;
    cuda_.cuCtxGetCurrent(&current);
    if (current != nullptr) return;
    cuda::CUcontext context = nullptr;
    const cuda::CUresult retained = cuda_.cuDevicePrimaryCtxRetain(&context, 0);
    if (retained != cuda::CUDA_SUCCESS) Die("no context: " + Name(retained));
    cuda_.cuCtxSetCurrent(context);
  }

  std::string Map(std::istringstream& words) {
    std::string access;
    words >> access;
    cuda::CUresult result = cuda_.cuMemAddressReserve(&address_, size_, 0, 0, 0);
    if (result != cuda::CUDA_SUCCESS) return Name(result);
    result = cuda_.cuMemMap(address_, size_, 0, chunk_, 0);
    if (result != cuda::CUDA_SUCCESS) return Name(result);
    cuda::CUmemAccessDesc grant = {};
    grant.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, 0};
    grant.flags = access == "ro" ? cuda::CU_MEM_ACCESS_FLAGS_PROT_READ
                                 : cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return Name(cuda_.cuMemSetAccess(address_, size_, &grant, 1));
  }

  std::string Read() {
    WithContext();
    unsigned char first = 0;
    unsigned char last = 0;
    cuda::CUresult result = cuda_.cuMemcpyDtoH(&first, address_, 1);
    if (result == cuda::CUDA_SUCCESS) {
      result = cuda_.cuMemcpyDtoH(&last, address_ + size_ - 1, 1);
    }
    if (result != cuda::CUDA_SUCCESS) return Name(result);
    char text[16];
    std::snprintf(text, sizeof text, "%02x %02x", first, last);
    return text;
  }

  std::string Handle() {
    cuda::CUipcMemHandle handle;
    const cuda::CUresult result = cuda_.cuIpcGetMemHandle(&handle, address_);
    if (result != cuda::CUDA_SUCCESS) return Name(result);
    std::string text;
    for (const char byte : handle.reserved) {
      char digits[4];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
      text += digits;
    }
    return text;
  }

  template <typename IpcHandle>
  static IpcHandle Parse(const std::string& text) {
    IpcHandle handle = {};
    for (std::size_t i = 0; i < sizeof handle.reserved && 2 * i + 1 < text.size(); ++i) {
      handle.reserved[i] =
          static_cast<char>(std::strtoul(text.substr(2 * i, 2).c_str(), nullptr, 16));
    }
    return handle;
  }

  std::string Follow(std::istringstream& words) {
    WithContext();
    std::string text;
    words >> text;
    cuda::CUevent event = nullptr;
    cuda::CUresult result = cuda_.cuIpcOpenEventHandle(&event, Parse<cuda::CUipcEventHandle>(text));
    if (result != cuda::CUDA_SUCCESS) return Name(result);
    cuda::CUstream stream = nullptr;
    result = cuda_.cuStreamCreate(&stream, cuda::kStreamNonBlocking);
    if (result == cuda::CUDA_SUCCESS) result = cuda_.cuStreamWaitEvent(stream, event, 0);
    if (result == cuda::CUDA_SUCCESS) result = cuda_.cuStreamSynchronize(stream);
    if (result == cuda::CUDA_SUCCESS) result = cuda_.cuEventQuery(event);
    if (result == cuda::CUDA_SUCCESS) result = cuda_.cuEventDestroy(event);
    if (result == cuda::CUDA_SUCCESS) result = cuda_.cuStreamDestroy(stream);
    return Name(result);
  }

  std::string Open(std::istringstream& words) {
    WithContext();
    std::string text;
    words >> text >> size_;
    const auto handle = Parse<cuda::CUipcMemHandle>(text);
    return Name(cuda_.cuIpcOpenMemHandle(&address_, handle, cuda::kIpcMemLazyEnablePeerAccess));
  }

  const driver::CudaDriver& cuda_;
  cuda::CUmemGenericAllocationHandle chunk_ = 0;
  cuda::CUdeviceptr address_ = 0;
  std::size_t size_ = 0;
};

}  // namespace

driver::DriverChoice ChosenDriver() {
  driver::DriverChoice choice;
  if (const char* directory = std::getenv(kDirectoryVariable)) {
    choice.simulated_directory = directory;
  }
  return choice;
}

void UseSimulatedNode(const std::string& directory) {
  setenv(kDirectoryVariable, directory.c_str(), 1);
}

DriverPeer::DriverPeer() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) Die("no socket pair");
  socket_.Reset(ends[0]);
  const UniqueFd theirs(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), kPeerSocket);
  std::string program = "/proc/self/exe";
  std::string argument = kPeerArgument;
  char* arguments[] = {program.data(), argument.data(), nullptr};
  const int error = posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) Die(std::string("cannot start the peer: ") + std::strerror(error));
}

DriverPeer::~DriverPeer() { Kill(); }

void DriverPeer::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

void DriverPeer::Send(std::string_view command, int descriptor) {
  SendLine(socket_.get(), command, descriptor);
}

std::string DriverPeer::Receive(UniqueFd* received) {
  pollfd ready = {socket_.get(), POLLIN, 0};
  if (poll(&ready, 1, 60'000) != 1) return "no answer within a minute";
  return ReceiveLine(socket_.get(), received);
}

std::string DriverPeer::Ask(std::string_view command, int descriptor, UniqueFd* received) {
  Send(command, descriptor);
  return Receive(received);
}

bool RanAsPeer(int argc, char** argv, int* status) {
  if (argc != 2 || std::strcmp(argv[1], kPeerArgument) != 0) return false;
  *status = 0;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Result<std::shared_ptr<const driver::CudaDriver>> cuda = driver::CudaDriver::Load(ChosenDriver());
  if (!cuda.ok()) Die(cuda.error().message);
  Performer performer(**cuda);
  for (;;) {
    UniqueFd given;
    const std::string line = ReceiveLine(kPeerSocket, &given);
    if (line.empty()) return true;
    UniqueFd out;
    const std::string answer = performer.Perform(line, std::move(given), &out);
    SendLine(kPeerSocket, answer, out.get());
  }
}

bool Eventually(const std::function<bool()>& is_so) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    const timespec pause = {.tv_sec = 0, .tv_nsec = 1'000'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace gpulease::testing
