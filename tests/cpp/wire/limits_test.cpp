// Every limit of wire/limits.h that a decoder enforces: one more than allowed is refused, and the
// error names it. tests/cpp/server and tests/cpp/client reach the limits that a session enforces.
#include "wire/limits.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"
#include "wire/handshake.h"
#include "wire/messages.h"
#include "wire/operators.h"
#include "wire/signature.h"

namespace torch_remote::wire {
namespace {

// What the decoder says of the bytes that `write` wrote.
std::string refusal(const std::function<void(Writer&)>& write,
                    const std::function<void(Reader&)>& decode) {
  Writer writer;
  write(writer);
  Reader reader(writer.view());
  try {
    decode(reader);
  } catch (const ProtocolError& error) {
    return error.what();
  }
  return "(accepted)";
}

std::string over(const std::string& what, uint64_t limit) {
  return "protocol: " + what + ": " + std::to_string(limit + 1) + " is over the limit of " +
         std::to_string(limit);
}

// A SIGNATURE of index and operator 0, introduced as "a", whose key has these arguments.
std::string refusal_of_key(const std::function<void(Writer&)>& write_arguments) {
  return refusal(
      [&](Writer& writer) {
        Writer key;
        key.varint(0);
        key.u8(0);
        key.u8(0);
        write_arguments(key);
        const Introduction introduction{"a", "", {}};
        SignatureParts parts;
        parts.introduction = &introduction;
        parts.key = key.view();
        encode(writer, parts);
      },
      [](Reader& reader) { decode_signature(reader, 0); });
}

void kind(Writer& writer, ValueKind value) {
  writer.u8(static_cast<uint8_t>(value));
}

// Promise 7.
TEST(Limits, SignaturesAndOperatorsOfASession) {
  const auto decode = [](Reader& reader) { decode_signature(reader, kMaxOperators); };
  EXPECT_EQ(refusal([](Writer& writer) { writer.varint(kMaxSignatures); }, decode),
            over("signature index", kMaxSignatures - 1));
  EXPECT_EQ(refusal(
                [](Writer& writer) {
                  writer.varint(0);
                  writer.varint(kMaxOperators);
                },
                decode),
            over("operator id", kMaxOperators - 1));
}

TEST(Limits, BytesOfASignature) {
  const Introduction introduction{"a", "", {}};
  const std::vector<std::byte> key(kMaxSignatureBytes + 1);
  SignatureParts parts;
  parts.introduction = &introduction;
  parts.key = key;
  EXPECT_EQ(refusal([&](Writer& writer) { encode(writer, parts); },
                    [](Reader& reader) { decode_signature(reader, 0); }),
            over("key", kMaxSignatureBytes));
}

TEST(Limits, ArgumentsAndResultsOfACall) {
  EXPECT_EQ(refusal_of_key([](Writer& key) { key.varint(kMaxArguments + 1); }),
            over("arguments", kMaxArguments));
  EXPECT_EQ(refusal([](Writer& writer) { writer.varint(kMaxArguments + 1); },
                    [](Reader& reader) { decode_results(reader); }),
            over("results", kMaxArguments));
}

TEST(Limits, ElementsOfAList) {
  EXPECT_EQ(refusal_of_key([](Writer& key) {
              key.varint(1);
              kind(key, ValueKind::kIntList);
              key.varint(kMaxListLength + 1);
            }),
            over("list", kMaxListLength));
}

TEST(Limits, TensorsOfACall) {
  const auto scalar = from_hex("06010000");  // float32, contiguous, no dimensions, storage 0
  EXPECT_EQ(refusal_of_key([&scalar](Writer& key) {
              key.varint(2);
              for (const uint64_t count : {kMaxListLength, uint64_t{1}}) {
                kind(key, ValueKind::kList);
                key.varint(count);
                for (uint64_t i = 0; i < count; ++i) {
                  kind(key, ValueKind::kTensor);
                  key.raw(scalar);
                }
              }
            }),
            over("tensors of a call", kMaxTensors));
}

// A list of floats is its length in the key, and one number in a call can stand for all of it.
TEST(Limits, NumbersOfACall) {
  const auto key_with = [](uint64_t last) {
    return [last](Writer& key) {
      key.varint(2);
      for (const uint64_t count : {kMaxNumbers / 2, last}) {
        kind(key, ValueKind::kFloatList);
        key.varint(count);
      }
      key.varint(0);  // storages
    };
  };
  EXPECT_EQ(refusal_of_key(key_with(kMaxNumbers / 2)), "(accepted)");
  EXPECT_EQ(refusal_of_key(key_with(kMaxNumbers / 2 + 1)), over("numbers of a call", kMaxNumbers));
}

TEST(Limits, DimensionsOfATensor) {
  EXPECT_EQ(refusal_of_key([](Writer& key) {
              key.varint(1);
              kind(key, ValueKind::kTensor);
              key.raw(from_hex("0601"));
              key.u8(kMaxDimensions + 1);
            }),
            over("dimensions of a tensor", kMaxDimensions));
}

TEST(Limits, CharactersOfAText) {
  const std::string text(kMaxText + 1, 'a');
  EXPECT_EQ(refusal_of_key([&](Writer& key) {
              key.varint(1);
              kind(key, ValueKind::kString);
              key.text(text);
            }),
            over("string", kMaxText));
}

TEST(Limits, BytesInsideAMessage) {
  const std::vector<std::byte> bytes(kMaxInlineBytes + 1);
  Begin begin;
  begin.storage = 1;
  begin.length = bytes.size();
  begin.is_inline = true;
  begin.bytes = bytes;
  EXPECT_EQ(refusal([&](Writer& writer) { encode(writer, begin); },
                    [](Reader& reader) {
                      ReceivedMessage received = next_message(reader);
                      decode_begin(received.body);
                    }),
            over("bytes of an inline upload", kMaxInlineBytes));
}

TEST(Limits, FreesOfAMessage) {
  EXPECT_EQ(refusal([](Writer& writer) { writer.varint(kMaxFrees + 1); },
                    [](Reader& reader) { decode_free(reader, [](uint64_t) {}); }),
            over("frees", kMaxFrees));
}

TEST(Limits, BytesOfAStorage) {
  EXPECT_EQ(refusal(
                [](Writer& writer) {
                  encode(writer, Resize{1, 0, kMaxStorageBytes + 1});
                },
                [](Reader& reader) {
                  ReceivedMessage received = next_message(reader);
                  decode_resize(received.body);
                }),
            over("bytes of a storage", kMaxStorageBytes));
}

TEST(Limits, DevicesOfAServer) {
  Welcome welcome;
  welcome.session = "1";
  welcome.devices.resize(kMaxDevices + 1);
  EXPECT_EQ(refusal([&](Writer& writer) { encode(writer, welcome); },
                    [](Reader& reader) { decode_welcome(reader.rest()); }),
            over("devices", kMaxDevices));
}

TEST(Limits, BytesOfAGeneratorsState) {
  GeneratorMessage message{1, GeneratorAction::kSetState, 0, {}};
  message.state.resize(kMaxGeneratorState + 1);
  EXPECT_EQ(refusal([&](Writer& writer) { encode(writer, message); },
                    [](Reader& reader) {
                      ReceivedMessage received = next_message(reader);
                      decode_generator(received.body);
                    }),
            over("generator state", kMaxGeneratorState));
}

TEST(Limits, TextsAndResultsOfAnError) {
  EXPECT_EQ(refusal(
                [](Writer& writer) {
                  writer.u8(0);
                  writer.varint(1);
                  writer.text(std::string(kMaxErrorText + 1, 'a'));
                },
                [](Reader& reader) { decode_error(reader); }),
            over("operator name", kMaxErrorText));
  Error many;
  many.results.resize(kMaxErrorResults + 1);
  Writer writer;
  encode(writer, many);  // the sender leaves out what is too many
  Reader reader(writer.view());
  EXPECT_EQ(decode_error(reader).results.size(), kMaxErrorResults);
  EXPECT_EQ(refusal(
                [](Writer& body) {
                  body.u8(0);
                  for (int i = 0; i < 7; ++i)
                    body.varint(0);
                  body.varint(kMaxErrorResults + 1);
                },
                [](Reader& body) { decode_error(body); }),
            over("results of a failed call", kMaxErrorResults));
}

TEST(Limits, BytesOfAReply) {
  EXPECT_EQ(refusal([](Writer& writer) { writer.raw(std::vector<std::byte>(kMaxReplyBytes + 1)); },
                    [](Reader& reader) { decode_fingerprints(reader); }),
            over("bytes of a reply", kMaxReplyBytes));
}

}  // namespace
}  // namespace torch_remote::wire
