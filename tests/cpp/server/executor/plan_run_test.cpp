#include "server/executor/plan_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/support.h"

namespace torch_remote::server::testing {
namespace {

using ::testing::ElementsAre;
using wire::ValueKind;

const c10::Device kCpu(c10::kCPU);

// Plans that are run as the steps of a program: Note [Programs] in plan_run.h.
class PlanRunTest : public ::testing::Test {
 protected:
  const CallPlan& plan(const SignatureText& text) {
    wire::Writer writer;
    text.append_to(writer);
    wire::Reader reader(writer.view());
    wire::ReceivedMessage message = wire::next_message(reader);
    wire::Signature signature =
        wire::decode_signature(message.body, static_cast<uint32_t>(operators_.size()));
    operators_.push_back(
        std::make_unique<const Operator>(table_.find(std::move(signature.introduction.value()))));
    auto made = std::make_unique<CallPlan>();
    made->operation = operators_.back().get();
    made->plan = marshal::make_plan(signature, made->operation->callee, kCpu);
    return *plans_.emplace_back(std::move(made));
  }

  Entry& storage(uint64_t nbytes) { return storages.make(next_++, nbytes, kCpu, 0, {}); }

  Entry& storage(const std::vector<float>& values) {
    Entry& entry = storage(values.size() * sizeof(float));
    storages.write(entry, 0, std::as_bytes(std::span(values)));
    return entry;
  }

  std::vector<float> values(Entry& entry) {
    const int64_t count = static_cast<int64_t>(entry.nbytes / sizeof(float));
    const at::Tensor tensor =
        storages.resolve(entry, marshal::make_tensor_recipe(spec({count})), 0);
    const auto* const first = tensor.const_data_ptr<float>();
    return {first, first + count};
  }

  void bind(const std::vector<Entry*>& mentioned, const std::vector<Entry*>& outputs = {}) {
    bindings.begin({});
    for (Entry* const entry : mentioned)
      bindings.add(*entry);
    for (Entry* const entry : outputs)
      bindings.add_output(*entry);
  }

  void run_and_store(const CallPlan& call, const marshal::Scalars& scalars) {
    run.run(call, scalars, bindings, 1);
    run.store(call, bindings);
    run.drop_tensors();
  }

 private:
  const c10::InferenceMode inference_mode_;
  const OperatorTable table_;
  std::vector<std::unique_ptr<const Operator>> operators_;
  std::vector<std::unique_ptr<const CallPlan>> plans_;
  uint64_t next_ = 1;

 protected:
  Uploads uploads;
  Devices devices{c10::kCPU, 1};
  Streams streams{devices};
  StorageTable storages{uploads, streams};
  Generators generators{devices};
  CallProfile profile{devices, streams};
  Bindings bindings{devices, storages, generators};
  PlanRun run{devices, storages, profile, nullptr};
};

marshal::Scalars add_scalars(double alpha) {
  marshal::Scalars scalars;
  scalars.offsets = {0, 0};
  scalars.numbers = {marshal::Number::of(alpha)};
  return scalars;
}

TEST_F(PlanRunTest, StepsPassTensorsOnWithoutNames) {
  const CallPlan& add = plan(add_signature(0, 0, {2}));
  Entry& a = storage({1, 2});
  Entry& b = storage({10, 20});
  Entry& between = storage(8);
  Entry& result = storage(8);

  bind({&a, &b}, {&between});
  run_and_store(add, add_scalars(2));
  bind({&between, &a}, {&result});
  run_and_store(add, add_scalars(-1));

  EXPECT_THAT(values(between), ElementsAre(21, 42));
  EXPECT_THAT(values(result), ElementsAre(20, 40));
  EXPECT_EQ(run.calls(), 2);
}

TEST_F(PlanRunTest, WhatStepsBeforeAFailedOneWroteStays) {
  SignatureText fill(0, 0, "aten::fill_", "Scalar");
  fill.tensor("self", spec({2}), 0).value("value", ValueKind::kScalarFloat);
  const CallPlan& filling = plan(fill.outputs({same_tensor(0)}));
  const CallPlan& add = plan(add_signature(1, 1, {3}));
  Entry& input = storage({1, 2});
  Entry& result = storage(12);
  marshal::Scalars five;
  five.offsets = {0};
  five.numbers = {marshal::Number::of(5.0)};

  bind({&input});
  run_and_store(filling, five);
  bind({&input, &input}, {&result});
  EXPECT_THROW(run.run(add, add_scalars(1), bindings, 1), Refused);
  run.drop_results();

  EXPECT_THAT(values(input), ElementsAre(5, 5));
  EXPECT_FALSE(result.storage);
  bind({&input});
  run_and_store(filling, five);
  EXPECT_EQ(run.calls(), 3);
}

TEST_F(PlanRunTest, ResultsThatAreNotKnownAreDescribed) {
  SignatureText nonzero(0, 0, "aten::nonzero", "");
  const CallPlan& call = plan(nonzero.tensor("self", spec({3}), 0));
  marshal::Scalars scalars;
  scalars.offsets = {0};

  bind({&storage({0, 5, 6})});
  run.run(call, scalars, bindings, 1);
  const PlanRun::Results out = run.describe(call);

  ASSERT_EQ(out.results.size(), 1);
  EXPECT_EQ(out.results[0].kind, wire::ResultKind::kFresh);
  ASSERT_EQ(out.fresh.size(), 1);
  EXPECT_EQ(out.fresh[0].sizes(), c10::IntArrayRef({2, 1}));
}

}  // namespace
}  // namespace torch_remote::server::testing
