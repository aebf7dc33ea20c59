#include "server/executor/outputs.h"

#include <typeinfo>

#include <ATen/ops/empty_strided.h>

#include "marshal/dtype.h"
#include "marshal/sparse.h"
#include "server/executor/sparse.h"

namespace torch_remote::server {
namespace {

std::string describe(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return c10::str(dtype, sizes, " with strides ", strides);
}

std::string describe(const at::Tensor& tensor) {
  return describe(tensor.scalar_type(), tensor.sizes(), tensor.strides());
}

std::string describe(const wire::TensorSpec& spec) {
  return describe(marshal::from_wire(spec.dtype), spec.sizes, spec.strides);
}

void check_strided(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage())
    return;
  if (!tensor.defined())
    throw Refused("returned no tensor where the client expected one");
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the result has the layout ", tensor.layout(),
                              ", which is not supported on a remote device; compute it on the "
                              "CPU, with .cpu()");
}

// True if no other tensor, and nothing inside PyTorch, uses this memory.
bool owns_storage_alone(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

bool is_plain(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return typeid(impl) == typeid(c10::TensorImpl) && !tensor._is_zerotensor() &&
         tensor.storage_offset() == 0;
}

bool have_same_places(c10::IntArrayRef sizes, c10::IntArrayRef a, c10::IntArrayRef b) {
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] == 0)
      return true;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1 && a[i] != b[i])
      return false;
  return true;
}

// Note [Outputs on another device]
//
// A storage of the session lies on the device that the call was for, or kernels and reads would
// take host memory for the GPU's. So an output that lies elsewhere is copied. The exception is a
// scalar on the CPU: PyTorch takes those beside tensors of any device, and the backward kernels of
// attention read the seeds that its forward kernels return from host memory.
bool lies_elsewhere(const at::Tensor& tensor, c10::Device device) {
  const c10::Device here = tensor.device();
  const bool is_same =
      here.type() == device.type() && (!device.has_index() || here.index() == device.index());
  return !is_same && !(here.is_cpu() && tensor.dim() == 0);
}

at::Tensor copy_to_layout(const at::Tensor& tensor, c10::IntArrayRef strides, bool conj, bool neg,
                          c10::Device device) {
  at::Tensor copy = at::empty_strided(tensor.sizes(), strides, tensor.options().device(device));
  if (conj)
    copy._set_conj(true);
  if (neg)
    copy._set_neg(true);
  copy.copy_(tensor);
  return copy;
}

// How one part of a sparse result is sent: as the argument that it is, or as a fresh tensor.
wire::Result describe_part(at::Tensor part, c10::ArrayRef<at::Tensor> arguments, c10::Device device,
                           std::vector<at::Tensor>& fresh) {
  wire::Result result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].defined() || !is_same_view(part, arguments[i]))
      continue;
    result.kind = wire::ResultKind::kTensor;
    result.tensor = i;
    return result;
  }
  part = own_output(std::move(part), device);
  result.kind = wire::ResultKind::kFresh;
  result.spec = marshal::spec_of(part);
  result.nbytes = part.storage().nbytes();
  fresh.push_back(std::move(part));
  return result;
}

wire::Result sparse_result(at::Tensor tensor, const Mentioned& mentioned,
                           std::vector<at::Tensor>& fresh) {
  for (size_t i = 0; i < mentioned.sparse.size(); ++i) {
    if (!tensor.is_same(mentioned.sparse[i]))
      continue;
    wire::Result result;
    result.kind = wire::ResultKind::kSparseTensor;
    result.tensor = i;
    return result;
  }
  return describe_sparse(std::move(tensor), mentioned.tensors, mentioned.device, fresh);
}

wire::Result tensor_result(at::Tensor tensor, const Mentioned& mentioned,
                           marshal::PointerIndex& index, std::vector<at::Tensor>& fresh) {
  wire::Result result;
  if (!tensor.defined()) {
    result.kind = wire::ResultKind::kUndefined;
    return result;
  }
  if (marshal::is_sparse(*tensor.unsafeGetTensorImpl()))
    return sparse_result(std::move(tensor), mentioned, fresh);
  const size_t argument = index.find(mentioned.impls, tensor.unsafeGetTensorImpl());
  if (argument != marshal::PointerIndex::kNone) {
    result.kind = wire::ResultKind::kTensor;
    result.tensor = argument;
    return result;
  }
  tensor = own_output(std::move(tensor), mentioned.device);
  result.kind = wire::ResultKind::kFresh;
  result.spec = marshal::spec_of(tensor);
  result.nbytes = tensor.storage().nbytes();
  fresh.push_back(std::move(tensor));
  return result;
}

wire::Result number_result(const c10::IValue& value) {
  wire::Result result;
  if (value.isNone())
    return result;
  if (value.isBool()) {
    result.kind = wire::ResultKind::kBool;
    result.integer = value.toBool() ? 1 : 0;
  } else if (value.isInt()) {
    result.kind = wire::ResultKind::kInt;
    result.integer = value.toInt();
  } else if (value.isDouble()) {
    result.kind = wire::ResultKind::kFloat;
    result.real = value.toDouble();
  } else if (value.isComplexDouble()) {
    result.kind = wire::ResultKind::kScalarComplex;
    result.real = value.toComplexDouble().real();
    result.imaginary = value.toComplexDouble().imag();
  } else if (value.isString()) {
    result.kind = wire::ResultKind::kString;
    result.text = value.toStringRef();
  } else {
    throw Refused("returned a " + value.tagKind() + ", which cannot be sent");
  }
  return result;
}

}  // namespace

Matched match_output(at::Tensor actual, const wire::TensorSpec& predicted, c10::Device device) {
  check_strided(actual);
  if (actual.sizes() != c10::IntArrayRef(predicted.sizes) ||
      actual.scalar_type() != marshal::from_wire(predicted.dtype)) {
    throw Refused("returned " + describe(actual) + ", and the client had predicted " +
                  describe(predicted));
  }
  const bool same_strides = actual.strides() == c10::IntArrayRef(predicted.strides);
  const bool same_bits = actual.is_conj() == predicted.conj && actual.is_neg() == predicted.neg;
  const bool is_elsewhere = lies_elsewhere(actual, device);
  const bool is_own = owns_storage_alone(actual) && is_plain(actual) && !is_elsewhere;
  if (same_strides && same_bits && is_own)
    return {std::move(actual), {}};
  std::string difference = "predicted " + describe(predicted) + ", got " + describe(actual) +
                           (is_own         ? ""
                            : is_elsewhere ? " on another device"
                                           : " that is not alone in its storage");
  if (same_bits && is_own && have_same_places(actual.sizes(), actual.strides(), predicted.strides))
    return {std::move(actual), std::move(difference)};
  return {copy_to_layout(actual, predicted.strides, predicted.conj, predicted.neg,
                         is_elsewhere ? device : actual.device()),
          std::move(difference)};
}

at::Tensor own_output(at::Tensor actual, c10::Device device) {
  check_strided(actual);
  const bool is_elsewhere = lies_elsewhere(actual, device);
  if (owns_storage_alone(actual) && is_plain(actual) && !is_elsewhere)
    return actual;
  return copy_to_layout(actual, actual.strides(), actual.is_conj(), actual.is_neg(),
                        is_elsewhere ? device : actual.device());
}

wire::Result resized_result(uint64_t number, const at::Tensor& tensor) {
  wire::Result result;
  result.kind = wire::ResultKind::kResized;
  result.tensor = number;
  result.spec = marshal::spec_of(tensor);
  result.nbytes = tensor.storage().nbytes();
  return result;
}

wire::Result describe_sparse(at::Tensor sparse, c10::ArrayRef<at::Tensor> arguments,
                             c10::Device device, std::vector<at::Tensor>& fresh) {
  wire::Result result;
  result.kind = wire::ResultKind::kSparse;
  result.sparse = marshal::sparse_spec_of(sparse);
  marshal::Parts parts = marshal::parts_of(sparse);
  sparse.reset();  // so that a part may be alone in its storage
  for (at::Tensor& part : parts)
    result.items.push_back(describe_part(std::move(part), arguments, device, fresh));
  return result;
}

wire::Result describe_result(c10::IValue value, const Mentioned& mentioned,
                             marshal::PointerIndex& index, std::vector<at::Tensor>& fresh) {
  if (value.isTensor())
    return tensor_result(std::move(value).toTensor(), mentioned, index, fresh);
  if (!value.isList())
    return number_result(value);
  wire::Result result;
  result.kind = wire::ResultKind::kList;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list = std::move(value).toTensorList();
    for (size_t i = 0; i < list.size(); ++i)
      result.items.push_back(tensor_result(list.extract(i), mentioned, index, fresh));
    return result;
  }
  for (const c10::IValue& item : value.toListRef())
    result.items.push_back(number_result(item));
  return result;
}

}  // namespace torch_remote::server
