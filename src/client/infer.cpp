#include "client/infer.h"

#include <algorithm>

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>

#include "base/log.h"
#include "client/errors.h"
#include "client/functional_twin.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

using wire::Output;
using wire::OutputKind;

// A tensor with the same metadata on the meta device.
at::Tensor to_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_privateuseone())
    return tensor;
  at::Tensor meta =
      at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  if (tensor.is_conj())
    meta._set_conj(true);
  if (tensor.is_neg())
    meta._set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

// The call's arguments on the meta device; one meta tensor for each tensor, so that a tensor that comes
// back is known again.
class MetaArguments {
 public:
  explicit MetaArguments(c10::ArrayRef<c10::IValue> arguments) {
    for (const c10::IValue& argument : arguments)
      stack_.push_back(convert(argument));
  }

  torch::jit::Stack& stack() { return stack_; }

  // The real tensor a meta tensor stands for, or null.
  const at::TensorImpl* real(const at::Tensor& meta) const {
    for (const auto& [from, to] : pairs_) {
      if (to.is_same(meta))
        return from;
    }
    return nullptr;
  }

 private:
  at::Tensor convert_tensor(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_privateuseone())
      return tensor;
    for (const auto& [from, to] : pairs_) {
      if (from == tensor.unsafeGetTensorImpl())
        return to;
    }
    pairs_.emplace_back(tensor.unsafeGetTensorImpl(), to_meta(tensor));
    return pairs_.back().second;
  }

  c10::IValue convert(const c10::IValue& value) {
    if (value.isTensor())
      return convert_tensor(value.toTensor());
    if (value.isDevice() && value.toDevice().is_privateuseone())
      return c10::Device(c10::kMeta);
    if (value.isGenerator())
      return c10::IValue();
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& item : value.toListRef())
        list.push_back(convert_tensor(item.toTensor()));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : value.toListRef()) {
        list.push_back(item.isNone() ? std::optional<at::Tensor>()
                                     : convert_tensor(item.toTensor()));
      }
      return list;
    }
    return value;
  }

  torch::jit::Stack stack_;
  std::vector<std::pair<const at::TensorImpl*, at::Tensor>> pairs_;
};

Output output_of(const at::Tensor& meta, const MetaArguments& arguments,
                 c10::ArrayRef<const at::TensorImpl*> mentioned) {
  Output output;
  if (!meta.defined())
    return output;
  if (const at::TensorImpl* real = arguments.real(meta)) {
    for (size_t i = 0; i < mentioned.size(); ++i) {
      if (mentioned[i] != real)
        continue;
      output.kind = OutputKind::kTensor;
      output.tensor = i;
      return output;
    }
  }
  output.kind = OutputKind::kFresh;
  output.spec = marshal::spec_of(meta);
  output.spec.wrapped = false;
  return output;
}

std::vector<Output> outputs_of(c10::ArrayRef<c10::IValue> results, const MetaArguments& arguments,
                               c10::ArrayRef<const at::TensorImpl*> mentioned) {
  std::vector<Output> outputs;
  for (const c10::IValue& result : results) {
    if (!result.isTensorList()) {
      outputs.push_back(output_of(result.toTensor(), arguments, mentioned));
      continue;
    }
    Output list;
    list.kind = OutputKind::kList;
    for (const c10::IValue& item : result.toListRef()) {
      list.items.push_back(output_of(item.toTensor(), arguments, mentioned));
    }
    outputs.push_back(std::move(list));
  }
  return outputs;
}

// Gives `out=` tensors the size their meta twins have come to have. True when one changed.
bool resize_outs(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                 const std::vector<at::Tensor>& metas) {
  bool resized = false;
  for (size_t i = 0; i < info.out_arguments.size(); ++i) {
    const at::Tensor& out = arguments[info.out_arguments[i]].toTensor();
    if (!out.defined() || out.sizes().equals(metas[i].sizes()))
      continue;
    resized |= at::native::resize_output(out, metas[i].sizes());
    if (!out.strides().equals(metas[i].strides()) && out.sizes().equals(metas[i].sizes())) {
      out.unsafeGetTensorImpl()->set_sizes_and_strides(metas[i].sizes(), metas[i].strides());
    }
  }
  return resized;
}

std::vector<at::Tensor> metas_of_outs(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> metas;
  for (const uint32_t index : info.out_arguments)
    metas.push_back(stack[index].toTensor());
  return metas;
}

bool outs_are_tensors(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  for (const uint32_t index : info.out_arguments) {
    if (!arguments[index].isTensor())
      return false;
  }
  return true;
}

// Whether the kernel might refuse the dtype of an `out=` tensor, which Meta kernels do not look at.
bool is_doubtful(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (info.out_arguments.empty())
    return false;
  const c10::IValue& first = arguments[0];
  if (!first.isTensor() && !(first.isTensorList() && !first.toListRef().empty()))
    return false;
  const at::Tensor& input = first.isTensor() ? first.toTensor() : first.toListRef()[0].toTensor();
  for (const uint32_t index : info.out_arguments) {
    if (input.defined() && arguments[index].toTensor().scalar_type() != input.scalar_type())
      return true;
  }
  return false;
}

// Runs `kernel` on meta tensors.
template <typename Kernel>
Inference run_meta(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                   c10::ArrayRef<const at::TensorImpl*> mentioned, Kernel&& kernel) {
  MetaArguments meta(arguments);
  const std::vector<at::Tensor> outs = metas_of_outs(info, meta.stack());
  kernel(meta.stack());
  if (resize_outs(info, arguments, outs))
    return {Inferred::kResized, {}};
  if (is_doubtful(info, arguments))
    return {Inferred::kDoubtful, {}};
  return {Inferred::kKnown, outputs_of(meta.stack(), meta, mentioned)};
}

// An `out=` form whose own Meta kernel does not answer: the sizes come from its functional twin.
Inference ask_twin(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  const OperatorInfo* twin = functional_twin(info);
  if (twin == nullptr || !outs_are_tensors(info, arguments))
    return {};
  const auto inputs = arguments.slice(0, twin->arguments.size());
  const Inference inference = infer(*twin, inputs, {});
  if (inference.result != Inferred::kKnown)
    return {};
  std::vector<at::Tensor> metas;
  for (const Output& output : inference.outputs) {
    if (output.kind != OutputKind::kFresh)
      return {};
    metas.push_back(at::detail::empty_strided_meta(output.spec.sizes, output.spec.strides,
                                                   marshal::from_wire(output.spec.dtype)));
  }
  if (metas.size() != info.out_arguments.size())
    return {};
  return {resize_outs(info, arguments, metas) ? Inferred::kResized : Inferred::kDoubtful, {}};
}

Inference ask_dispatcher(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                         c10::ArrayRef<const at::TensorImpl*> mentioned) {
  try {
    c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset);
    Inference inference = run_meta(info, arguments, mentioned,
                                   [&](torch::jit::Stack& stack) { info.handle.callBoxed(stack); });
    inference.by_python = true;
    return inference;
  } catch (const std::exception& error) {
    // The server cannot be asked (arange, eye): Meta's word is the last.
    if (!info.out_arguments.empty() && functional_twin(info) == nullptr)
      throw;
    if (log_enabled(LogLevel::kDebug)) {
      log(LogLevel::kDebug, "Meta does not know", {{"operator", info.name}, {"why", error.what()}});
    }
    return info.out_arguments.empty() ? Inference{} : ask_twin(info, arguments);
  }
}

// PyTorch's C++ shape code. It speaks of meta tensors where the user has remote ones.
Inference ask_meta_function(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                            c10::ArrayRef<const at::TensorImpl*> mentioned) {
  constexpr std::string_view kMixed = "at least two devices, meta and ";
  try {
    return run_meta(info, arguments, mentioned, [&](torch::jit::Stack& stack) {
      info.meta->callBoxed(info.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    });
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const size_t at = text.find(kMixed);
    if (at == text.npos || mentioned.empty())
      throw;
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                mentioned[0]->device(), " and ", text.substr(at + kMixed.size()),
                " (when checking arguments of ", info.name, ")");
  }
}

// Nothing new comes out: every return is an argument that was written.
bool returns_only_arguments(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                            c10::ArrayRef<const at::TensorImpl*> mentioned,
                            std::vector<Output>& outputs) {
  if (info.has_fresh_outputs)
    return false;
  for (const ReturnInfo& result : info.returns) {
    const c10::IValue& argument = arguments[static_cast<size_t>(result.written_argument)];
    if (!argument.isTensor())
      return false;
    const auto at =
        std::find(mentioned.begin(), mentioned.end(), argument.toTensor().unsafeGetTensorImpl());
    if (at == mentioned.end())
      return false;
    Output output;
    output.kind = OutputKind::kTensor;
    output.tensor = static_cast<uint64_t>(at - mentioned.begin());
    outputs.push_back(std::move(output));
  }
  return true;
}

bool is_mask(const c10::IValue& index) {
  if (!index.isTensor() || !index.toTensor().defined())
    return false;
  return index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte;
}

// Indexing depends on data only with a mask among the indices.
bool depends_on_data(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (!info.depends_on_data || !info.takes_host_indices)
    return info.depends_on_data;
  const auto indices = arguments[1].toListRef();
  return std::any_of(indices.begin(), indices.end(), is_mask);
}

}  // namespace

Inference infer(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                c10::ArrayRef<const at::TensorImpl*> mentioned) {
  Inference inference;
  if (info.shape != nullptr && info.shape(arguments, inference.outputs)) {
    inference.result = Inferred::kKnown;
    return inference;
  }
  inference.outputs.clear();
  if (info.asks_server)
    return inference;
  if (info.out_arguments.empty() && depends_on_data(info, arguments))
    return inference;
  if (info.meta != nullptr)
    return ask_meta_function(info, arguments, mentioned);
  if (info.out_arguments.empty() &&
      returns_only_arguments(info, arguments, mentioned, inference.outputs)) {
    inference.result = Inferred::kKnown;
    return inference;
  }
  if (!outs_are_tensors(info, arguments))
    return inference;
  return ask_dispatcher(info, arguments, mentioned);
}

}  // namespace torch_remote::client
