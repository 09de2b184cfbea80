// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/e2e/assertions.h"
#include "tests/e2e/client_process.h"
#include "tests/e2e/daemon_process.h"

namespace gpulease::e2e {
namespace {

class BadRequestTest : public ::testing::Test {
 protected:
  BadRequestTest() : client_(daemon_.runtime_dir()) { client_.Connect(); }

  // The answer to a good request with one change.
  Reply<v1::AllocateResponse> With(const std::function<void(v1::AllocateRequest&)>& change) {
    v1::AllocateRequest request;
    request.set_session_id(client_.session_id());
    request.set_push_tag(1);
    *request.add_specs() = DeviceSpec(2 * kMiB, "good");
    change(request);
    return client_.Call(&v1::LeaseService::StubInterface::Allocate, request);
  }
  Reply<v1::AllocateResponse> WithSpec(const std::function<void(v1::AllocationSpec&)>& change) {
    return With([&](v1::AllocateRequest& request) { change(*request.mutable_specs(0)); });
  }
  // Refused as a bad field that the sentence names.
  ::testing::AssertionResult Names(const std::string& field,
                                   const Reply<v1::AllocateResponse>& reply) {
    if (auto refused = Refused(reply, grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD);
        !refused) {
      return refused;
    }
    if (reply.status.error_message().find(field) != std::string::npos) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << "\"" << reply.status.error_message() << "\" does not name " << field;
  }

  // A call with these bytes as its request.
  grpc::Status Raw(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(client_.channel());
    grpc::ClientContext context;
    grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&response, &status, this);
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    return status;
  }

  DaemonProcess daemon_;
  RawClient client_;
};

TEST_F(BadRequestTest, TheRequestThatIsChangedBelowIsGood) {
  EXPECT_TRUE(Worked(With([](v1::AllocateRequest&) {})));
}

TEST_F(BadRequestTest, SizesThatCannotBeAreRefused) {
  EXPECT_TRUE(Names("size_bytes", WithSpec([](auto& spec) { spec.set_size_bytes(0); })));
  for (const v1::MemoryKind kind : {v1::MEMORY_KIND_DEVICE, v1::MEMORY_KIND_HOST}) {
    for (const std::uint64_t size :
         {1ull << 63, ~0ull, ~0ull - 4095, ~0ull - (2 * kMiB - 1), (1ull << 63) - 1, 1ull << 48}) {
      const auto reply = WithSpec([&](auto& spec) {
        spec.set_kind(kind);
        spec.set_size_bytes(size);
      });
      EXPECT_TRUE(Refused(reply, grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_TOO_LARGE)) << size;
    }
  }
}

TEST_F(BadRequestTest, SumsOfSizesDoNotWrapAround) {
  const auto reply = With([](v1::AllocateRequest& request) {
    request.clear_specs();
    for (int i = 0; i < 64; ++i) *request.add_specs() = DeviceSpec(1ull << 58);
  });
  EXPECT_TRUE(Refused(reply, grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_TOO_LARGE));
}

TEST_F(BadRequestTest, MoreThanAGpuCouldEverGiveIsTooLargeAndNamesBothNumbers) {
  const auto reply = WithSpec([](auto& spec) { spec.set_size_bytes(kGiB + 1); });
  EXPECT_TRUE(Refused(reply, grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_TOO_LARGE));
  EXPECT_GE(reply.detail.requested_bytes(), kGiB + 1);
  EXPECT_GT(reply.detail.limit_bytes() + reply.detail.available_bytes(), 0u);
  // Two pieces that each fit, and together fit on the two GPUs only.
  const auto both = With([](v1::AllocateRequest& request) {
    request.clear_specs();
    for (int i = 0; i < 3; ++i) *request.add_specs() = DeviceSpec(kGiB);
  });
  EXPECT_TRUE(Refused(both, grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_TOO_LARGE));
}

TEST_F(BadRequestTest, AlignmentsThatAreNoPowerOfTwoUpToOneGiBAreRefused) {
  for (const std::uint64_t alignment : {3ull, 4097ull, 2ull * kGiB, ~0ull}) {
    EXPECT_TRUE(Names("alignment_bytes",
                      WithSpec([&](auto& spec) { spec.set_alignment_bytes(alignment); })));
  }
  EXPECT_TRUE(Worked(WithSpec([](auto& spec) { spec.set_alignment_bytes(kGiB); })));
}

TEST_F(BadRequestTest, NamesOfOtherCharactersOrLengthsAreRefused) {
  for (const std::string& name :
       {std::string("a b"), std::string("a/b"), std::string("a\nb"), std::string("ä"),
        std::string("a\0b", 3), std::string(129, 'a'), std::string("%s")}) {
    // A string that is not UTF-8 does not even leave the client.
    EXPECT_TRUE(Names("name", WithSpec([&](auto& spec) { spec.set_name(name); }))) << name;
  }
  EXPECT_TRUE(Worked(WithSpec([](auto& spec) { spec.set_name(std::string(128, 'a')); })));
  EXPECT_TRUE(Worked(WithSpec([](auto& spec) { spec.set_name("A.b_c-9"); })));
}

TEST_F(BadRequestTest, LabelsOutsideTheirRangesAreRefused) {
  const auto label = [&](const std::string& key, const std::string& value) {
    return WithSpec([&](auto& spec) { (*spec.mutable_labels())[key] = value; });
  };
  EXPECT_TRUE(Names("labels", label("", "value")));
  EXPECT_TRUE(Names("labels", label("a b", "value")));
  EXPECT_TRUE(Names("labels", label(std::string(64, 'k'), "value")));
  EXPECT_TRUE(Names("labels", label("key", std::string(256, 'v'))));
  EXPECT_TRUE(Names("labels", label("key", "a\nb")));
  EXPECT_TRUE(Names("labels", label("key", "\x1b[31m")));
  EXPECT_TRUE(Names("labels", label("key", "\x7f")));
  EXPECT_TRUE(Names("labels", label("key",
                                    "\xc2\x9b"
                                    "31m")))
      << "C1 steers a terminal, too";
  EXPECT_TRUE(Names("labels", WithSpec([](auto& spec) {
                      for (int i = 0; i < 17; ++i) {
                        (*spec.mutable_labels())["key" + std::to_string(i)] = "";
                      }
                    })));
  EXPECT_TRUE(Worked(label("team.example/job-1", "Ünïcode is fine")));
}

TEST_F(BadRequestTest, AMillionLabelsAreRefusedBeforeTheyAreRead) {
  const auto reply = WithSpec([](auto& spec) {
    for (int i = 0; i < 1'000'000; ++i) (*spec.mutable_labels())[std::to_string(i)];
  });
  EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(reply.status.error_message(), ::testing::HasSubstr("larger than max"));
  EXPECT_TRUE(Worked(client_.GetNode()));
}

TEST_F(BadRequestTest, TheLargestRequestThatIsAllowedIsTaken) {
  const auto reply = With([](v1::AllocateRequest& request) {
    request.clear_specs();
    for (int i = 0; i < 64; ++i) {
      v1::AllocationSpec& spec = *request.add_specs();
      spec = DeviceSpec(1, std::to_string(100 + i) + std::string(125, 'n'));
      for (int label = 0; label < 16; ++label)
        (*spec.mutable_labels())[std::to_string(10 + label) + std::string(61, 'k')] =
            std::string(255, 'v');
    }
  });
  EXPECT_TRUE(Worked(reply));
}

TEST_F(BadRequestTest, BytesThatAreNoRequestAreRefusedAndTheNextCallIsServed) {
  // A name that is not UTF-8, a string that is cut off, a size of ten bytes and more.
  for (const std::string& bytes :
       {std::string("\x1a\x04\x3a\x02\xff\xfe"), std::string("\x1a\x7f"),
        std::string("\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")}) {
    const grpc::Status status = Raw("/gpulease.v1.LeaseService/Allocate", bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL) << status.error_message();
  }
  EXPECT_EQ(Raw("/gpulease.v1.LeaseService/NoSuchMethod", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(Worked(With([](v1::AllocateRequest&) {})));
}

TEST_F(BadRequestTest, ARequestThatNamesNothingIsRefused) {
  v1::OpenRequest open;
  open.set_session_id(client_.session_id());
  EXPECT_TRUE(Refused(client_.Call(&v1::LeaseService::StubInterface::Open, open),
                      grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD));
  EXPECT_TRUE(
      Refused(client_.Call(&v1::LeaseService::StubInterface::GetLease, v1::GetLeaseRequest()),
              grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD));
  EXPECT_TRUE(
      Refused(client_.Call(&v1::LeaseService::StubInterface::Allocate, v1::AllocateRequest()),
              grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD));
  for (const std::uint64_t id : {0ull, ~0ull, 1ull << 53}) {
    EXPECT_TRUE(
        Refused(client_.GetLease(id), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
    EXPECT_TRUE(Refused(client_.Close(id), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
    EXPECT_TRUE(Refused(client_.Release(id), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
    EXPECT_TRUE(Refused(client_.Await(id), grpc::StatusCode::NOT_FOUND, v1::REASON_NOT_OPENABLE));
  }
}

TEST_F(BadRequestTest, ARefusalRepeatsNoMoreThanFitsAHeader) {
  // Seen: an error that repeated a GPU's name of 1 MiB broke the client's HTTP/2.
  const std::string large(300 << 10, 'x');
  EXPECT_TRUE(Names("gpu_uuid", WithSpec([&](auto& spec) { spec.set_gpu_uuid(large); })));
  EXPECT_TRUE(Names("gpu_uuid", WithSpec([&](auto& spec) { spec.set_gpu_uuid("a\nb"); })));
  for (const std::string& name : {large + "/x", "0@" + large + "/x", std::string("0@a\x1b[31m/x"),
                                  std::string("a\nb/x"), "0/" + large}) {
    EXPECT_TRUE(
        Refused(client_.Open(name), grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD))
        << name.substr(0, 20);
  }
  EXPECT_TRUE(Names("request_id", With([&](auto& request) { request.set_request_id(large); })));
}

TEST_F(BadRequestTest, ModesWithOtherBitsThanReadAndWriteAreRefused) {
  for (const std::uint32_t mode : {0100u, 0010u, 0001u, 01000u, 04600u, ~0u}) {
    EXPECT_TRUE(Names("mode", WithSpec([&](auto& spec) { spec.set_mode(mode); })));
  }
}

TEST_F(BadRequestTest, FieldsOfTheOtherKindOfMemoryAreRefused) {
  EXPECT_TRUE(Names("numa_node", WithSpec([](auto& spec) { spec.set_numa_node(0); })));
  EXPECT_TRUE(
      Names("page_size", WithSpec([](auto& spec) { spec.set_page_size(v1::PAGE_SIZE_SMALL); })));
  EXPECT_TRUE(
      Names("kind", WithSpec([](auto& spec) { spec.set_kind(v1::MEMORY_KIND_UNSPECIFIED); })));
  EXPECT_TRUE(
      Names("kind", WithSpec([](auto& spec) { spec.set_kind(static_cast<v1::MemoryKind>(9)); })));
  EXPECT_TRUE(Names("page_size", WithSpec([](auto& spec) {
                      spec.set_kind(v1::MEMORY_KIND_HOST);
                      spec.set_page_size(static_cast<v1::PageSize>(9));
                    })));
  for (const int node : {-1, 77, 1 << 30}) {
    EXPECT_TRUE(Names("numa_node", WithSpec([&](auto& spec) {
                        spec.set_kind(v1::MEMORY_KIND_HOST);
                        spec.set_numa_node(node);
                      })));
  }
}

TEST_F(BadRequestTest, UnknownGpusAreNotFound) {
  for (const v1::MemoryKind kind : {v1::MEMORY_KIND_DEVICE, v1::MEMORY_KIND_HOST}) {
    for (const char* uuid : {"0", "GPU-00000000-0000-0000-0000-000000000000", "gpu"}) {
      EXPECT_TRUE(Refused(WithSpec([&](auto& spec) {
                            spec.set_kind(kind);
                            spec.set_gpu_uuid(uuid);
                          }),
                          grpc::StatusCode::NOT_FOUND, v1::REASON_NO_SUCH_GPU));
    }
  }
}

TEST_F(BadRequestTest, RequestsOfNoneOrTooManySpecsAreRefused) {
  EXPECT_TRUE(Names("specs", With([](auto& request) { request.clear_specs(); })));
  EXPECT_TRUE(Names("specs", With([](auto& request) {
                      request.clear_specs();
                      for (int i = 0; i < 65; ++i) *request.add_specs() = DeviceSpec(1);
                    })));
}

TEST_F(BadRequestTest, WaitsAndRequestIdsOutsideTheirRangesAreRefused) {
  EXPECT_TRUE(Names("wait_ms", With([](auto& request) { request.set_wait_ms(86'400'001); })));
  EXPECT_TRUE(Names("wait_ms", With([](auto& request) { request.set_wait_ms(~0ull); })));
  EXPECT_TRUE(Names("request_id", With([](auto& request) { request.set_request_id("a b"); })));
  EXPECT_TRUE(Names("request_id",
                    With([](auto& request) { request.set_request_id(std::string(65, 'r')); })));
}

TEST_F(BadRequestTest, OneNameTwiceInARequestIsRefused) {
  EXPECT_TRUE(Names("name", With([](auto& request) { *request.add_specs() = request.specs(0); })));
}

TEST_F(BadRequestTest, PageTokensThatAreNoneOfTheDaemonsAreRefused) {
  for (const char* token : {"x", "-1", "1x", "18446744073709551616", " "}) {
    v1::ListLeasesRequest leases;
    leases.set_page_token(token);
    EXPECT_TRUE(Refused(client_.ListLeases(leases), grpc::StatusCode::INVALID_ARGUMENT,
                        v1::REASON_BAD_FIELD))
        << token;
    v1::ListSessionsRequest sessions;
    sessions.set_page_token(token);
    EXPECT_TRUE(Refused(client_.ListSessions(sessions), grpc::StatusCode::INVALID_ARGUMENT,
                        v1::REASON_BAD_FIELD))
        << token;
  }
}

TEST_F(BadRequestTest, OpenOfMalformedNamesOrAccessIsRefused) {
  for (const std::string& name : {std::string(), std::string("a/b/c"), std::string("x y"),
                                  std::string("root/"), std::string(129, 'n')}) {
    EXPECT_TRUE(
        Refused(client_.Open(name), grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD))
        << name;
  }
  EXPECT_TRUE(Refused(client_.Open("x", static_cast<v1::Access>(9)),
                      grpc::StatusCode::INVALID_ARGUMENT, v1::REASON_BAD_FIELD));
}

TEST_F(BadRequestTest, AGroupThatIsNotTheCallersIsRefusedUnlessHeIsAnAdministrator) {
  if (!CanSwitchUsers()) GTEST_SKIP() << "clients of other users can be started by root alone";
  ClientProcess client(daemon_.runtime_dir(), {.uid = 1000, .groups = {2000}});
  client.Connect();
  EXPECT_THAT(client.Ask("device 1 gid=4711"), ::testing::HasSubstr("REASON_BAD_FIELD"));
  EXPECT_NE(ClientProcess::LeaseOf(client.Ask("device 1 gid=2000")), 0u);
  EXPECT_NE(ClientProcess::LeaseOf(client.Ask("device 1 gid=1000")), 0u);
}

TEST_F(BadRequestTest, NothingThatWasRefusedLeavesATrace) {
  static_cast<void>(WithSpec([](auto& spec) { spec.set_size_bytes(~0ull); }));
  static_cast<void>(With([](auto& request) { request.set_wait_ms(~0ull); }));
  const v1::GetNodeResponse node = client_.Node();
  EXPECT_TRUE(IsAllFree(node)) << node.ShortDebugString();
  EXPECT_TRUE(AddsUp(node));
}

}  // namespace
}  // namespace gpulease::e2e
