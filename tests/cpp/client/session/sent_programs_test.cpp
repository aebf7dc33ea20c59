#include "client/session/sent_programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/limits.h"

namespace torch_remote::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SentPrograms, TheLeastRecentlyUsedIsDroppedWhenThereAreTooMany) {
  SentPrograms sent;
  for (uint64_t program = 1; program <= wire::kMaxPrograms; ++program)
    EXPECT_THAT(sent.add(program, {1, 1}), IsEmpty());
  EXPECT_TRUE(sent.use(1));
  EXPECT_THAT(sent.add(wire::kMaxPrograms + 1, {1, 1}), ElementsAre(2));
  EXPECT_FALSE(sent.use(2));
  EXPECT_TRUE(sent.use(1));
}

TEST(SentPrograms, TooManyStepsOrBytesDropTheLeastRecentlyUsed) {
  SentPrograms sent;
  sent.add(1, {1 << 19, 1});
  sent.add(2, {1 << 19, 1});
  EXPECT_THAT(sent.add(3, {1, 1}), ElementsAre(1));
  EXPECT_THAT(sent.add(4, {1, 16 << 20}), ElementsAre(2, 3));
  EXPECT_TRUE(sent.remove(4));
  EXPECT_FALSE(sent.remove(4));
  EXPECT_THAT(sent.add(5, {1, 16 << 20}), IsEmpty()) << "what was removed is no longer counted";
}

TEST(ProgramSites, AStepsLineIsKnownForAWhileAfterItsProgram) {
  ProgramSites sites;
  sites.add(1, {CallSite{7, 0, 3}, CallSite{8, 0, 4}});
  EXPECT_EQ(sites.find(1, 1)->line, 8);
  EXPECT_FALSE(sites.find(1, 2).has_value());
  EXPECT_FALSE(sites.find(2, 0).has_value());
  sites.retire(1);
  EXPECT_EQ(sites.find(1, 0)->line, 7);
  for (uint64_t program = 2; program < 200; ++program) {
    sites.add(program, {});
    sites.retire(program);
  }
  EXPECT_FALSE(sites.find(1, 0).has_value());
}

TEST(ProgramSites, ARunHasTheCallsOfItsProgramWithoutChangesOfSettings) {
  ProgramSites sites;
  sites.add(1, {CallSite{7, 0, 3}, CallSite{8, 0, 0}, CallSite{9, 0, 4}});
  sites.note_run(5, 1);
  sites.note_run(9, 1);
  sites.note_run(11, 2);
  const auto calls = sites.calls_of_run(9);
  ASSERT_EQ(calls.size(), 2);
  EXPECT_EQ(calls[0].line, 7);
  EXPECT_EQ(calls[1].line, 9);
  EXPECT_THAT(sites.calls_of_run(6), IsEmpty());
  EXPECT_THAT(sites.calls_of_run(11), IsEmpty());
}

}  // namespace
}  // namespace torch_remote::client
