#include "client/capture/capture.h"

#include <algorithm>
#include <bit>

#include <c10/core/ScalarType.h>

#include "base/error.h"
#include "marshal/dtype.h"
#include "marshal/sparse.h"
#include "wire/key.h"
#include "wire/limits.h"
#include "wire/slots.h"

namespace torch_remote::client {
namespace {

using marshal::ArgumentInfo;
using marshal::ArgumentKind;
using marshal::PointerIndex;
using marshal::to_wire;
using wire::encode_kind;
using wire::encode_number;
using wire::ValueKind;

// Half of the limit, because the results may need as many bytes. This also keeps the number of
// tensors below wire::kMaxTensors.
constexpr uint64_t kMaxCallBytes = wire::kMaxSignatureBytes / 2;

wire::Dtype checked(at::ScalarType type) {
  const auto dtype = to_wire(type);
  TORCH_CHECK_NOT_IMPLEMENTED(dtype, "dtype ", type, " is not supported on a remote device");
  return *dtype;
}

void put_complex(wire::Writer& writer, c10::complex<double> value) {
  encode_number(writer, value.real());
  encode_number(writer, value.imag());
}

ValueKind scalar_kind(const c10::IValue& value) {
  if (value.isDouble())
    return ValueKind::kScalarFloat;
  if (value.isInt())
    return ValueKind::kScalarInt;
  if (value.isUnsigned())
    return ValueKind::kScalarUnsigned;
  if (value.isBool())
    return ValueKind::kScalarBool;
  if (value.isComplexDouble())
    return ValueKind::kScalarComplex;
  TORCH_CHECK_NOT_IMPLEMENTED(false, "a symbolic number cannot be sent to a remote device");
}

void put_scalar(wire::Writer& writer, const c10::IValue& value) {
  if (value.isDouble())
    return encode_number(writer, value.toDouble());
  if (value.isInt())
    return encode_number(writer, value.toInt());
  if (value.isUnsigned())
    return encode_number(writer, value.toUInt());
  if (value.isBool())
    return encode_number(writer, value.toBool());
  put_complex(writer, value.toComplexDouble());
}

bool same_scalar(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDouble() && b.isDouble())
    return std::bit_cast<uint64_t>(a.toDouble()) == std::bit_cast<uint64_t>(b.toDouble());
  return a.isInt() && b.isInt() && a.toInt() == b.toInt();
}

// The slot of a list of numbers: one if all are the same.
void put_scalars(wire::Writer& writer, c10::ArrayRef<c10::IValue> items) {
  const bool same = items.size() > 1 &&
                    std::all_of(items.begin() + 1, items.end(),
                                [&](const auto& item) { return same_scalar(items[0], item); });
  encode_number(writer, same);
  for (const c10::IValue& item : same ? items.slice(0, 1) : items)
    put_scalar(writer, item);
}

// Stricter than is_contiguous(), which ignores the strides of dimensions of size 1.
bool has_contiguous_strides(const at::TensorImpl& impl) {
  const auto sizes = impl.sizes();
  const auto strides = impl.strides();
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (strides[i] != step)
      return false;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return true;
}

uint8_t spec_flags(const at::TensorImpl& impl) {
  return static_cast<uint8_t>((has_contiguous_strides(impl) ? wire::kSpecContiguous : 0) |
                              (impl.is_conj() ? wire::kSpecConj : 0) |
                              (impl.is_neg() ? wire::kSpecNeg : 0) |
                              (impl.is_wrapped_number() ? wire::kSpecWrapped : 0));
}

}  // namespace

RecordLookup record_lookup;

void Capture::begin(uint32_t operator_id, const char* operator_name, uint8_t environment,
                    c10::ArrayRef<c10::IValue> arguments, bool spans_devices, bool is_recorded) {
  operator_name_ = operator_name;
  spans_devices_ = spans_devices;
  is_recorded_ = is_recorded;
  arguments_ = arguments;
  key_.clear();
  numbers_.clear();
  tensors_.clear();
  impls_.clear();
  sparse_.clear();
  storages_.clear();
  fresh_.clear();
  storage_index_.clear();
  impl_index_.clear();
  device_ = -1;
  has_host_scalar_ = false;
  device_at_ = wire::encode_key_head(key_, operator_id, environment, arguments.size());
}

void Capture::add(const ArgumentInfo& info, const c10::IValue& value) {
  if (value.isNone()) {
    // An absent `Tensor?` is None on the stack. An undefined tensor is something else.
    return encode_kind(key_, ValueKind::kNone);
  }
  switch (info.kind) {
    case ArgumentKind::kTensor:
      return add_tensor(value.toTensor(), info.is_written);
    case ArgumentKind::kInt:
      return wire::encode_integer(key_, ValueKind::kInt, value.toInt());
    case ArgumentKind::kFloat: {
      const double real = value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
      if (info.is_constant)
        return wire::encode_real(key_, ValueKind::kConstFloat, real);
      encode_kind(key_, ValueKind::kFloat);
      return encode_number(numbers_, real);
    }
    case ArgumentKind::kBool:
      return encode_kind(key_, value.toBool() ? ValueKind::kTrue : ValueKind::kFalse);
    case ArgumentKind::kScalar:
      return add_scalar(value, info.is_constant);
    case ArgumentKind::kComplex:
      encode_kind(key_, ValueKind::kComplex);
      return put_complex(numbers_, value.toComplexDouble());
    case ArgumentKind::kString:
      check_limit("characters of a string", value.toStringRef().size(), wire::kMaxText);
      return wire::encode_string(key_, value.toStringRef());
    case ArgumentKind::kDtype:
      return wire::encode_code(key_, ValueKind::kDtype,
                               static_cast<uint8_t>(checked(value.toScalarType())));
    case ArgumentKind::kLayout: {
      const auto layout = to_wire(value.toLayout());
      TORCH_CHECK_NOT_IMPLEMENTED(layout, "layout ", value.toLayout(),
                                  " is not supported on a remote device");
      return wire::encode_code(key_, ValueKind::kLayout, static_cast<uint8_t>(*layout));
    }
    case ArgumentKind::kMemoryFormat:
      return wire::encode_code(key_, ValueKind::kMemoryFormat, to_wire(value.toMemoryFormat()));
    case ArgumentKind::kDevice:
      return add_device(value.toDevice());
    case ArgumentKind::kGenerator:
      return add_generator(value.toGenerator());
    case ArgumentKind::kUnsupported:
      break;
    default:
      return add_list(info, value.toListRef());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "an argument of type ", value.tagKind(),
                              " cannot be sent to a remote device");
}

void Capture::add_generator(const at::Generator& generator) {
  encode_kind(key_, ValueKind::kGenerator);
  TORCH_CHECK(generator.device().is_privateuseone(), "Expected a '",
              c10::DeviceTypeName(c10::kPrivateUse1, true),
              "' device type for generator but found '",
              c10::DeviceTypeName(generator.device().type(), true), "'");
  if (has_host_scalar_)
    check_generator_has_tensor(c10::kCPU);
  use_device(generator.device().index());
  encode_number(numbers_, record_lookup.generator_name(*generator.unsafeGetGeneratorImpl()));
}

void Capture::add_tensor(const at::Tensor& tensor, bool is_written) {
  if (!tensor.defined())
    return encode_kind(key_, ValueKind::kUndefined);
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(!impl.device().is_privateuseone())) {
    // The client would never see what the server writes into its copy of a CPU scalar.
    if (is_written)
      refuse_mix(c10::Device(c10::kPrivateUse1, std::max<c10::DeviceIndex>(device_, 0)),
                 impl.device());
    return add_host_scalar(tensor);
  }
  use_device(impl.device().index());
  StorageRecord* record = own_record(impl);
  if (C10_UNLIKELY(record == nullptr)) {
    if (marshal::is_sparse(impl))
      return add_sparse(tensor);
    record = record_lookup.find_slowly(impl);
  }
  bool first_mention = false;
  const uint32_t number = storage_number(record, first_mention);
  if (!first_mention && add_again(impl))
    return;
  check_limit("dimensions of a tensor", impl.sizes().size(), wire::kMaxDimensions);
  wire::encode_tensor(key_, checked(c10::typeMetaToScalarType(impl.dtype())), spec_flags(impl),
                      impl.sizes(), impl.strides(), number);
  tensors_.push_back(
      {record, offset_of(impl, *record), static_cast<uint32_t>(numbers_.size()), first_mention});
  impls_.push_back(&impl);
}

bool Capture::add_again(const at::TensorImpl& impl) {
  const size_t known = impl_index_.find(impls_, &impl);
  if (known == PointerIndex::kNone)
    return false;
  wire::encode_again(key_, ValueKind::kAgain, known);
  return true;
}

void Capture::add_sparse(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const auto known = std::find(sparse_.begin(), sparse_.end(), impl);
  if (known != sparse_.end())
    return wire::encode_again(key_, ValueKind::kSparseAgain,
                              static_cast<uint64_t>(known - sparse_.begin()));
  sparse_.push_back(impl);
  check_limit("dimensions of a tensor", impl->sizes().size(), wire::kMaxDimensions);
  encode_kind(key_, ValueKind::kSparse);
  encode(key_, marshal::sparse_spec_of(tensor));
  for (const at::Tensor& part : marshal::parts_of(tensor))
    add_tensor(part, false);
}

void Capture::add_host_scalar(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || tensor.dim() != 0 || tensor.layout() != at::kStrided) {
    refuse_mix(c10::Device(c10::kPrivateUse1, device_ < 0 ? c10::DeviceIndex(0) : device_),
               tensor.device());
  }
  has_host_scalar_ = true;
  const at::Tensor value =
      tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg() : tensor;
  wire::encode_scalar_tensor(key_, checked(value.scalar_type()),
                             tensor.unsafeGetTensorImpl()->is_wrapped_number());
  wire::encode_element(numbers_,
                       {static_cast<const std::byte*>(value.const_data_ptr()), value.itemsize()});
}

void Capture::add_scalar(const c10::IValue& value, bool is_constant) {
  if (!is_constant) {
    encode_kind(key_, scalar_kind(value));
    return put_scalar(numbers_, value);
  }
  if (value.isDouble() || value.isComplexDouble()) {
    const double real = value.toScalar().toDouble();  // throws where there is an imaginary part
    return wire::encode_real(key_, ValueKind::kConstScalarFloat, real);
  }
  wire::encode_integer(key_, ValueKind::kConstScalarInt,
                       value.isBool() ? value.toBool() : value.toInt());
}

void Capture::add_list(const ArgumentInfo& info, c10::ArrayRef<c10::IValue> items) {
  check_limit("elements of a list", items.size(), wire::kMaxListLength);
  switch (info.kind) {
    case ArgumentKind::kTensorList:
      wire::encode_list(key_, ValueKind::kList, items.size());
      for (const c10::IValue& item : items)
        if (item.isNone())
          encode_kind(key_, ValueKind::kNone);
        else
          add_tensor(item.toTensor(), info.is_written);
      return;
    case ArgumentKind::kIntList:
      wire::encode_list(key_, ValueKind::kIntList, items.size());
      for (const c10::IValue& item : items)
        wire::encode_item(key_, item.toInt());
      return;
    case ArgumentKind::kBoolList:
      wire::encode_list(key_, ValueKind::kBoolList, items.size());
      for (const c10::IValue& item : items)
        wire::encode_item(key_, item.toBool());
      return;
    case ArgumentKind::kFloatList:
      wire::encode_list(key_, ValueKind::kFloatList, items.size());
      return put_scalars(numbers_, items);
    default:
      wire::encode_list(key_, ValueKind::kScalarList, items.size());
      for (const c10::IValue& item : items)
        encode_kind(key_, scalar_kind(item));
      return put_scalars(numbers_, items);
  }
}

namespace {

// Tensors of one device have two sessions if its index is used again: one of them has ended.
void refuse_sessions(const StorageRecord& a, const StorageRecord& b) {
  if (record_lookup.check_session != nullptr) {
    record_lookup.check_session(a);
    record_lookup.check_session(b);
  }
  TORCH_CHECK(
      false,
      "one of these tensors is of a machine that was stopped: it cannot be used with tensors "
      "of another machine");
}

}  // namespace

uint32_t Capture::storage_number(StorageRecord* record, bool& first_mention) {
  const size_t known = storage_index_.find(storages_, record);
  if (known != PointerIndex::kNone)
    return static_cast<uint32_t>(known);
  first_mention = true;
  if (C10_UNLIKELY(!storages_.empty() && storages_.front()->session != record->session))
    refuse_sessions(*storages_.front(), *record);
  storages_.push_back(record);
  const bool announced = is_recorded_ || record->announced.load(std::memory_order_relaxed);
  fresh_.push_back(announced ? 0 : record->nbytes.load(std::memory_order_relaxed) + 1);
  return static_cast<uint32_t>(storages_.size() - 1);
}

void Capture::finish() {
  wire::encode_storage_count(key_, storages_.size());
  for (size_t i = 0; i < storages_.size(); ++i) {
    const uint64_t fresh = fresh_[i];
    wire::encode_storage(key_, {fresh != 0, storages_[i]->server_device, fresh - 1});
  }
  check_limit("bytes that describe the arguments", key_.size() + numbers_.size(), kMaxCallBytes);
}

bool Capture::is_current() const {
  for (size_t i = 0; i < storages_.size(); ++i)
    if (fresh_[i] != 0 && storages_[i]->announced.load(std::memory_order_relaxed))
      return false;
  return true;
}

void Capture::mark_announced(uint64_t call, uint64_t thread) const {
  for (size_t i = 0; i < storages_.size(); ++i)
    if (fresh_[i] != 0)
      storages_[i]->note_made(call, thread);
}

}  // namespace torch_remote::client
