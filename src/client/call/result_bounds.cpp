#include <algorithm>
#include <limits>
#include <optional>

#include <ATen/ExpandUtils.h>

#include "base/error.h"
#include "client/call/results.h"
#include "client/session/session.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

using wire::Result;
using wire::ResultKind;
using Arguments = c10::ArrayRef<c10::IValue>;

constexpr uint64_t kAny = std::numeric_limits<uint64_t>::max();
// No dtype has larger elements. A storage may have room for more elements than its tensor.
constexpr uint64_t kLargestElement = 16;
// Room that a storage may have besides.
constexpr uint64_t kSlack = 4096;
// A server can have more than its memory by swapping.
constexpr uint64_t kMemoryFactor = 2;

uint64_t times(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kAny : product;
}

template <typename Sizes>
uint64_t product_of(const Sizes& sizes) {
  uint64_t product = 1;
  for (const int64_t size : sizes)
    product = times(product, static_cast<uint64_t>(size));
  return product;
}

// What each new or resized tensor of a call can be.
struct Bounds {
  uint64_t elements = kAny;
  std::optional<int64_t> dimensions;
  std::optional<at::ScalarType> dtype;
};

uint64_t elements_of(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel());
}

Bounds of_nonzero(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  return {times(elements_of(self), static_cast<uint64_t>(self.dim())), 2, at::kLong};
}

Bounds of_masked_select(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  return {product_of(at::infer_size(self.sizes(), arguments[1].toTensor().sizes())), 1,
          self.scalar_type()};
}

// Values, and for each element of self, or each slice along a dimension, an index or a count.
Bounds of_unique(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  uint64_t most = elements_of(self);
  for (const int64_t size : self.sizes())
    most = std::max(most, static_cast<uint64_t>(size));
  return {most, std::nullopt, std::nullopt};
}

// A mask picks at most its own number of elements, out of as many dimensions as it has.
Bounds of_index(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  uint64_t most = 1;
  int64_t dimension = 0;
  for (const c10::IValue& index : arguments[1].toListRef()) {
    const bool is_given = index.isTensor() && index.toTensor().defined();
    if (!is_given) {
      most = times(most, dimension < self.dim() ? static_cast<uint64_t>(self.size(dimension)) : 1);
      ++dimension;
      continue;
    }
    const at::Tensor& given = index.toTensor();
    const bool is_mask = given.scalar_type() == at::kBool || given.scalar_type() == at::kByte;
    most = times(most, elements_of(given));
    dimension += is_mask ? given.dim() : 1;
  }
  for (; dimension < self.dim(); ++dimension)
    most = times(most, static_cast<uint64_t>(self.size(dimension)));
  return {most, std::nullopt, self.scalar_type()};
}

// The indices of each element that is not zero, and the values.
Bounds of_to_sparse(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  if (self.layout() != at::kStrided)
    return {};
  uint64_t most = 1;  // a compressed index has one more than there are rows
  for (const int64_t size : self.sizes())
    most = times(most, static_cast<uint64_t>(size) + 1);
  return {times(most, static_cast<uint64_t>(self.dim()) + 1), std::nullopt, std::nullopt};
}

Bounds bounds_of(const AnsweredCall& call) {
  using enum marshal::ResultBound;
  switch (call.info.bound) {
    case kNone:
      break;
    case kNonzero:
      return of_nonzero(call.arguments);
    case kMaskedSelect:
      return of_masked_select(call.arguments);
    case kUnique:
      return of_unique(call.arguments);
    case kIndex:
      return of_index(call.arguments);
    case kToSparse:
      return of_to_sparse(call.arguments);
    case kCounts:
      return {kAny, 1, std::nullopt};
    case kRepeats:
      return {kAny, 1, call.arguments[0].toTensor().scalar_type()};
  }
  return {};
}

uint64_t device_memory(const AnsweredCall& call) {
  const auto& devices = call.place.session->welcome().devices;
  const uint64_t told =
      call.place.device < devices.size() ? devices[call.place.device].total_memory : 0;
  return told == 0 ? kAny : times(told, kMemoryFactor);
}

class Checker {
 public:
  explicit Checker(const AnsweredCall& call)
      : call_(call), bounds_(bounds_of(call)), memory_(device_memory(call)) {}

  void check_return(const Result& result, const c10::Argument& returned, const ReturnInfo& info) {
    if (info.is_list)
      return check_list(result);
    if (info.is_tensor)
      return check_tensor(result);
    if (!is_number(result.kind, returned.real_type()->kind()))
      refuse("is of another type");
  }

  void check_changes(const Result& changes) {
    if (changes.kind != ResultKind::kList)
      refuse("is one too many");
    for (const Result& change : changes.items) {
      if (change.kind == ResultKind::kResized)
        check_size(change);
      check_parts(change);
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw ProtocolError("a result of " + call_.info.name + " that the server tells " + what);
  }

  static bool is_number(ResultKind kind, c10::TypeKind type) {
    switch (type) {
      case c10::TypeKind::IntType:
        return kind == ResultKind::kInt;
      case c10::TypeKind::BoolType:
        return kind == ResultKind::kBool;
      case c10::TypeKind::FloatType:
        return kind == ResultKind::kFloat;
      case c10::TypeKind::StringType:
        return kind == ResultKind::kString;
      case c10::TypeKind::NumberType:
        return kind == ResultKind::kInt || kind == ResultKind::kBool ||
               kind == ResultKind::kFloat || kind == ResultKind::kScalarComplex;
      default:
        return true;
    }
  }

  void check_list(const Result& result) const {
    if (result.kind != ResultKind::kList)
      refuse("is not a list of tensors");
    for (const Result& item : result.items)
      check_tensor(item);
  }

  void check_tensor(const Result& result) const {
    switch (result.kind) {
      case ResultKind::kFresh:
        check_size(result);
        if (bounds_.dimensions &&
            static_cast<int64_t>(result.spec.sizes.size()) != *bounds_.dimensions)
          refuse("has " + std::to_string(result.spec.sizes.size()) + " dimensions");
        if (bounds_.dtype && marshal::from_wire(result.spec.dtype) != *bounds_.dtype)
          refuse("has another dtype");
        return;
      case ResultKind::kSparse:
        return check_parts(result);
      case ResultKind::kTensor:
      case ResultKind::kSparseTensor:
      case ResultKind::kUndefined:
        return;
      default:
        refuse("is not a tensor");
    }
  }

  void check_parts(const Result& result) const {
    for (const Result& part : result.items)
      if (part.kind == ResultKind::kFresh)
        check_size(part);
  }

  // A read gets every element; a copy of the storage gets its bytes.
  void check_size(const Result& result) const {
    const uint64_t elements = product_of(result.spec.sizes);
    if (elements > bounds_.elements)
      refuse("has " + std::to_string(elements) + " elements, and at most " +
             std::to_string(bounds_.elements) + " are possible");
    const uint64_t bytes = std::max({result.nbytes, wire::extent_bytes(result.spec),
                                     times(elements, wire::element_bytes(result.spec.dtype))});
    const bool is_fresh = result.kind == ResultKind::kFresh;
    const uint64_t possible = std::max(times(bounds_.elements, kLargestElement), kSlack);
    const uint64_t most = is_fresh ? std::min(memory_, possible) : memory_;
    if (bytes > most)
      refuse("has " + std::to_string(bytes) + " bytes, and at most " + std::to_string(most) +
             " are possible");
  }

  const AnsweredCall& call_;
  const Bounds bounds_;
  const uint64_t memory_;
};

}  // namespace

void check_results(const AnsweredCall& call, const std::vector<wire::Result>& results) {
  const size_t expected = call.info.returns.size();
  if (results.size() != expected && results.size() != expected + 1)
    throw ProtocolError("the server sent another number of results than the operator has");
  Checker checker(call);
  const auto& returns = call.info.handle.schema().returns();
  for (size_t i = 0; i < expected; ++i)
    checker.check_return(results[i], returns[i], call.info.returns[i]);
  if (results.size() > expected)
    checker.check_changes(results.back());
}

}  // namespace torch_remote::client
