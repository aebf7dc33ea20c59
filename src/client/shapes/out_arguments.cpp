#include "client/shapes/out_arguments.h"

#include <algorithm>

#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include "base/error.h"
#include "client/memory/storage.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

bool is_mentioned(c10::ArrayRef<c10::IValue> arguments, const at::Tensor& tensor) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& argument) {
    if (argument.isTensor())
      return argument.toTensor().is_same(tensor);
    if (!argument.isTensorList())
      return false;
    const auto items = argument.toListRef();
    return std::any_of(items.begin(), items.end(),
                       [&](const c10::IValue& item) { return item.toTensor().is_same(tensor); });
  });
}

// Whether another tensor among the arguments has the same storage.
bool shares_storage(const at::Tensor& tensor, c10::ArrayRef<c10::IValue> arguments) {
  const auto shares = [&](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && !value.toTensor().is_same(tensor) &&
           value.toTensor().is_alias_of(tensor);
  };
  return std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& value) {
    if (!value.isTensorList())
      return shares(value);
    const auto items = value.toListRef();
    return std::any_of(items.begin(), items.end(), shares);
  });
}

bool writes(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
            const at::TensorImpl* impl) {
  const auto is_it = [&](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().unsafeGetTensorImpl() == impl;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!info.arguments[i].is_written)
      continue;
    if (is_it(arguments[i]))
      return true;
    if (!arguments[i].isTensorList())
      continue;
    const auto items = arguments[i].toListRef();
    if (std::any_of(items.begin(), items.end(), is_it))
      return true;
  }
  return false;
}

// A server may resize what the call writes, and make its storage larger, not smaller.
void check_resize(const OperatorInfo& info, const Capture& capture,
                  c10::ArrayRef<c10::IValue> arguments, const wire::Result& result) {
  if (result.kind != wire::ResultKind::kResized || result.tensor >= capture.impls().size())
    throw ProtocolError("a result names a tensor that is not there");
  const at::TensorImpl& impl = *capture.impls()[result.tensor];
  if (!writes(info, arguments, &impl))
    throw ProtocolError("a result resizes a tensor that the call does not write");
  const StorageRecord& record = *record_of(impl);
  const uint64_t offset = offset_of(impl, record) * impl.itemsize();
  const uint64_t bytes = wire::extent_bytes(result.spec);
  if (marshal::from_wire(result.spec.dtype) != c10::typeMetaToScalarType(impl.dtype()) ||
      result.nbytes < record.nbytes.load(std::memory_order_relaxed) ||
      (bytes != 0 && (bytes > result.nbytes || offset > result.nbytes - bytes)))
    throw ProtocolError("a result is not inside its storage");
  TORCH_CHECK(owns_record(*impl.unsafe_storage().unsafeGetStorageImpl()) ||
                  result.nbytes == record.nbytes.load(std::memory_order_relaxed),
              "an `out=` tensor in a slice of a storage cannot grow");
}

}  // namespace

bool resize_outs(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                 const std::vector<at::Tensor>& metas) {
  bool resized = false;
  for (size_t i = 0; i < info.out_arguments.size(); ++i) {
    const at::Tensor& out = arguments[info.out_arguments[i]].toTensor();
    if (!out.defined() || out.sizes().equals(metas[i].sizes()))
      continue;
    if (out.numel() == metas[i].numel() && info.has(kFillsAnyShape))
      continue;
    resized |= at::native::resize_output(out, metas[i].sizes());
    if (!out.strides().equals(metas[i].strides()) && out.sizes().equals(metas[i].sizes()))
      out.unsafeGetTensorImpl()->set_sizes_and_strides(metas[i].sizes(), metas[i].strides());
  }
  return resized;
}

bool resizes_inputs(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                    const std::vector<at::Tensor>& metas) {
  for (size_t i = 0; i < metas.size(); ++i) {
    const at::Tensor& out = arguments[info.out_arguments[i]].toTensor();
    if (out.defined() && !out.sizes().equals(metas[i].sizes()) &&
        is_mentioned(arguments.slice(0, info.out_arguments.front()), out))
      return true;
  }
  return false;
}

bool is_doubtful(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (info.out_arguments.empty())
    return false;
  for (const uint32_t index : info.out_arguments) {
    const at::Tensor& out = arguments[index].toTensor();
    if (at::has_internal_overlap(out) == at::MemOverlap::Yes || shares_storage(out, arguments))
      return true;
  }
  const c10::IValue& first = arguments[0];
  if (!first.isTensor() && !(first.isTensorList() && !first.toListRef().empty()))
    return false;
  const at::Tensor& input = first.isTensor() ? first.toTensor() : first.toListRef()[0].toTensor();
  return input.defined() &&
         std::any_of(info.out_arguments.begin(), info.out_arguments.end(), [&](uint32_t index) {
           return arguments[index].toTensor().scalar_type() != input.scalar_type();
         });
}

bool has_empty_out(const std::vector<at::Tensor>& outs) {
  return std::any_of(outs.begin(), outs.end(),
                     [](const at::Tensor& out) { return out.defined() && out.numel() == 0; });
}

void follow_resizes(const OperatorInfo& info, const Capture& capture,
                    c10::ArrayRef<c10::IValue> arguments,
                    const std::vector<wire::Result>& resized) {
  for (const wire::Result& result : resized)
    check_resize(info, capture, arguments, result);
  for (const wire::Result& result : resized) {
    auto* impl = const_cast<c10::TensorImpl*>(capture.impls()[result.tensor]);
    const at::Tensor tensor(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
    impl->set_sizes_and_strides(result.spec.sizes, result.spec.strides);
    if (tensor.is_complex())
      impl->_set_conj(result.spec.conj);
    impl->_set_neg(result.spec.neg);
    c10::StorageImpl& storage = *impl->unsafe_storage().unsafeGetStorageImpl();
    if (owns_record(storage) && storage.nbytes() != result.nbytes)
      take_size(storage, result.nbytes);
  }
}

}  // namespace torch_remote::client
