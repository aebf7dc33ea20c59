#include "server/executor/programs.h"

#include <utility>

#include <gtest/gtest.h>

#include "base/error.h"

namespace torch_remote::server {
namespace {

Program program_of(uint64_t name, size_t storages) {
  wire::ProgramHead head;
  head.program = name;
  head.storages.resize(storages);  // temporaries
  return {std::move(head), 1};
}

// Promise 7.
TEST(Programs, ProgramsWithoutStepsAreLimitedToo) {
  constexpr size_t kStorages = 1000;
  Programs programs(10 * program_of(1, kStorages).bytes());
  for (uint64_t name = 1; name <= 10; ++name)
    programs.add(program_of(name, kStorages));
  EXPECT_THROW(programs.add(program_of(11, kStorages)), ProtocolError);
  programs.drop(3);
  programs.add(program_of(11, kStorages));
}

// Promise 7.
TEST(Programs, AllThatAProgramKeepsOfAStorageIsCounted) {
  constexpr size_t kStorages = 1000;
  const uint64_t kept = sizeof(wire::ProgramStorage) + sizeof(int64_t) + sizeof(Program::Made);
  EXPECT_GE(program_of(1, kStorages).bytes() - program_of(1, 0).bytes(), kStorages * kept);
}

}  // namespace
}  // namespace torch_remote::server
