// SPDX-License-Identifier: Apache-2.0
//
// The SDK's codec against Protocol Buffers C++: what one writes the other reads, and they agree
// about bytes that nobody should have written.
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "client/sdk/codec/codec.h"
#include "gpulease/v1/error.pb.h"
#include "gpulease/v1/error.wire.h"
#include "gpulease/v1/lease.pb.h"
#include "gpulease/v1/lease.wire.h"
#include "gpulease/v1/node.pb.h"
#include "gpulease/v1/node.wire.h"

namespace gpulease {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

using Random = std::mt19937_64;

std::uint64_t Number(Random& random) {
  switch (random() % 4) {
    case 0:
      return 0;
    case 1:
      return random() % 200;
    case 2:
      return random() >> (random() % 64);
    default:
      return ~std::uint64_t{0} - random() % 3;
  }
}

std::string Word(Random& random) {
  static const char* const kPieces[] = {"", "a", "GPU-3f2a", "\xc3\xa9", "\xe2\x82\xac", "weights"};
  std::string word;
  for (std::uint64_t i = random() % 4; i > 0; --i) word += kPieces[random() % 6];
  if (random() % 50 == 0) word += std::string(300, 'x');
  return word;
}

void Fill(Message* message, Random& random, int depth = 0);

void FillOne(Message* message, const FieldDescriptor* field, Random& random, int depth) {
  const auto* reflection = message->GetReflection();
  const bool repeated = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      Fill(repeated ? reflection->AddMessage(message, field)
                    : reflection->MutableMessage(message, field),
           random, depth + 1);
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      if (repeated) {
        reflection->AddString(message, field, Word(random));
      } else {
        reflection->SetString(message, field, Word(random));
      }
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      reflection->SetUInt64(message, field, Number(random));
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      reflection->SetInt64(message, field, static_cast<std::int64_t>(Number(random)));
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      reflection->SetUInt32(message, field, static_cast<std::uint32_t>(Number(random)));
      break;
    case FieldDescriptor::CPPTYPE_INT32:
      reflection->SetInt32(message, field, static_cast<std::int32_t>(Number(random)));
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      reflection->SetBool(message, field, random() % 2 == 0);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      reflection->SetEnumValue(message, field, static_cast<int>(Number(random)));
      break;
    default:
      FAIL() << "the API has a field type that this test does not know: " << field->full_name();
  }
}

void Fill(Message* message, Random& random, int depth) {
  const auto* type = message->GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (random() % 3 == 0) continue;
    const std::uint64_t count = field->is_repeated() ? random() % 4 : 1;
    for (std::uint64_t n = 0; n < count && depth < 4; ++n) FillOne(message, field, random, depth);
  }
}

// What Protocol Buffers take and the codec does not: groups, and the field numbers 19000 to 19999.
bool HasOddUnknowns(const UnknownFieldSet& fields) {
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    if (field.type() == UnknownField::TYPE_GROUP) return true;
    if (field.number() >= 19000 && field.number() <= 19999) return true;
  }
  return false;
}

bool HasOddUnknowns(const Message& message) {
  const auto* reflection = message.GetReflection();
  if (HasOddUnknowns(reflection->GetUnknownFields(message))) return true;
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    // Unknown fields of a map's entry are dropped while it is parsed: anything may have been there.
    if (field->is_map()) return true;
    if (!field->is_repeated()) {
      if (HasOddUnknowns(reflection->GetMessage(message, field))) return true;
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      if (HasOddUnknowns(reflection->GetRepeatedMessage(message, field, i))) return true;
    }
  }
  return false;
}

std::string Mutated(std::string bytes, Random& random) {
  for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
    const std::size_t at = bytes.empty() ? 0 : random() % bytes.size();
    switch (random() % 4) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, 1, static_cast<char>(random()));
        break;
      default:
        bytes += bytes.substr(at);
    }
  }
  return bytes;
}

template <typename Pair>
class CodecTest : public testing::Test {};

template <typename Protobuf, typename Wire>
struct Pair {
  using P = Protobuf;
  using W = Wire;
};

using Pairs = testing::Types<
    Pair<v1::AllocateRequest, wire::AllocateRequest>,
    Pair<v1::AllocateResponse, wire::AllocateResponse>, Pair<v1::OpenRequest, wire::OpenRequest>,
    Pair<v1::ListLeasesRequest, wire::ListLeasesRequest>,
    Pair<v1::ReleaseRequest, wire::ReleaseRequest>, Pair<v1::Event, wire::Event>,
    Pair<v1::GetNodeResponse, wire::GetNodeResponse>,
    Pair<v1::ListSessionsResponse, wire::ListSessionsResponse>,
    Pair<v1::ErrorDetail, wire::ErrorDetail>, Pair<v1::ErrorStatus, wire::ErrorStatus>>;
TYPED_TEST_SUITE(CodecTest, Pairs);

TYPED_TEST(CodecTest, WritesAndReadsWhatProtocolBuffersDo) {
  Random random(20240607);
  for (int i = 0; i < 2000; ++i) {
    typename TypeParam::P sent;
    Fill(&sent, random);
    auto read = wire::Decode<typename TypeParam::W>(sent.SerializeAsString());
    ASSERT_TRUE(read.ok()) << read.error().message << sent.DebugString();
    typename TypeParam::P back;
    const std::string written = wire::Encode(*read);
    ASSERT_TRUE(back.ParseFromString(written));
    ASSERT_TRUE(google::protobuf::util::MessageDifferencer::Equals(sent, back))
        << sent.DebugString() << "\nbut\n"
        << back.DebugString();
    auto again = wire::Decode<typename TypeParam::W>(written);
    ASSERT_TRUE(again.ok() && *again == *read);
  }
}

TYPED_TEST(CodecTest, TakesAsProtocolBuffersDoWhatTheyTakeOfDamagedBytes) {
  google::protobuf::LogSilencer silent;
  Random random(20240608);
  int taken = 0;
  for (int i = 0; i < 20000; ++i) {
    typename TypeParam::P whole;
    Fill(&whole, random);
    const std::string bytes = Mutated(whole.SerializeAsString(), random);
    // A buffer of exactly this size, so that a sanitizer sees a byte read past it.
    std::unique_ptr<char[]> exact(new char[bytes.size()]);
    bytes.copy(exact.get(), bytes.size());
    auto read = wire::Decode<typename TypeParam::W>({exact.get(), bytes.size()});
    typename TypeParam::P expected;
    const bool valid = expected.ParseFromString(bytes);
    if (read.ok()) {
      // The codec may take more (tags longer than 32 bits, say); what it makes of them is a
      // message.
      typename TypeParam::P back;
      ASSERT_TRUE(back.ParseFromString(wire::Encode(*read)));
      if (!valid) continue;
      expected.DiscardUnknownFields();
      ASSERT_TRUE(google::protobuf::util::MessageDifferencer::Equals(expected, back))
          << "round " << i << ": " << expected.DebugString() << "\nbut\n"
          << back.DebugString();
      ++taken;
    } else if (valid) {
      ASSERT_TRUE(HasOddUnknowns(expected))
          << "the codec refuses what Protocol Buffers take, round " << i << ": "
          << read.error().message << "\n"
          << expected.DebugString();
    }
  }
  EXPECT_GT(taken, 100) << "hardly anything was compared";
}

TEST(CodecBorderTest, KeepsMessagesWithoutBytes) {
  wire::AllocateResponse response;
  response.leases.resize(3);
  auto read = wire::Decode<wire::AllocateResponse>(wire::Encode(response));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->leases.size(), 3u);
}

TEST(CodecBorderTest, RefusesBytesThatEndInAFieldAndSaysSo) {
  auto read = wire::Decode<wire::Event>(
      "\x22\x05"
      "ab");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, Code::kInternal);
  EXPECT_NE(read.error().message.find("cannot be read"), std::string::npos);
}

TEST(CodecBorderTest, KnowsTheReasonsOfBaseByTheirNumbers) {
  EXPECT_EQ(static_cast<int>(wire::Reason::kBadField), static_cast<int>(Reason::kBadField));
  EXPECT_EQ(static_cast<int>(wire::Reason::kDriverMemoryShort),
            static_cast<int>(Reason::kDriverMemoryShort));
}

TEST(CodecBorderTest, KnowsTheMethodsPaths) {
  EXPECT_EQ(wire::AllocateMethod::kPath, "/gpulease.v1.LeaseService/Allocate");
  EXPECT_EQ(wire::GetNodeMethod::kPath, "/gpulease.v1.NodeService/GetNode");
}

}  // namespace
}  // namespace gpulease
