#include "wire/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bytes.h"

namespace torch_remote::wire {
namespace {

// Storage 9, a temporary of 16 bytes on device 1, and a change of settings before a call of slot 2
// that reads storage 0 and makes storage 1.
Writer program() {
  Writer writer;
  const std::vector<ProgramStorage> storages{{9, 0, 0}, {0, 1, 16}};
  encode_program(writer, 5, storages, 2, [&](NameState& names) {
    encode_step(writer, Context{{{Setting::kThreads, 4}}});
    encode_step(writer, 2, [&] {
      encode_storage_slot(writer, names, 0, 0);
      encode_name(writer, names, 1);
    });
  });
  return writer;
}

Reader body_of(const Writer& writer, Tag tag) {
  Reader reader(writer.view());
  ReceivedMessage received = next_message(reader);
  EXPECT_EQ(received.tag, tag);
  reader.finish();
  return received.body;
}

template <typename Decode>
void expect_refused(const char* bytes, Decode decode) {
  const auto read = from_hex(bytes);
  Reader reader(read);
  EXPECT_THROW(decode(reader), ProtocolError) << bytes;
}

TEST(Program, HasGoldenBytes) {
  EXPECT_EQ(hex(program().view()), "0f0e0502090001100200010108030002");
}

TEST(Program, ComesBack) {
  const Writer writer = program();
  Reader reader = body_of(writer, Tag::kProgram);
  const ProgramHead head = decode_program_head(reader);
  EXPECT_EQ(head.program, 5);
  ASSERT_EQ(head.storages.size(), 2);
  EXPECT_EQ(head.storages[0].name, 9);
  EXPECT_EQ(head.storages[1].name, 0);
  EXPECT_EQ(head.storages[1].device, 1);
  EXPECT_EQ(head.storages[1].nbytes, 16);
  ASSERT_EQ(head.steps, 2);
  EXPECT_EQ(decode_step(reader), 0);
  const std::vector<SettingValue> settings{{Setting::kThreads, 4}};
  EXPECT_EQ(decode_context(reader).settings, settings);
  EXPECT_EQ(decode_step(reader), 2 + 1);
  NameState names;
  EXPECT_EQ(decode_storage_slot(reader, names).name, 0);
  EXPECT_EQ(decode_name(reader, names), 1);
  EXPECT_TRUE(reader.empty());
}

TEST(Program, RunsAndDropsComeBackAndHaveGoldenBytes) {
  Writer writer;
  encode(writer, wire::Run{5, {}});
  encode(writer, wire::Run{5, {{3, 300}}});
  encode(writer, wire::Run{5, {{3, 300}, {1, 299, -8}}});
  encode_drop(writer, 5);
  EXPECT_EQ(hex(writer.view()),
            "17020500"
            "170505010cd804"
            "170805020cd80407010f"
            "180105");
  Reader reader(writer.view());
  ReceivedMessage message = next_message(reader);
  EXPECT_TRUE(decode_run(message.body).changed.empty());
  message = next_message(reader);
  const auto run = decode_run(message.body);
  EXPECT_EQ(run.program, 5);
  ASSERT_EQ(run.changed.size(), 1);
  EXPECT_EQ(run.changed[0].number, 3);
  EXPECT_EQ(run.changed[0].name, 300);
  EXPECT_EQ(run.changed[0].shift, 0);
  message = next_message(reader);
  const auto shifted = decode_run(message.body);
  ASSERT_EQ(shifted.changed.size(), 2);
  EXPECT_EQ(shifted.changed[1].number, 1);
  EXPECT_EQ(shifted.changed[1].name, 299);
  EXPECT_EQ(shifted.changed[1].shift, -8);
  message = next_message(reader);
  EXPECT_EQ(decode_drop(message.body), 5);
}

TEST(Program, NameZeroIsNoProgramAndNoChangedStorage) {
  expect_refused("000000", decode_program_head);
  expect_refused("0000", decode_run);
  expect_refused("05010c00", decode_run);
  expect_refused("00", decode_drop);
}

TEST(Program, LimitsHold) {
  const auto refused = [](uint64_t storages, uint64_t steps, uint64_t nbytes) {
    Writer writer;
    writer.varint(5);
    writer.varint(storages);
    for (uint64_t i = 0; i < std::min<uint64_t>(storages, 1); ++i) {
      writer.varint(0);
      writer.u8(0);
      writer.varint(nbytes);
    }
    writer.varint(steps);
    Reader reader(writer.view());
    EXPECT_THROW(decode_program_head(reader), ProtocolError);
  };
  refused(kMaxProgramStorages + 1, 0, 0);
  refused(0, kMaxProgramSteps + 1, 0);
  refused(1, 0, kMaxStorageBytes + 1);
  Writer run;
  run.varint(5);
  run.varint(kMaxProgramStorages + 1);
  Reader reader(run.view());
  EXPECT_THROW(decode_run(reader), ProtocolError);
  expect_refused("0501004000", decode_program_head);  // a temporary of device 64
}

// An older client, which has no programs, finds nothing behind the results.
TEST(Program, AnErrorSaysWhichStepFailedOnlyIfOneDid) {
  Error error;
  error.call = 7;
  Writer plain;
  encode(plain, error);
  error.program = 5;
  error.step = 3;
  Writer of_a_run;
  encode(of_a_run, error);
  EXPECT_EQ(hex(of_a_run.view()), hex(plain.view()) + "0503");
  Reader reader(of_a_run.view());
  const Error back = decode_error(reader);
  reader.finish();
  EXPECT_EQ(back.program, 5);
  EXPECT_EQ(back.step, 3);
}

}  // namespace
}  // namespace torch_remote::wire
