#include "redirect/policy.h"

#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace torch_remote::redirect {
namespace {

Situation machine(int cuda, bool mps, int remote, bool is_macos = false) {
  Situation situation;
  situation.cuda = static_cast<uint8_t>(cuda);
  situation.mps = mps;
  situation.remote = static_cast<uint8_t>(remote);
  situation.order = default_order(is_macos);
  situation.policy = Policy::kFull;
  return situation;
}

Situation with(Situation situation, Policy policy, bool override_on = false) {
  situation.policy = policy;
  situation.override_by = override_on ? kByToggle : 0;
  return situation;
}

// A CUDA build of torch without a GPU is the same as no CUDA.
const Situation kCpuOnly = machine(0, false, 0);
const Situation kOneCuda = machine(1, false, 0);
const Situation kManyCuda = machine(4, false, 0);
const Situation kMac = machine(0, true, 0, true);
const Situation kOneRemote = machine(0, false, 1);
const Situation kManyRemote = machine(0, false, 3);
const Situation kCudaAndRemote = machine(2, false, 1);
const Situation kMacAndRemote = machine(0, true, 2, true);

// What a request becomes: "remote:*" is the current remote device, "=" is as asked.
std::string answer(const Request& request, const Situation& situation) {
  const Decision decision = decide(request, situation);
  if (!decision.is_redirected())
    return "=";
  std::string text = to_text(decision.kind);
  if (decision.index == kCurrent)
    return text + ":*";
  return decision.index == kNoIndex ? text : text + ":" + std::to_string(decision.index);
}

const std::vector<Request> kRequests = {
    {Kind::kNone, kNoIndex}, {Kind::kCpu, kNoIndex},  {Kind::kCpu, 2},   {Kind::kMps, kNoIndex},
    {Kind::kMps, 0},         {Kind::kCuda, kNoIndex}, {Kind::kCuda, 0},  {Kind::kCuda, 2},
    {Kind::kRemote, 0},      {Kind::kToggle, -1},     {Kind::kOther, 0},
};

struct Row {
  std::string name;
  Situation situation;
  std::string answers;  // one for each of kRequests; "=": as asked
};

void check(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    std::istringstream answers(row.answers);
    for (const Request& request : kRequests) {
      std::string expected;
      answers >> expected;
      EXPECT_EQ(answer(request, row.situation), expected) << row.name << ", " << to_text(request);
    }
  }
}

TEST(Policy, FullSendsEverythingToTheAccelerator) {
  check({
      // no device, cpu, cpu:2, mps, mps:0, cuda, cuda:0, cuda:2, remote:0, cpu:-1, meta
      {"cpu only", kCpuOnly, "= = = cpu cpu cpu cpu cpu = cpu ="},
      {"cuda", kOneCuda, "cuda:* cuda:* cuda:* cuda:* cuda:* = = = = cpu ="},
      {"4 cuda", kManyCuda, "cuda:* cuda:* cuda:* cuda:* cuda:* = = = = cpu ="},
      {"mac", kMac, "mps:0 mps:0 mps:0 = = mps:0 mps:0 mps:0 = cpu ="},
      {"remote", kOneRemote,
       "remote:* remote:* remote:* remote:* remote:* remote:* remote:0 remote:0 = cpu ="},
      {"3 remote", kManyRemote,
       "remote:* remote:* remote:* remote:* remote:* remote:* remote:0 remote:2 = cpu ="},
      {"both", kCudaAndRemote, "cuda:* cuda:* cuda:* cuda:* cuda:* = = = = cpu ="},
      {"mac+remote", kMacAndRemote, "mps:0 mps:0 mps:0 = = mps:0 mps:0 mps:0 = cpu ="},
  });
}

TEST(Policy, ForeignLeavesCpuAndNoDevice) {
  const Policy foreign = Policy::kForeign;
  check({
      {"cpu only", with(kCpuOnly, foreign), "= = = cpu cpu cpu cpu cpu = cpu ="},
      {"cuda", with(kOneCuda, foreign), "= = = cuda:* cuda:* = = = = cpu ="},
      {"4 cuda", with(kManyCuda, foreign), "= = = cuda:* cuda:* = = = = cpu ="},
      {"mac", with(kMac, foreign), "= = = = = mps:0 mps:0 mps:0 = cpu ="},
      {"remote", with(kOneRemote, foreign),
       "= = = remote:* remote:* remote:* remote:0 remote:0 = cpu ="},
      {"3 remote", with(kManyRemote, foreign),
       "= = = remote:* remote:* remote:* remote:0 remote:2 = cpu ="},
  });
}

TEST(Policy, ADefaultTypeOfCudaMakesNoDeviceForeign) {
  const Policy policy = Policy::kForeignDefault;
  check({
      {"cpu only", with(kCpuOnly, policy), "= = = cpu cpu cpu cpu cpu = cpu ="},
      {"mac", with(kMac, policy), "mps:0 = = = = mps:0 mps:0 mps:0 = cpu ="},
      {"remote", with(kOneRemote, policy),
       "remote:* = = remote:* remote:* remote:* remote:0 remote:0 = cpu ="},
  });
}

TEST(Policy, OverrideSendsEverythingToTheCpuUntilTheNextToggle) {
  const auto on = [](const Situation& situation) { return with(situation, Policy::kFull, true); };
  check({
      {"cpu only", on(kCpuOnly), "= = = cpu cpu cpu cpu cpu = cpu ="},
      {"cuda", on(kOneCuda), "= = = cpu cpu cpu cpu cpu = cuda:* ="},
      {"4 cuda", on(kManyCuda), "= = = cpu cpu cpu cpu cpu = cuda:* ="},
      {"mac", on(kMac), "= = = cpu cpu cpu cpu cpu = mps:0 ="},
      {"remote", on(kOneRemote), "= = = cpu cpu cpu cpu cpu cpu remote:* ="},
      {"3 remote", on(kManyRemote), "= = = cpu cpu cpu cpu cpu cpu remote:* ="},
  });
}

TEST(Policy, ToggleInsideAScopeYieldsTheCpu) {
  Situation scoped = kOneRemote;
  scoped.override_by = kByScope;
  const Decision on = decide({Kind::kToggle, -1}, scoped);
  EXPECT_EQ(on.kind, Kind::kCpu);
  EXPECT_EQ(on.reason, Reason::kToggledOn);
  scoped.override_by = kByScope | kByToggle;
  const Decision off = decide({Kind::kToggle, -1}, scoped);
  EXPECT_EQ(off.kind, Kind::kCpu);
  EXPECT_EQ(off.reason, Reason::kToggledOff);
  EXPECT_EQ(decide({Kind::kCuda, 0}, scoped).reason, Reason::kOverride);
}

TEST(Policy, OffChangesNothingOnAnyHardware) {
  const std::vector<Situation> all = {kCpuOnly,   kOneCuda,    kManyCuda,      kMac,
                                      kOneRemote, kManyRemote, kCudaAndRemote, kMacAndRemote};
  for (const Situation& situation : all) {
    for (const Request& request : kRequests) {
      EXPECT_EQ(answer(request, with(situation, Policy::kOff)), "=") << to_text(request);
      EXPECT_EQ(answer(request, with(situation, Policy::kOff, true)), "=") << to_text(request);
    }
  }
}

TEST(Policy, TheOrderChoosesTheAccelerator) {
  Situation situation = kCudaAndRemote;
  EXPECT_EQ(choose_accelerator(situation), Kind::kCuda);
  situation.order = {Kind::kRemote, Kind::kCuda, Kind::kMps};
  EXPECT_EQ(choose_accelerator(situation), Kind::kRemote);
  EXPECT_EQ(answer({Kind::kCuda, 0}, situation), "remote:0");
  EXPECT_EQ(answer({Kind::kCuda, 0}, with(situation, Policy::kForeign)), "remote:0");
  situation.order = {Kind::kCpu, Kind::kCuda, Kind::kRemote};
  EXPECT_EQ(choose_accelerator(situation), Kind::kCuda);
  EXPECT_EQ(choose_accelerator(kMacAndRemote), Kind::kMps);
  EXPECT_EQ(choose_accelerator(kCpuOnly), Kind::kCpu);
}

TEST(Policy, ReasonsSayWhyADeviceWasUsed) {
  EXPECT_EQ(decide({Kind::kNone, -1}, kOneRemote).reason, Reason::kNoDevice);
  EXPECT_EQ(decide({Kind::kCpu, -1}, kOneRemote).reason, Reason::kCpuAsked);
  EXPECT_EQ(decide({Kind::kCuda, 0}, kOneRemote).reason, Reason::kNotHere);
  EXPECT_EQ(decide({Kind::kCuda, 7}, kOneRemote).reason, Reason::kNoSuchIndex);
  EXPECT_EQ(decide({Kind::kToggle, -1}, kOneRemote).reason, Reason::kToggledOn);
  const Situation overridden = with(kOneRemote, Policy::kFull, true);
  EXPECT_EQ(decide({Kind::kToggle, -1}, overridden).reason, Reason::kToggledOff);
  EXPECT_EQ(decide({Kind::kCuda, 0}, overridden).reason, Reason::kOverride);
}

TEST(Policy, AnIndexOfMpsBeyondTheFirstNamesTheDeviceThatWasReadSo) {
  EXPECT_EQ(answer({Kind::kMps, 1}, kManyRemote), "remote:1");
  EXPECT_EQ(answer({Kind::kMps, 9}, kManyRemote), "remote:0");
  EXPECT_EQ(answer({Kind::kMps, 1}, kOneCuda), "cuda:*");
}

TEST(Policy, ReasonsThatTheDevicesSayAreEvident) {
  for (const Reason reason : {Reason::kNoDevice, Reason::kCpuAsked, Reason::kNotHere})
    EXPECT_TRUE(is_evident(reason)) << to_text(reason);
  for (const Reason reason : {Reason::kNoSuchIndex, Reason::kOverride, Reason::kGenerator})
    EXPECT_FALSE(is_evident(reason)) << to_text(reason);
}

TEST(Policy, TextsNameRequestsAndReasons) {
  EXPECT_EQ(to_text(Request{Kind::kCuda, 1}), "cuda:1");
  EXPECT_EQ(to_text(Request{Kind::kNone, kNoIndex}), "no device");
  EXPECT_EQ(to_text(Request{Kind::kToggle, -1}), "cpu:-1");
  for (int reason = 0; reason <= static_cast<int>(Reason::kDrawnOnCpu); ++reason)
    EXPECT_STRNE(to_text(static_cast<Reason>(reason)), "") << reason;
  EXPECT_LE(sizeof(Situation), 8U);
}

}  // namespace
}  // namespace torch_remote::redirect
