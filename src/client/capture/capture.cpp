#include "client/capture/capture.h"

#include <algorithm>

#include <c10/core/ScalarType.h>

#include "base/error.h"
#include "marshal/dtype.h"
#include "marshal/sparse.h"
#include "wire/limits.h"

namespace torch_remote::client {
namespace {

using marshal::ArgumentInfo;
using marshal::ArgumentKind;
using marshal::PointerIndex;
using marshal::to_wire;
using wire::ValueKind;

// Half of the limit, because the results may need as many bytes. This also keeps the number of
// tensors below wire::kMaxTensors.
constexpr uint64_t kMaxCallBytes = wire::kMaxSignatureBytes / 2;

void kind(wire::Writer& writer, ValueKind value) {
  writer.u8(static_cast<uint8_t>(value));
}

wire::Dtype checked(at::ScalarType type) {
  const auto dtype = to_wire(type);
  TORCH_CHECK_NOT_IMPLEMENTED(dtype, "dtype ", type, " is not supported on a remote device");
  return *dtype;
}

void put_complex(wire::Writer& writer, c10::complex<double> value) {
  writer.f64(value.real());
  writer.f64(value.imag());
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
    return writer.f64(value.toDouble());
  if (value.isInt())
    return writer.zigzag(value.toInt());
  if (value.isUnsigned())
    return writer.varint(value.toUInt());
  if (value.isBool())
    return writer.u8(value.toBool());
  put_complex(writer, value.toComplexDouble());
}

bool same_scalar(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDouble() && b.isDouble()) {
    const double x = a.toDouble();
    const double y = b.toDouble();
    return std::memcmp(&x, &y, sizeof(x)) == 0;
  }
  return a.isInt() && b.isInt() && a.toInt() == b.toInt();
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

bool is_remote(const c10::IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() && value.toTensor().device().is_privateuseone();
  if (!value.isList())
    return false;
  const auto items = value.toListRef();
  return std::any_of(items.begin(), items.end(), is_remote);
}

}  // namespace

RecordLookup record_lookup;

void Capture::begin(uint32_t operator_id, const char* operator_name, uint8_t environment,
                    c10::ArrayRef<c10::IValue> arguments, bool spans_devices) {
  operator_name_ = operator_name;
  spans_devices_ = spans_devices;
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
  key_.varint(operator_id);
  device_at_ = key_.size();
  key_.u8(0);
  key_.u8(environment);
  key_.varint(arguments.size());
}

void Capture::add(const ArgumentInfo& info, const c10::IValue& value) {
  if (value.isNone()) {
    // An absent `Tensor?` is None on the stack. An undefined tensor is something else.
    return kind(key_, ValueKind::kNone);
  }
  switch (info.kind) {
    case ArgumentKind::kTensor:
      return add_tensor(value.toTensor(), info.is_written);
    case ArgumentKind::kInt:
      kind(key_, ValueKind::kInt);
      return key_.zigzag(value.toInt());
    case ArgumentKind::kFloat:
      kind(key_, info.is_constant ? ValueKind::kConstFloat : ValueKind::kFloat);
      return (info.is_constant ? key_ : numbers_)
          .f64(value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble());
    case ArgumentKind::kBool:
      return kind(key_, value.toBool() ? ValueKind::kTrue : ValueKind::kFalse);
    case ArgumentKind::kScalar:
      return add_scalar(value, info.is_constant);
    case ArgumentKind::kComplex:
      kind(key_, ValueKind::kComplex);
      return put_complex(numbers_, value.toComplexDouble());
    case ArgumentKind::kString:
      check_limit("characters of a string", value.toStringRef().size(), wire::kMaxText);
      kind(key_, ValueKind::kString);
      return key_.text(value.toStringRef());
    case ArgumentKind::kDtype:
      kind(key_, ValueKind::kDtype);
      return key_.u8(static_cast<uint8_t>(checked(value.toScalarType())));
    case ArgumentKind::kLayout: {
      const auto layout = to_wire(value.toLayout());
      TORCH_CHECK_NOT_IMPLEMENTED(layout, "layout ", value.toLayout(),
                                  " is not supported on a remote device");
      kind(key_, ValueKind::kLayout);
      return key_.u8(static_cast<uint8_t>(*layout));
    }
    case ArgumentKind::kMemoryFormat:
      kind(key_, ValueKind::kMemoryFormat);
      return key_.u8(to_wire(value.toMemoryFormat()));
    case ArgumentKind::kDevice:
      return add_device(value.toDevice());
    case ArgumentKind::kGenerator: {
      kind(key_, ValueKind::kGenerator);
      const auto& generator = value.toGenerator();
      TORCH_CHECK(generator.device().is_privateuseone(), "Expected a '",
                  c10::DeviceTypeName(c10::kPrivateUse1, true),
                  "' device type for generator but found '",
                  c10::DeviceTypeName(generator.device().type(), true), "'");
      if (has_host_scalar_)
        check_generator_has_tensor(c10::kCPU);
      meet_device(generator.device().index());
      return numbers_.varint(record_lookup.generator_name(*generator.unsafeGetGeneratorImpl()));
    }
    case ArgumentKind::kUnsupported:
      break;
    default:
      return add_list(info, value.toListRef());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "an argument of type ", value.tagKind(),
                              " cannot be sent to a remote device");
}

void Capture::add_tensor(const at::Tensor& tensor, bool is_written) {
  if (!tensor.defined())
    return kind(key_, ValueKind::kUndefined);
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(!impl.device().is_privateuseone())) {
    // The client would never see what the server writes into its copy of a CPU scalar.
    if (is_written)
      refuse_mix(c10::Device(c10::kPrivateUse1, std::max<c10::DeviceIndex>(device_, 0)),
                 impl.device());
    return add_host_scalar(tensor);
  }
  meet_device(impl.device().index());
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
  kind(key_, ValueKind::kTensor);
  key_.u8(static_cast<uint8_t>(checked(c10::typeMetaToScalarType(impl.dtype()))));
  const bool contiguous = has_contiguous_strides(impl);
  uint8_t flags = contiguous ? wire::kSpecContiguous : 0;
  if (impl.is_conj())
    flags |= wire::kSpecConj;
  if (impl.is_neg())
    flags |= wire::kSpecNeg;
  if (impl.is_wrapped_number())
    flags |= wire::kSpecWrapped;
  key_.u8(flags);
  const auto sizes = impl.sizes();
  check_limit("dimensions of a tensor", sizes.size(), wire::kMaxDimensions);
  key_.u8(static_cast<uint8_t>(sizes.size()));
  for (const int64_t size : sizes)
    key_.varint(static_cast<uint64_t>(size));
  if (!contiguous) {
    for (const int64_t stride : impl.strides())
      key_.varint(static_cast<uint64_t>(stride));
  }
  key_.varint(number);
  tensors_.push_back(
      {record, offset_of(impl, *record), static_cast<uint32_t>(numbers_.size()), first_mention});
  impls_.push_back(&impl);
}

bool Capture::add_again(const at::TensorImpl& impl) {
  const size_t known = impl_index_.find(impls_, &impl);
  if (known == PointerIndex::kNone)
    return false;
  kind(key_, ValueKind::kAgain);
  key_.varint(known);
  return true;
}

void Capture::add_sparse(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const auto known = std::find(sparse_.begin(), sparse_.end(), impl);
  if (known != sparse_.end()) {
    kind(key_, ValueKind::kSparseAgain);
    return key_.varint(static_cast<uint64_t>(known - sparse_.begin()));
  }
  sparse_.push_back(impl);
  check_limit("dimensions of a tensor", impl->sizes().size(), wire::kMaxDimensions);
  kind(key_, ValueKind::kSparse);
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
  kind(key_, ValueKind::kScalarTensor);
  key_.u8(static_cast<uint8_t>(checked(value.scalar_type())));
  key_.u8(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  numbers_.raw({static_cast<const std::byte*>(value.const_data_ptr()), value.itemsize()});
}

void Capture::add_scalar(const c10::IValue& value, bool is_constant) {
  if (!is_constant) {
    kind(key_, scalar_kind(value));
    return put_scalar(numbers_, value);
  }
  if (value.isDouble()) {
    kind(key_, ValueKind::kConstScalarFloat);
    return key_.f64(value.toDouble());
  }
  if (value.isComplexDouble()) {
    const double real = value.toScalar().toDouble();  // throws where there is an imaginary part
    kind(key_, ValueKind::kConstScalarFloat);
    return key_.f64(real);
  }
  kind(key_, ValueKind::kConstScalarInt);
  key_.zigzag(value.isBool() ? value.toBool() : value.toInt());
}

void Capture::add_list(const ArgumentInfo& info, c10::ArrayRef<c10::IValue> items) {
  check_limit("elements of a list", items.size(), wire::kMaxListLength);
  switch (info.kind) {
    case ArgumentKind::kTensorList:
      kind(key_, ValueKind::kList);
      key_.varint(items.size());
      for (const c10::IValue& item : items) {
        if (item.isNone()) {
          kind(key_, ValueKind::kNone);
        } else {
          add_tensor(item.toTensor(), info.is_written);
        }
      }
      return;
    case ArgumentKind::kIntList:
      kind(key_, ValueKind::kIntList);
      key_.varint(items.size());
      for (const c10::IValue& item : items)
        key_.zigzag(item.toInt());
      return;
    case ArgumentKind::kBoolList:
      kind(key_, ValueKind::kBoolList);
      key_.varint(items.size());
      for (const c10::IValue& item : items)
        key_.u8(item.toBool());
      return;
    case ArgumentKind::kFloatList: {
      kind(key_, ValueKind::kFloatList);
      key_.varint(items.size());
      bool same = items.size() > 1;
      for (size_t i = 1; same && i < items.size(); ++i)
        same = same_scalar(items[0], items[i]);
      numbers_.u8(same);
      if (same)
        return numbers_.f64(items[0].toDouble());
      for (const c10::IValue& item : items)
        numbers_.f64(item.toDouble());
      return;
    }
    default:
      return add_scalar_list(items);
  }
}

void Capture::add_scalar_list(c10::ArrayRef<c10::IValue> items) {
  kind(key_, ValueKind::kScalarList);
  key_.varint(items.size());
  bool same = items.size() > 1;
  for (size_t i = 1; same && i < items.size(); ++i)
    same = same_scalar(items[0], items[i]);
  for (const c10::IValue& item : items)
    kind(key_, scalar_kind(item));
  numbers_.u8(same);
  if (same)
    return put_scalar(numbers_, items[0]);
  for (const c10::IValue& item : items)
    put_scalar(numbers_, item);
}

void Capture::add_device(c10::Device device) {
  if (device.is_cpu())
    return kind(key_, ValueKind::kCpuDevice);
  TORCH_CHECK(device.is_privateuseone(), "a call on a remote device cannot name ", device);
  kind(key_, ValueKind::kDevice);
  if (device.has_index())
    meet_device(device.index());
}

void Capture::meet_device(c10::DeviceIndex index) {
  if (C10_LIKELY(device_ == index))
    return;
  if (device_ >= 0 && spans_devices_)
    return;
  if (device_ >= 0)
    refuse_mix(c10::Device(c10::kPrivateUse1, device_), c10::Device(c10::kPrivateUse1, index));
  device_ = index;
}

void Capture::refuse_mix(c10::Device a, c10::Device b) const {
  check_generator_has_tensor(b.type());
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ", a,
              " and ", b, "! (when checking arguments of ", operator_name_, ")");
}

void Capture::check_generator_has_tensor(c10::DeviceType elsewhere) const {
  bool has_generator = false;
  for (const c10::IValue& value : arguments_) {
    if (value.isGenerator())
      has_generator = value.toGenerator().device().is_privateuseone();
    if (is_remote(value))
      return;
  }
  TORCH_CHECK(!has_generator, "Expected a '", c10::DeviceTypeName(elsewhere, true),
              "' device type for generator but found '",
              c10::DeviceTypeName(c10::kPrivateUse1, true), "'");
}

uint32_t Capture::storage_number(StorageRecord* record, bool& first_mention) {
  const size_t known = storage_index_.find(storages_, record);
  if (known != PointerIndex::kNone)
    return static_cast<uint32_t>(known);
  first_mention = true;
  TORCH_CHECK(storages_.empty() || storages_.front()->session == record->session,
              "a tensor of a machine that was stopped cannot be used with tensors of another");
  storages_.push_back(record);
  const bool announced = record->announced.load(std::memory_order_relaxed);
  fresh_.push_back(announced ? 0 : record->nbytes.load(std::memory_order_relaxed) + 1);
  return static_cast<uint32_t>(storages_.size() - 1);
}

void Capture::finish() {
  key_.varint(storages_.size());
  for (size_t i = 0; i < storages_.size(); ++i) {
    const uint64_t fresh = fresh_[i];
    wire::encode_storage(key_, {fresh != 0, storages_[i]->server_device, fresh - 1});
  }
  check_limit("bytes that describe the arguments", key_.size() + numbers_.size(), kMaxCallBytes);
}

void Capture::refuse_limit(const char* what, uint64_t value, uint64_t limit) const {
  TORCH_CHECK(false, operator_name_, ": ", value, " ", what, " are more than the ", limit,
              " that one remote call takes");
}

}  // namespace torch_remote::client
