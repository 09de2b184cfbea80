// SPDX-License-Identifier: Apache-2.0
//
// gRPC's own services, by a client that has none of their generated code.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/raw_client.h"

namespace gpulease::e2e {
namespace {

using ::testing::HasSubstr;

// One request, one reply, as bytes.
class GenericCall {
 public:
  GenericCall(RawClient& client, const std::string& method, const std::string& request)
      : stub_(client.channel()) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stream_ = stub_.PrepareCall(&context_, method, &queue_);
    stream_->StartCall(this);
    if (!Step()) return;
    grpc::Slice slice(request);
    const grpc::ByteBuffer bytes(&slice, 1);
    stream_->Write(bytes, this);
    if (!Step()) return;
    grpc::ByteBuffer answer;
    stream_->Read(&answer, this);
    if (Step()) {
      std::vector<grpc::Slice> slices;
      static_cast<void>(answer.Dump(&slices));
      for (const grpc::Slice& piece : slices) {
        reply_.append(reinterpret_cast<const char*>(piece.begin()), piece.size());
      }
    }
    stream_->WritesDone(this);
    Step();
    stream_->Finish(&status_, this);
    Step();
  }
  const std::string& reply() const { return reply_; }
  const grpc::Status& status() const { return status_; }

 private:
  bool Step() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  std::string reply_;
  grpc::Status status_;
};

class StandardServicesTest : public ::testing::Test {
 protected:
  StandardServicesTest() : client_(daemon_.runtime_dir()) {}
  DaemonProcess daemon_;
  RawClient client_;
};

TEST_F(StandardServicesTest, HealthSaysServingForTheServerAndItsServices) {
  const std::string serving("\x08\x01", 2);  // HealthCheckResponse.status: SERVING
  for (const std::string& service : {std::string(), std::string("gpulease.v1.LeaseService"),
                                     std::string("gpulease.v1.NodeService")}) {
    const std::string request =
        service.empty() ? "" : "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
    const GenericCall call(client_, "/grpc.health.v1.Health/Check", request);
    EXPECT_TRUE(call.status().ok()) << call.status().error_message();
    EXPECT_EQ(call.reply(), serving) << service;
  }
}

TEST_F(StandardServicesTest, ReflectionListsTheServices) {
  const std::string list_services("\x3a\x00", 2);  // ServerReflectionRequest.list_services: ""
  const GenericCall call(client_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                         list_services);
  EXPECT_THAT(call.reply(), HasSubstr("gpulease.v1.LeaseService"));
  EXPECT_THAT(call.reply(), HasSubstr("gpulease.v1.NodeService"));
  EXPECT_THAT(call.reply(), HasSubstr("grpc.health.v1.Health"));
}

TEST_F(StandardServicesTest, AnUnknownMethodIsUnimplemented) {
  const GenericCall call(client_, "/gpulease.v1.LeaseService/Frobnicate", "");
  EXPECT_EQ(call.status().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(StandardServicesTest, AMessageThatIsNoneEndsItsCallAlone) {
  const GenericCall call(client_, "/gpulease.v1.LeaseService/Allocate", std::string(100, '\xff'));
  EXPECT_FALSE(call.status().ok());
  const GenericCall large(client_, "/gpulease.v1.LeaseService/Allocate",
                          std::string((3 << 20) + 1, 'x'));
  EXPECT_EQ(large.status().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(client_.GetNode().ok());
}

}  // namespace
}  // namespace gpulease::e2e
