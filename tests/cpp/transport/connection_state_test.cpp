#include "transport/connection_state.h"

#include <gtest/gtest.h>

namespace torch_remote::transport {
namespace {

TEST(ConnectionState, AResumableConnectionSurvivesItsStream) {
  ConnectionState state(true);
  EXPECT_TRUE(state.break_stream());
  EXPECT_TRUE(state.is_broken());
  EXPECT_FALSE(state.is_parked());
  state.park();
  EXPECT_TRUE(state.is_broken());
  EXPECT_TRUE(state.is_parked());
  state.resume();
  EXPECT_TRUE(state.is_open());
}

TEST(ConnectionState, AStreamBreaksOnce) {
  ConnectionState state(true);
  EXPECT_TRUE(state.break_stream());
  EXPECT_FALSE(state.break_stream());
  state.park();
  EXPECT_FALSE(state.break_stream());
  EXPECT_TRUE(state.is_parked());
}

TEST(ConnectionState, AConnectionThatCannotResumeIsNeverBroken) {
  ConnectionState state(false);
  EXPECT_FALSE(state.survives_its_stream());
  EXPECT_THROW(state.break_stream(), InternalError);
}

TEST(ConnectionState, NothingIsResumedBeforeTheReaderHasParked) {
  ConnectionState state(true);
  EXPECT_THROW(state.park(), InternalError);
  EXPECT_THROW(state.resume(), InternalError);
  state.break_stream();
  EXPECT_THROW(state.resume(), InternalError);
}

TEST(ConnectionState, ABrokenStreamTakesNoCloseFrame) {
  ConnectionState state(true);
  state.break_stream();
  EXPECT_FALSE(state.begin_close());
  state.park();
  EXPECT_FALSE(state.begin_close());
  state.resume();
  EXPECT_TRUE(state.begin_close());
}

TEST(ConnectionState, AConnectionThatClosesDoesNotSurviveItsStream) {
  ConnectionState state(true);
  EXPECT_TRUE(state.begin_close());
  EXPECT_FALSE(state.begin_close());
  EXPECT_FALSE(state.survives_its_stream());
  EXPECT_THROW(state.break_stream(), InternalError);
}

TEST(ConnectionState, NoStateFollowsTheEnd) {
  ConnectionState state(true);
  state.break_stream();
  EXPECT_TRUE(state.stop());
  EXPECT_FALSE(state.stop());
  EXPECT_FALSE(state.is_broken());
  EXPECT_FALSE(state.begin_close());
  EXPECT_THROW(state.break_stream(), InternalError);
  EXPECT_THROW(state.park(), InternalError);
  EXPECT_THROW(state.resume(), InternalError);
}

WriterState waiting_writer() {
  WriterState writer;
  writer.start();
  writer.wait();
  return writer;
}

TEST(WriterState, AWriterThatWaitsMayBeLent) {
  WriterState writer;
  EXPECT_FALSE(writer.is_started());
  EXPECT_THROW(writer.lend(), InternalError);
  writer.start();
  EXPECT_THROW(writer.lend(), InternalError);
  writer.wait();
  writer.lend();
  EXPECT_TRUE(writer.is_lent());
  EXPECT_TRUE(writer.is_waiting());
  EXPECT_FALSE(writer.give_back());
  EXPECT_TRUE(writer.can_lend());
}

TEST(WriterState, AWriterThatWakesWhileItIsLentWaitsUntilItIsGivenBack) {
  WriterState writer = waiting_writer();
  writer.lend();
  writer.wake();
  EXPECT_TRUE(writer.is_lent());
  EXPECT_FALSE(writer.is_waiting());
  EXPECT_THROW(writer.wait(), InternalError);
  EXPECT_TRUE(writer.give_back());
  EXPECT_FALSE(writer.can_lend());
  writer.wait();
}

TEST(WriterState, OneThreadAtATimeBorrowsTheWriter) {
  WriterState writer = waiting_writer();
  writer.lend();
  EXPECT_THROW(writer.lend(), InternalError);
  writer.give_back();
  EXPECT_THROW(writer.give_back(), InternalError);
}

TEST(WriterState, AWriterThatIsLentNeitherParksNorEnds) {
  WriterState writer = waiting_writer();
  writer.lend();
  EXPECT_THROW(writer.park(), InternalError);
  EXPECT_THROW(writer.finish(), InternalError);
  writer.wake();
  EXPECT_THROW(writer.park(), InternalError);
  EXPECT_THROW(writer.finish(), InternalError);
}

TEST(WriterState, AParkedWriterWorksAgainBeforeItEnds) {
  WriterState writer;
  writer.start();
  writer.park();
  EXPECT_TRUE(writer.is_parked());
  EXPECT_THROW(writer.finish(), InternalError);
  writer.unpark();
  writer.finish();
  EXPECT_TRUE(writer.is_done());
}

TEST(WriterState, AConnectionIsStartedOnce) {
  WriterState writer;
  writer.start();
  EXPECT_THROW(writer.start(), InternalError);
}

}  // namespace
}  // namespace torch_remote::transport
