#include "client/infer.h"

#include <algorithm>

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>

#include "base/log.h"
#include "client/errors.h"
#include "client/kernels/server_branch.h"
#include "client/meta_arguments.h"
#include "client/out_arguments.h"
#include "client/shapes/shapes.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

using wire::Output;
using wire::OutputKind;

Output output_of(const at::Tensor& meta, MetaArguments& arguments,
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

std::vector<Output> outputs_of(c10::ArrayRef<c10::IValue> results, MetaArguments& arguments,
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

std::vector<at::Tensor> metas_of_outs(const OperatorInfo& info, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> metas;
  for (const uint32_t index : info.out_arguments)
    metas.push_back(stack[index].toTensor());
  return metas;
}

// Runs `kernel` on meta tensors.
template <typename Kernel>
Inference run_meta(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                   c10::ArrayRef<const at::TensorImpl*> mentioned, Kernel&& kernel) {
  MetaArguments meta(arguments);
  const std::vector<at::Tensor> outs = metas_of_outs(info, meta.stack());
  try {
    kernel(meta.stack());
  } catch (...) {
    // A CPU computes in the common dtype and casts into `out=`; Meta, as CUDA, takes the dtype of `out=` for it.
    if (is_doubtful(info, arguments))
      return {};
    if (info.meta != nullptr)
      resize_outs(info, arguments, outs);  // as far as the same function comes locally
    throw;
  }
  // An `out=` keeps its size until the kernel has taken its dtype, and only the kernel knows what becomes of an input
  // that it resizes.
  if (is_doubtful(info, arguments) || resizes_inputs(info, arguments, outs))
    return {};
  if (resize_outs(info, arguments, outs))
    return {Inferred::kResized, {}};
  if (has_empty_out(outs))
    return {};
  return {Inferred::kKnown, outputs_of(meta.stack(), meta, mentioned)};
}

// Whether strides say nothing: those of a dimension of size 1, or of a tensor without elements. C++ code has its ways
// with them, which Meta kernels in Python do not know.
bool has_idle_strides(const at::TensorImpl& tensor) {
  if (tensor.numel() == 0)
    return true;
  return tensor.is_non_overlapping_and_dense() &&
         tensor.strides() !=
             c10::IntArrayRef(at::infer_dense_strides(tensor.sizes(), tensor.strides()));
}

at::Tensor meta_of(const Output& output) {
  return at::detail::empty_strided_meta(output.spec.sizes, output.spec.strides,
                                        marshal::from_wire(output.spec.dtype));
}

Inference ask_dispatcher(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                         c10::ArrayRef<const at::TensorImpl*> mentioned) {
  if (std::any_of(mentioned.begin(), mentioned.end(),
                  [](const at::TensorImpl* tensor) { return has_idle_strides(*tensor); }))
    return {};
  try {
    c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset);
    Inference inference = run_meta(info, arguments, mentioned,
                                   [&](torch::jit::Stack& stack) { info.handle.callBoxed(stack); });
    inference.by_python = true;
    return inference;
  } catch (const std::exception& error) {
    if (log_enabled(LogLevel::kDebug)) {
      log(LogLevel::kDebug, "Meta does not know", {{"operator", info.name}, {"why", error.what()}});
    }
    return {};
  }
}

// A CPU casts operands to the common dtype before it lays out the result, and the cast of a tensor that overlaps itself
// does not: its strides, which say nothing to Meta and to CUDA, have a say there. So Meta is given the cast's.
void cast_as_cpu_does(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                      torch::jit::Stack& stack) {
  if (!info.has_fresh_outputs || arguments.size() < 2 || !arguments[0].isTensor() ||
      !arguments[1].isTensor())
    return;
  const at::Tensor& a = arguments[0].toTensor();
  const at::Tensor& b = arguments[1].toTensor();
  if (!a.defined() || !b.defined() || a.scalar_type() == b.scalar_type() || a.dim() == 0 ||
      b.dim() == 0)
    return;
  const size_t at = a.scalar_type() == at::native::result_type(at::ITensorListRef({a, b})) ? 1 : 0;
  const at::Tensor& cast = arguments[at].toTensor();
  if (cast.is_non_overlapping_and_dense() || !kernels::is_on_cpu_server(cast))
    return;
  const Output dense = shapes::like(cast);
  stack[at] =
      at::detail::empty_strided_meta(dense.spec.sizes, dense.spec.strides, cast.scalar_type());
}

// PyTorch's C++ shape code. It speaks of meta tensors where the user has remote ones.
Inference ask_meta_function(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                            c10::ArrayRef<const at::TensorImpl*> mentioned) {
  constexpr std::string_view kMixed = "at least two devices, meta and ";
  try {
    return run_meta(info, arguments, mentioned, [&](torch::jit::Stack& stack) {
      cast_as_cpu_does(info, arguments, stack);
      info.meta->callBoxed(info.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    });
  } catch (const c10::Error& error) {
    // Some shape code looks at the first row, on meta tensors only, also where there is none: index_add.
    if (std::any_of(mentioned.begin(), mentioned.end(),
                    [](const at::TensorImpl* tensor) { return tensor->numel() == 0; }))
      return {};
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

// What our shape function tells of an `out=` form is the size each tensor has to have.
Inference fit_outs(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                   c10::ArrayRef<const at::TensorImpl*> mentioned,
                   const std::vector<Output>& told) {
  std::vector<at::Tensor> metas;
  for (const Output& output : told)
    metas.push_back(meta_of(output));
  if (resize_outs(info, arguments, metas))
    return {Inferred::kResized, {}};
  Inference inference;
  if (returns_only_arguments(info, arguments, mentioned, inference.outputs))
    inference.result = Inferred::kKnown;
  return inference;
}

// Whether a call in place is right for sure: the shape function of the form that makes a new tensor answers with self's
// own shape and dtype; or there is but one tensor, and PyTorch's shape code has nothing to say.
bool is_plainly_right(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (info.writes_list)
    return shapes::lists_agree(arguments);
  if (!arguments[0].isTensor())
    return true;
  if (info.name == "aten::copy_")
    return true;  // kernels::copy_ has looked
  std::vector<Output> outputs;
  if (info.shape != nullptr && info.shape(arguments, outputs)) {
    const at::Tensor& self = arguments[0].toTensor();
    return outputs[0].spec.sizes == self.sizes() &&
           marshal::from_wire(outputs[0].spec.dtype) == self.scalar_type();
  }
  const auto is_tensor = [](const c10::IValue& value) {
    return (value.isTensor() && value.toTensor().defined()) || value.isOptionalTensorList();
  };
  return info.meta == nullptr && std::count_if(arguments.begin(), arguments.end(), is_tensor) < 2;
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
  const bool tells_shape = info.has_fresh_outputs || !info.out_arguments.empty();
  if (tells_shape && info.shape != nullptr && info.shape(arguments, inference.outputs)) {
    if (!info.out_arguments.empty())
      return fit_outs(info, arguments, mentioned, inference.outputs);
    inference.result = Inferred::kKnown;
    return inference;
  }
  inference.outputs.clear();
  if (!tells_shape && !depends_on_data(info, arguments) &&
      returns_only_arguments(info, arguments, mentioned, inference.outputs) &&
      is_plainly_right(info, arguments)) {
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
  // Which dtypes an `out=` may have, and how it is laid out when it is resized, only the kernel knows. What has no
  // input (randperm, normal with numbers) is a factory's work: its `out=` was made to fit.
  if (!info.out_arguments.empty() && mentioned.size() > info.out_arguments.size())
    return inference;
  if (!outs_are_tensors(info, arguments))
    return inference;
  return ask_dispatcher(info, arguments, mentioned);
}

}  // namespace torch_remote::client
