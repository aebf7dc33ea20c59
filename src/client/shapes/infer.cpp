#include "client/shapes/infer.h"

#include <algorithm>
#include <iterator>
#include <regex>
#include <typeinfo>

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>

#include "base/log.h"
#include "client/capture/advice.h"
#include "client/memory/server_branch.h"
#include "client/shapes/meta_arguments.h"
#include "client/shapes/out_arguments.h"
#include "client/shapes/shapes.h"
#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;
using Mentioned = c10::ArrayRef<const at::TensorImpl*>;
using wire::Output;
using wire::OutputKind;

Output output_of(const at::Tensor& meta, MetaArguments& arguments, Mentioned mentioned) {
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
                               Mentioned mentioned) {
  std::vector<Output> outputs;
  for (const c10::IValue& result : results) {
    if (!result.isTensorList()) {
      outputs.push_back(output_of(result.toTensor(), arguments, mentioned));
      continue;
    }
    Output list;
    list.kind = OutputKind::kList;
    for (const c10::IValue& item : result.toListRef())
      list.items.push_back(output_of(item.toTensor(), arguments, mentioned));
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

// What a Meta kernel warns of, the server's kernel warns of too.
class Silence : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

template <typename Kernel>
Inference run_meta(const OperatorInfo& info, Arguments arguments, Mentioned mentioned,
                   Kernel&& kernel) {
  MetaArguments meta(arguments);
  const std::vector<at::Tensor> outs = metas_of_outs(info, meta.stack());
  try {
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard guard(&silence);
    kernel(meta.stack());
  } catch (...) {
    // With an `out=` of another dtype a CPU computes in the common dtype, Meta and CUDA in that of
    // `out=`. So Meta may refuse what the server accepts.
    if (is_doubtful(info, arguments))
      return {};
    if (info.meta != nullptr)
      // locally, the same shape code resizes `out=` before it throws
      resize_outs(info, arguments, outs);
    throw;
  }
  // The kernel checks the dtype of an `out=` before it resizes it, and only the kernel knows what
  // happens to an input that is resized.
  if (is_doubtful(info, arguments) || resizes_inputs(info, arguments, outs))
    return {};
  if (resize_outs(info, arguments, outs))
    return {Inferred::kResized, {}};
  if (has_empty_out(outs))
    return {};
  return {Inferred::kKnown, outputs_of(meta.stack(), meta, mentioned)};
}

// Whether some strides have no effect: in a dimension of size 1, or without elements. Meta kernels
// in Python treat such strides differently from PyTorch's C++ code.
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

// A Meta kernel in Python warns, with a line of torch's, of each resize that is not from nothing.
// The `out=` of an operator with other tensors is left as it is: it may be one of them.
void empty_outs(const OperatorInfo& info, torch::jit::Stack& stack) {
  const auto are_tensors = [](const c10::IValue& value) {
    return value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
  };
  if (std::ranges::count_if(stack, are_tensors) != std::ssize(info.out_arguments))
    return;
  for (const uint32_t index : info.out_arguments)
    stack[index].toTensor().unsafeGetTensorImpl()->set_sizes_contiguous({0});
}

Inference ask_dispatcher(const OperatorInfo& info, Arguments arguments, Mentioned mentioned) {
  if (std::any_of(mentioned.begin(), mentioned.end(),
                  [](const at::TensorImpl* tensor) { return has_idle_strides(*tensor); }))
    return {};
  try {
    c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset);
    return run_meta(info, arguments, mentioned, [&](torch::jit::Stack& stack) {
      empty_outs(info, stack);
      info.handle.callBoxed(stack);
    });
  } catch (const std::exception& error) {
    if (log_enabled(LogLevel::kDebug))
      log(LogLevel::kDebug, "Meta does not know", {{"operator", info.name}, {"why", error.what()}});
    return {};
  }
}

// A CPU casts operands to the common dtype first, and the cast of a tensor that overlaps itself is
// dense. The strides of the result depend on that, so Meta gets the strides of the cast.
void cast_as_cpu_does(const OperatorInfo& info, Arguments arguments, torch::jit::Stack& stack) {
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
  if (cast.is_non_overlapping_and_dense() || !is_on_cpu_server(cast))
    return;
  const Output dense = shapes::like(cast);
  stack[at] =
      at::detail::empty_strided_meta(dense.spec.sizes, dense.spec.strides, cast.scalar_type());
}

// Where PyTorch writes a device in an error: "on meta", "device meta", "two devices, cpu and meta",
// "to have meta DeviceType", "(self) meta", "(meta)". Elsewhere the word is the user's.
const std::regex& meta_device() {
  static const std::regex found(
      "(\\b(?:on|[Dd]evices?|[Dd]evice type)(?:[:=,] ?| is | )|\\bdevices, \\S+ and |"
      "\\(\\w+\\) |\\b(?:have|with) (?=meta "
      "DeviceType)|\\((?=meta(?::\\d+)?\\)))meta\\b(?::\\d+)?");
  return found;
}

// PyTorch's C++ shape code. Its errors name the meta device; the user's tensors are remote.
Inference ask_meta_function(const OperatorInfo& info, Arguments arguments, Mentioned mentioned) {
  constexpr std::string_view kMixed = "at least two devices, ";
  try {
    return run_meta(info, arguments, mentioned, [&](torch::jit::Stack& stack) {
      cast_as_cpu_does(info, arguments, stack);
      info.meta->callBoxed(info.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    });
  } catch (const c10::Error& error) {
    // Some shape code (index_add) selects the first row of a meta tensor, even of an empty one.
    if (std::any_of(mentioned.begin(), mentioned.end(),
                    [](const at::TensorImpl* tensor) { return tensor->numel() == 0; }))
      return {};
    const std::string text = error.what_without_backtrace();
    if (mentioned.empty() || typeid(error) != typeid(c10::Error) ||
        !std::regex_search(text, meta_device()))
      throw;
    const std::string told =
        std::regex_replace(text, meta_device(), "$1" + mentioned[0]->device().str());
    const size_t at = told.find(kMixed);
    TORCH_CHECK(at != told.npos, told);
    const std::string found = told.substr(at);
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found ", found,
                " (when checking arguments of ", info.name, ")",
                found.find("cpu") == found.npos ? std::string() : mixing_advice().get());
  }
}

// No new tensor: every return is an argument that the call writes.
Inference return_arguments(const OperatorInfo& info, Arguments arguments, Mentioned mentioned) {
  Inference inference;
  for (const ReturnInfo& result : info.returns) {
    const c10::IValue& argument = arguments[static_cast<size_t>(result.written_argument)];
    if (!argument.isTensor())
      return {};
    const auto at =
        std::find(mentioned.begin(), mentioned.end(), argument.toTensor().unsafeGetTensorImpl());
    if (at == mentioned.end())
      return {};
    Output output;
    output.kind = OutputKind::kTensor;
    output.tensor = static_cast<uint64_t>(at - mentioned.begin());
    inference.outputs.push_back(std::move(output));
  }
  inference.result = Inferred::kKnown;
  return inference;
}

// For an `out=` form our shape function tells the final size of each `out=`. For a call in place it
// tells what the form with a new tensor would make, which has to match `self`.
Inference ask_shape_function(const OperatorInfo& info, Arguments arguments, Mentioned mentioned) {
  std::vector<Output> told;
  if (!info.shape(arguments, told))
    return {};
  if (info.has_fresh_outputs)
    return {Inferred::kKnown, std::move(told)};
  if (info.out_arguments.empty()) {
    const at::Tensor& self = arguments[0].toTensor();
    if (told[0].spec.sizes != self.sizes() ||
        marshal::from_wire(told[0].spec.dtype) != self.scalar_type())
      return {};
    return return_arguments(info, arguments, mentioned);
  }
  std::vector<at::Tensor> metas;
  for (const Output& output : told)
    metas.push_back(meta_of(output));
  if (resize_outs(info, arguments, metas))
    return {Inferred::kResized, {}};
  return return_arguments(info, arguments, mentioned);
}

// Declines if the arguments alone do not prove the call valid.
Inference ask_arguments(const OperatorInfo& info, Arguments arguments, Mentioned mentioned) {
  const auto is_tensor = [](const c10::IValue& value) {
    return (value.isTensor() && value.toTensor().defined()) || value.isOptionalTensorList();
  };
  if (info.writes_list ? !shapes::lists_agree(arguments)
                       : arguments[0].isTensor() &&
                             std::count_if(arguments.begin(), arguments.end(), is_tensor) > 1)
    return {};
  return return_arguments(info, arguments, mentioned);
}

bool is_mask(const c10::IValue& index) {
  if (!index.isTensor() || !index.toTensor().defined())
    return false;
  return index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte;
}

// With a mask among the indices, the size of the result depends on data.
bool has_mask(const OperatorInfo& info, Arguments arguments) {
  if (!info.depends_on_data || !info.has(kTakesHostIndices) || !info.out_arguments.empty())
    return false;
  const auto indices = arguments[1].toListRef();
  return std::any_of(indices.begin(), indices.end(), is_mask);
}

Inference ask(InferenceSource source, const OperatorInfo& info, Arguments arguments,
              Mentioned mentioned) {
  if (source == InferenceSource::kShape)
    return ask_shape_function(info, arguments, mentioned);
  if (source == InferenceSource::kServer || has_mask(info, arguments))
    return {};
  if (source == InferenceSource::kArguments)
    return ask_arguments(info, arguments, mentioned);
  if (source == InferenceSource::kMeta)
    return ask_meta_function(info, arguments, mentioned);
  return ask_dispatcher(info, arguments, mentioned);
}

}  // namespace

Inference infer(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
                c10::ArrayRef<const at::TensorImpl*> mentioned) {
  for (const InferenceSource source : info.sources) {
    Inference inference = ask(source, info, arguments, mentioned);
    inference.by = source;
    if (inference.result != Inferred::kUnknown)
      return inference;
  }
  return {};
}

}  // namespace torch_remote::client
