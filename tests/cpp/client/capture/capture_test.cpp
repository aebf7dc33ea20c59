#include "client/capture/capture.h"

#include <deque>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/core/List.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "wire/limits.h"

namespace torch_remote::client {
namespace {

using marshal::ArgumentInfo;
using marshal::ArgumentKind;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;
using Sizes = std::vector<int64_t>;

constexpr uint64_t kElements = 64;

struct Argument {
  ArgumentInfo info;
  c10::IValue value;
};

Argument tensor(const at::Tensor& value, bool is_written = false) {
  return {{ArgumentKind::kTensor, is_written, false}, value};
}

Argument constant(ArgumentKind kind, c10::IValue value) {
  return {{kind, false, true}, std::move(value)};
}

Argument of(ArgumentKind kind, c10::IValue value) {
  return {{kind, false, false}, std::move(value)};
}

Argument tensors(std::vector<at::Tensor> values) {
  return of(ArgumentKind::kTensorList, c10::List<at::Tensor>(std::move(values)));
}

struct Call {
  uint32_t operator_id = 7;
  uint8_t environment = 0;
  uint8_t server_device = 0;
};

// Makes tensors that look remote: their storages have records of ours and no memory.
class CaptureTest : public testing::Test {
 protected:
  void SetUp() override {
    before_ = record_lookup;
    record_lookup.deleter = [](void*) {};
    record_lookup.generator_name = [](const c10::GeneratorImpl&) -> uint64_t { return 0; };
  }

  void TearDown() override { record_lookup = before_; }

  StorageRecord& storage(uint64_t name, bool announced = true) {
    StorageRecord& record = records_.emplace_back();
    record.name = name;
    record.address = name * 4096;
    record.nbytes = kElements * sizeof(float);
    record.announced = announced;
    return record;
  }

  at::Tensor view(StorageRecord& record, const Sizes& sizes, const Sizes& strides,
                  int64_t offset = 0, at::ScalarType dtype = at::kFloat,
                  c10::DeviceIndex index = 0) {
    const c10::Device device(c10::kPrivateUse1, index);
    void* const address = reinterpret_cast<void*>(record.address.load());
    c10::Storage storage(c10::Storage::use_byte_size_t(), record.nbytes.load(),
                         c10::DataPtr(address, &record, record_lookup.deleter, device));
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        c10::scalarTypeToTypeMeta(dtype));
    made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    return made;
  }

  // Two rows of three, in a storage of its own.
  at::Tensor matrix(uint64_t name = 1) { return view(storage(name), {2, 3}, {3, 1}); }

  void capture(const std::vector<Argument>& arguments, const Call& call = {}) {
    values_.clear();
    for (const Argument& argument : arguments)
      values_.push_back(argument.value);
    capture_.begin(call.operator_id, "aten::example", call.environment, values_);
    for (const Argument& argument : arguments)
      capture_.add(argument.info, argument.value);
    capture_.finish();
    capture_.set_server_device(call.server_device);
  }

  Bytes key(const std::vector<Argument>& arguments, const Call& call = {}) {
    capture(arguments, call);
    return Bytes(capture_.key().begin(), capture_.key().end());
  }

  Bytes slots(const std::vector<Argument>& arguments) {
    capture(arguments);
    wire::Writer writer;
    wire::NameState names;
    capture_.encode_slots(writer, names);
    return Bytes(writer.view().begin(), writer.view().end());
  }

  std::string refusal(const std::vector<Argument>& arguments) {
    try {
      capture(arguments);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  }

  Capture capture_;

 private:
  RecordLookup before_;
  std::deque<StorageRecord> records_;
  std::vector<c10::IValue> values_;
};

TEST_F(CaptureTest, CallsThatDifferInStoragesOffsetsAndNumbersHaveOneKey) {
  const auto call = [&](uint64_t name, int64_t offset, double number) {
    return std::vector<Argument>{tensor(view(storage(name), {2, 3}, {3, 1}, offset)),
                                 of(ArgumentKind::kScalar, number),
                                 of(ArgumentKind::kFloat, number),
                                 of(ArgumentKind::kComplex, c10::complex<double>(number, number)),
                                 of(ArgumentKind::kFloatList, c10::List<double>({number, 1.0}))};
  };
  EXPECT_EQ(key(call(1, 0, 0.5)), key(call(2, 9, 1.5)));
  EXPECT_NE(slots(call(1, 0, 0.5)), slots(call(2, 0, 0.5)));
  EXPECT_NE(slots(call(1, 0, 0.5)), slots(call(1, 9, 0.5)));
  EXPECT_NE(slots(call(1, 0, 0.5)), slots(call(1, 0, 1.5)));
}

TEST_F(CaptureTest, EveryPartOfATensorsMetadataIsInTheKey) {
  const auto geometry = [&](const Sizes& sizes, const Sizes& strides) {
    return key({tensor(view(storage(1), sizes, strides))});
  };
  const std::vector<Bytes> keys = {
      geometry({2, 3}, {3, 1}),
      geometry({3, 2}, {2, 1}),
      geometry({6}, {1}),
      geometry({2, 3}, {1, 2}),
      geometry({2, 3}, {0, 1}),
      geometry({1, 6}, {6, 1}),
      geometry({1, 6}, {1, 1}),  // contiguous too, as PyTorch sees it; kernels give other strides
      key({tensor(view(storage(1), {2, 3}, {3, 1}, 0, at::kInt))}),
      [&] {
        at::Tensor value = matrix();
        value.unsafeGetTensorImpl()->_set_neg(true);
        return key({tensor(value)});
      }(),
      geometry({}, {}),
      [&] {
        at::Tensor value = view(storage(1), {}, {});
        value.unsafeGetTensorImpl()->set_wrapped_number(true);
        return key({tensor(value)});
      }(),
      key({tensor(view(storage(1), {2, 3}, {3, 1}, 0, at::kComplexFloat))}),
      [&] {
        at::Tensor value = view(storage(1), {2, 3}, {3, 1}, 0, at::kComplexFloat);
        value.unsafeGetTensorImpl()->_set_conj(true);
        return key({tensor(value)});
      }(),
  };
  for (size_t i = 0; i < keys.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      EXPECT_NE(keys[i], keys[j]) << i << " and " << j;
}

TEST_F(CaptureTest, OperatorEnvironmentAndServersDeviceAreInTheKey) {
  const std::vector<Argument> arguments = {tensor(matrix())};
  const Bytes plain = key(arguments);
  EXPECT_NE(key(arguments, {.operator_id = 8}), plain);
  EXPECT_NE(key(arguments, {.environment = 1}), plain);
  EXPECT_NE(key(arguments, {.server_device = 1}), plain);
}

TEST_F(CaptureTest, WhatDecidesMetadataIsInTheKey) {
  const auto ints = [](std::vector<int64_t> values) {
    return of(ArgumentKind::kIntList, c10::List<int64_t>(std::move(values)));
  };
  const std::vector<std::pair<Argument, Argument>> pairs = {
      {of(ArgumentKind::kInt, 1), of(ArgumentKind::kInt, 2)},
      {of(ArgumentKind::kInt, 0), of(ArgumentKind::kInt, c10::IValue())},
      {of(ArgumentKind::kBool, true), of(ArgumentKind::kBool, false)},
      {of(ArgumentKind::kString, "a"), of(ArgumentKind::kString, "b")},
      {of(ArgumentKind::kDtype, at::kInt), of(ArgumentKind::kDtype, at::kLong)},
      {of(ArgumentKind::kMemoryFormat, at::MemoryFormat::Contiguous),
       of(ArgumentKind::kMemoryFormat, at::MemoryFormat::ChannelsLast)},
      {ints({1, 2}), ints({1, 3})},
      {ints({1}), ints({1, 1})},
      {of(ArgumentKind::kDevice, c10::Device(c10::kCPU)),
       of(ArgumentKind::kDevice, c10::Device(c10::kPrivateUse1))},
      {of(ArgumentKind::kScalar, 1), of(ArgumentKind::kScalar, 1.0)},
      {of(ArgumentKind::kScalar, 1), of(ArgumentKind::kScalar, true)},
      {constant(ArgumentKind::kFloat, 1.0), constant(ArgumentKind::kFloat, 2.0)},
      {constant(ArgumentKind::kScalar, 1), constant(ArgumentKind::kScalar, 2)},
      {constant(ArgumentKind::kScalar, 1), constant(ArgumentKind::kScalar, 1.0)},
      {of(ArgumentKind::kFloatList, c10::List<double>({1.0})),
       of(ArgumentKind::kFloatList, c10::List<double>({1.0, 1.0}))},
      {tensor(at::Tensor()), tensor(matrix())},
      {tensor(at::scalar_tensor(1, at::kFloat)), tensor(at::scalar_tensor(1, at::kDouble))},
  };
  for (size_t i = 0; i < pairs.size(); ++i)
    EXPECT_NE(key({pairs[i].first}), key({pairs[i].second})) << i;
}

TEST_F(CaptureTest, SharedStoragesAndRepeatedTensorsAreInTheKey) {
  StorageRecord& record = storage(1);
  const at::Tensor a = view(record, {2, 3}, {3, 1});
  const at::Tensor same_view = view(record, {2, 3}, {3, 1});
  const at::Tensor other = matrix(2);
  const Bytes apart = key({tensor(a), tensor(other)});
  const Bytes shared = key({tensor(a), tensor(same_view)});
  const Bytes repeated = key({tensor(a), tensor(a)});
  EXPECT_NE(apart, shared);
  EXPECT_NE(apart, repeated);
  EXPECT_NE(shared, repeated);
  EXPECT_NE(key({tensors({a, other}), tensors({})}), key({tensors({a}), tensors({other})}));
}

TEST_F(CaptureTest, AStorageTheServerHasNotHeardOfIsInTheKeyWithItsSize) {
  StorageRecord& record = storage(1, /*announced=*/false);
  const std::vector<Argument> arguments = {tensor(view(record, {2, 3}, {3, 1}))};
  const Bytes fresh = key(arguments);
  record.nbytes = 2 * kElements * sizeof(float);
  EXPECT_NE(key(arguments), fresh);
  EXPECT_TRUE(capture_.is_current());
  capture_.mark_announced(1, 1);
  EXPECT_FALSE(capture_.is_current());
  EXPECT_EQ(key(arguments), key({tensor(matrix(2))}));
  EXPECT_TRUE(capture_.is_current());
}

TEST_F(CaptureTest, SlotsAreInTheOrderOfTheArguments) {
  StorageRecord& first = storage(5);
  StorageRecord& second = storage(6);
  const Bytes bytes = slots({of(ArgumentKind::kScalar, 3),      //
                             tensor(view(first, {2}, {1}, 4)),  //
                             of(ArgumentKind::kScalar, -1),     //
                             tensor(view(second, {2}, {1})),    //
                             tensor(view(first, {2}, {1}, 8)),  //
                             of(ArgumentKind::kInt, 100),       //
                             of(ArgumentKind::kScalar, true)});
  wire::Writer expected;
  wire::NameState names;
  expected.zigzag(3);
  wire::encode_storage_slot(expected, names, 5, 4);
  expected.zigzag(-1);
  wire::encode_storage_slot(expected, names, 6, 0);
  expected.varint(8);  // its storage was mentioned before: the offset alone
  expected.u8(1);
  EXPECT_EQ(bytes, Bytes(expected.view().begin(), expected.view().end()));
}

TEST_F(CaptureTest, ATensorThatIsThereAgainHasNoSlot) {
  const at::Tensor a = matrix();
  EXPECT_EQ(slots({tensor(a), tensor(a)}), slots({tensor(a)}));
}

TEST_F(CaptureTest, EqualNumbersOfAListTravelOnce) {
  const auto size_of = [&](std::vector<double> values) {
    return slots({of(ArgumentKind::kFloatList, c10::List<double>(std::move(values)))}).size();
  };
  EXPECT_EQ(size_of({2.0, 2.0, 2.0}), 1 + sizeof(double));
  EXPECT_EQ(size_of({2.0, 2.0, 3.0}), 1 + 3 * sizeof(double));
  EXPECT_EQ(size_of({0.0, -0.0}), 1 + 2 * sizeof(double));
}

TEST_F(CaptureTest, NothingOfACallIsLeftInTheNext) {
  const std::vector<Argument> small = {tensor(matrix())};
  const Bytes expected_key = key(small);
  const Bytes expected_slots = slots(small);
  key({tensor(matrix(2)), tensor(at::scalar_tensor(1)), of(ArgumentKind::kScalar, 2.5)});
  EXPECT_TRUE(capture_.has_host_scalar());
  EXPECT_EQ(key(small), expected_key);
  EXPECT_EQ(slots(small), expected_slots);
  EXPECT_FALSE(capture_.has_host_scalar());
}

TEST_F(CaptureTest, TheDeviceIsTheOneThatAllTensorsAreOn) {
  key({of(ArgumentKind::kInt, 1)});
  EXPECT_EQ(capture_.device(), -1);
  key({tensor(view(storage(1), {2}, {1}, 0, at::kFloat, 3))});
  EXPECT_EQ(capture_.device(), 3);
}

TEST_F(CaptureTest, TensorsOnTwoDevicesAreRefusedInCudasWords) {
  const at::Tensor here = at::zeros({2});
  const at::Tensor there = view(storage(1), {2}, {1}, 0, at::kFloat, 1);
  EXPECT_THAT(refusal({tensor(matrix()), tensor(there)}),
              HasSubstr("Expected all tensors to be on the same device"));
  EXPECT_THAT(refusal({tensor(matrix()), tensor(here)}),
              HasSubstr("Expected all tensors to be on the same device"));
  EXPECT_EQ(refusal({tensor(matrix()), tensor(at::scalar_tensor(1))}), "");
  EXPECT_THAT(refusal({tensor(at::scalar_tensor(1), /*is_written=*/true), tensor(matrix())}),
              HasSubstr("Expected all tensors to be on the same device"));
}

TEST_F(CaptureTest, WhatTheServerWouldEndTheSessionForIsRefused) {
  const std::string text(wire::kMaxText + 1, 'x');
  EXPECT_THAT(refusal({of(ArgumentKind::kString, text)}), HasSubstr("characters of a string"));
  EXPECT_EQ(refusal({of(ArgumentKind::kString, text.substr(1))}), "");
  const Sizes ones(wire::kMaxDimensions + 1, 1);
  EXPECT_THAT(refusal({tensor(view(storage(1), ones, ones))}), HasSubstr("dimensions of a tensor"));
}

TEST_F(CaptureTest, ATensorOfAStoppedMachineIsNotMixedWithOthers) {
  int other_session = 0;
  StorageRecord& record = storage(2);
  record.session = &other_session;
  EXPECT_THAT(refusal({tensor(matrix()), tensor(view(record, {2}, {1}))}),
              HasSubstr("a machine that was stopped"));
}

}  // namespace
}  // namespace torch_remote::client
