// Everything PyTorch is told of this backend. The only file with registration macros.
#include "client/register.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

#include <ATen/core/enum_tag.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/channel_shuffle_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "client/backend/allocator.h"
#include "client/backend/generator.h"
#include "client/backend/guard.h"
#include "client/backend/hooks.h"
#include "client/backend/pinned.h"
#include "client/dispatch.h"
#include "client/kernels/composite.h"
#include "client/kernels/tensors.h"
#include "client/layout.h"
#include "client/operator.h"
#include "client/storage.h"

namespace torch_remote::client {
namespace {

using torch::CppFunction;

// Composite-explicit operators that stay on the client: they make tensors (and end in `empty` and one call),
// or only look at metadata.
constexpr std::array<std::string_view, 42> kStayHere = {
    "aten::_to_copy",
    "aten::copy_",
    "aten::empty_like",
    "aten::zeros_like",
    "aten::full_like",
    "aten::rand_like",
    "aten::randn_like",
    "aten::randint_like",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::new_full",
    "aten::new_zeros",
    "aten::new_ones",
    "aten::_new_zeros_with_same_feature_meta",  // a view of a storage like another tensor's
    "aten::resize_as_",
    "aten::resize",
    "aten::resize_as",
    "aten::set_data",
    "aten::is_same_size",
    "aten::_copy_from",
    "aten::detach",
    "aten::alias",
    "aten::lift",
    "aten::lift_fresh",
    "aten::_has_same_storage_numel",
    "aten::is_pinned",
    "aten::_pin_memory",
    "aten::split",
    "aten::unbind",
    "aten::sym_size",
    "aten::_resize_output",
    "aten::_resize_output_",
    "aten::_pack_padded_sequence",
    "aten::item",
    "aten::dense_dim",
    "aten::sparse_dim",
    "aten::_reshape_alias_copy",
    // A copy of the whole storage, which keeps strides and offset, and a write into it: two kernels locally too.
    "aten::copy",
    "aten::select_scatter",
    "aten::slice_scatter",
    "aten::diagonal_scatter",
    "aten::as_strided_scatter",
};

bool has_tensor(const std::vector<c10::Argument>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    const auto type = argument.type()->str();
    return type.find("Tensor") != std::string::npos;
  });
}

// split_copy.Tensor_out: views and copies into what the caller has, so sizes are known only one by one.
bool fills_a_list(const c10::FunctionSchema& schema) {
  return std::any_of(
      schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
        return argument.is_out() && argument.type()->kind() == c10::TypeKind::ListType;
      });
}

bool is_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) {
                       return result.alias_info() != nullptr && !result.alias_info()->isWrite();
                     });
}

bool has_kernel(const c10::OperatorHandle& operation, c10::DispatchKey key) {
  return operation.hasKernelForDispatchKey(key);
}

// mul.Scalar is mul.Tensor with the number in a tensor, sort is sort.stable and rsub.Scalar is sub.Tensor: one call that
// way too, and PyTorch's C++ shape code tells its result.
bool becomes_another_overload(const c10::FunctionSchema& schema) {
  if (schema.name() == "aten::sort" && schema.overload_name().empty())
    return true;
  if (schema.name() == "aten::rsub" && schema.overload_name() == "Scalar")
    return true;
  constexpr std::string_view kScalar = "Scalar";
  if (!schema.overload_name().starts_with(kScalar))
    return false;
  if (find_meta_kernel(schema.name() + "." + schema.overload_name()) != nullptr)
    return false;
  return find_meta_kernel(schema.name() + ".Tensor" +
                          schema.overload_name().substr(kScalar.size())) != nullptr;
}

// Operators that PyTorch would take apart on the client although the server can run them whole.
bool travels_whole(const c10::OperatorHandle& operation) {
  using c10::DispatchKey;
  const auto& schema = operation.schema();
  const std::string_view name = schema.name();
  if (!name.starts_with("aten::") || is_view(schema) || mentions_another_layout(name))
    return false;
  if (fills_a_list(schema))
    return false;
  if (!has_tensor(schema.arguments()) ||
      std::find(kStayHere.begin(), kStayHere.end(), name) != kStayHere.end()) {
    return false;
  }
  // squeeze_, t_, …: metadata of this side. squeeze_copy, …: a view and a clone, unless there is a kernel for it.
  if (operation.hasTag(at::Tag::inplace_view))
    return false;
  if (operation.hasTag(at::Tag::view_copy) && !has_kernel(operation, DispatchKey::CPU))
    return false;
  if (has_kernel(operation, DispatchKey::PrivateUse1) || becomes_another_overload(schema))
    return false;
  // A few have a composed kernel beside the one for CPU and CUDA (silu_backward); the server would use the latter.
  if (has_kernel(operation, DispatchKey::CompositeImplicitAutograd))
    return has_kernel(operation, DispatchKey::CPU);
  if (operation.hasTag(at::Tag::generated))
    return false;
  return has_kernel(operation, DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         has_kernel(operation, DispatchKey::CompositeExplicitAutograd);
}

std::unordered_set<c10::OperatorName>& whole_operators() {
  static auto* names = new std::unordered_set<c10::OperatorName>;
  return *names;
}

void register_whole_operators() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten",
                                            c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto operation = dispatcher.findSchema(name);
    if (!operation.has_value() || !travels_whole(*operation))
      continue;
    const std::string full =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), name.name == "aten::convolution"
                                    ? CppFunction::makeFromBoxedFunction<&kernels::convolution>()
                                    : CppFunction::makeFromBoxedFunction<&dispatch>());
    whole_operators().insert(name);
  }
}

// Composite operators that end in a tensor of another layout would make one unasked: refused at every key that leads
// to them.
void register_refusals() {
  using c10::DispatchKey;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const DispatchKey key :
       {DispatchKey::PrivateUse1, DispatchKey::AutogradPrivateUse1, DispatchKey::SparsePrivateUse1,
        DispatchKey::SparseCsrPrivateUse1, DispatchKey::QuantizedPrivateUse1}) {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto operation = dispatcher.findSchema(name);
      if (makes_another_layout(name.name) && operation.has_value() &&
          has_tensor(operation->schema().returns()))
        library->impl(c10::toString(name).c_str(),
                      CppFunction::makeFromBoxedFunction<&refuse_layout>());
    }
  }
}

// Those that are told by an argument: tensors of the CPU to be put together on a remote device, and gradients that
// are asked to be sparse.
void register_refusals_by_argument() {
  using c10::DispatchKey;
  static auto* select = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::BackendSelect,
                                           __FILE__, __LINE__);
  static auto* dense = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1,
                                          __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto operation = dispatcher.findSchema(name);
    if (!operation.has_value() || !name.name.starts_with("aten::"))
      continue;
    const std::string full = c10::toString(name);
    if (makes_another_layout(name.name) &&
        operation->schema().argumentIndexWithName("device").has_value() &&
        !has_kernel(*operation, DispatchKey::BackendSelect))
      select->impl(full.c_str(), CppFunction::makeFromBoxedFunction<&refuse_remote_device>());
    if (name.name.ends_with("_backward") && has_kernel(*operation, DispatchKey::CPU) &&
        operation->schema().argumentIndexWithName("sparse").has_value())
      dense->impl(full.c_str(), CppFunction::makeFromBoxedFunction<&refuse_sparse_gradient>());
  }
}

}  // namespace

void register_backend() {
  static bool done = false;
  if (done)
    return;
  done = true;
  marshal::record_lookup.deleter = &delete_record;
  marshal::record_lookup.find_slowly = &find_record_slowly;
  marshal::record_lookup.generator_name = &generator_name;
  c10::SetAllocator(c10::kPrivateUse1, &RemoteAllocator::instance());
  at::setHostAllocator(c10::kPrivateUse1, pinned_allocator());
  at::RegisterPrivateUse1HooksInterface(new RemoteHooks);
  register_whole_operators();
  register_refusals();
  register_refusals_by_argument();
}

bool travels(const c10::OperatorName& name) {
  return whole_operators().contains(name);
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, RemoteGuard)

}  // namespace torch_remote::client

using namespace torch_remote::client;

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch>());
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &kernels::empty_memory_format);
  m.impl("empty_strided", &kernels::empty_strided);
  m.impl("_efficientzerotensor", &kernels::efficient_zero_tensor);
  m.impl("tril_indices", &kernels::tril_indices);
  m.impl("triu_indices", &kernels::triu_indices);
  m.impl("as_strided", &kernels::as_strided);
  m.impl("view", &kernels::view);
  m.impl("_unsafe_view", &kernels::unsafe_view);
  m.impl("_reshape_alias", &kernels::reshape_alias);
  m.impl("unfold", &kernels::unfold);
  m.impl("view_as_real", &kernels::view_as_real);
  m.impl("view_as_complex", &kernels::view_as_complex);
  m.impl("unsafe_split.Tensor", &kernels::unsafe_split);
  m.impl("unsafe_split_with_sizes", &kernels::unsafe_split_with_sizes);
  m.impl("channel_shuffle", &at::native::channel_shuffle);  // without elements, a view
  m.impl("resize_", &kernels::resize_);
  m.impl("set_.source_Storage", &kernels::set_source_storage);
  m.impl("set_.source_Storage_storage_offset", &kernels::set_source_storage_offset);
  m.impl("set_.source_Tensor", &kernels::set_source_tensor);
  m.impl("set_", &kernels::set_empty);
  m.impl("copy_", &kernels::copy_);
  m.impl("_copy_from", &kernels::copy_from);
  m.impl("_copy_from_and_resize", &kernels::copy_from_and_resize);
  m.impl("_lazy_clone", &kernels::lazy_clone);
  m.impl("_local_scalar_dense", &kernels::local_scalar_dense);
  m.impl("_has_compatible_shallow_copy_type", &kernels::has_compatible_shallow_copy_type);
  m.impl("is_set_to", &kernels::is_set_to);
  m.impl("record_stream", &kernels::record_stream);
  // Composed but for a kernel of CUDA; our rms_norm calls it where the server has that kernel.
  m.impl("_fused_rms_norm", torch::CppFunction::makeFromBoxedFunction<&dispatch>());
}

// Operators that PyTorch composes differently for each kind of device: ours take the branch of the server's. The same
// function at both keys, since tensors made in inference mode have no Autograd key.
static void register_composites(torch::Library& m) {
  m.impl("scaled_dot_product_attention", &kernels::scaled_dot_product_attention);
  m.impl("dropout", &kernels::dropout);
  m.impl("softmax.int", &kernels::softmax);
  m.impl("log_softmax.int", &kernels::log_softmax);
  m.impl("group_norm", &kernels::group_norm);
  m.impl("rms_norm", &kernels::rms_norm);
  m.impl("grid_sampler", &kernels::grid_sampler);
  m.impl("max_pool1d", &kernels::max_pool1d);
  m.impl("ctc_loss.Tensor", &kernels::ctc_loss_tensor);
  m.impl("_batch_norm_impl_index", &kernels::batch_norm_impl_index);
  m.impl("lstm.input", &kernels::lstm_input);
  m.impl("lstm.data", &kernels::lstm_data);
  m.impl("gru.input", &kernels::gru_input);
  m.impl("gru.data", &kernels::gru_data);
  m.impl("rnn_tanh.input", &kernels::rnn_tanh_input);
  m.impl("rnn_tanh.data", &kernels::rnn_tanh_data);
  m.impl("rnn_relu.input", &kernels::rnn_relu_input);
  m.impl("rnn_relu.data", &kernels::rnn_relu_data);
  m.impl("lstm_cell", &kernels::lstm_cell);
  m.impl("gru_cell", &kernels::gru_cell);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  register_composites(m);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_composites(m);
}

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &kernels::attention_choice)
}  // namespace at::native
