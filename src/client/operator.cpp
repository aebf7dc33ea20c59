#include "client/operator.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include <ATen/core/enum_tag.h>
#include <c10/util/flat_hash_map.h>

#include "base/mutex.h"
#include "client/layout.h"
#include "marshal/schemas.h"

namespace torch_remote::client {
namespace {

constexpr std::string_view kShapedByNumbers[] = {"aten::arange", "aten::range"};

// Data decides what comes out, and no tag says so.
constexpr std::string_view kDependOnData[] = {
    "aten::_unique",
    "aten::histogram.bin_ct",
    "aten::_histogramdd_bin_edges",
    "aten::equal",
    "aten::_linalg_check_errors",
    "aten::masked_scatter_backward",
    "aten::linalg_lstsq",
    "aten::is_set_to",
    "aten::_use_cudnn_ctc_loss",
    "aten::_use_cudnn_ctc_loss.Tensor",
    "aten::_histogramdd_from_bin_cts",
    "aten::_assert_async",
};

// Where our shape function does not answer, Meta would, and is known to be wrong, mostly about strides: so the
// server is asked, once for each signature.
constexpr std::string_view kAskTheServer[] = {
    "aten::roll",
    "aten::addr",
    "aten::mkldnn_rnn_layer",           // oneDNN decides how large its workspace is
    "aten::mkldnn_rnn_layer_backward",  // of which dtype the gradients of bfloat16 are, too
    "aten::_fft_r2c",
    "aten::_fft_c2r",
    "aten::_fft_c2c",
    "aten::linalg_eig",
    "aten::_linalg_eigvals",
    "aten::_linalg_svd",
    "aten::_linalg_eigh",
    "aten::geqrf",
    "aten::max_unpool2d",
    "aten::max_unpool3d",
    "aten::col2im",
    "aten::im2col",
    "aten::nonzero_static",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
    "aten::convolution",
    "aten::convolution_backward",
    "aten::native_batch_norm",
    "aten::native_batch_norm_backward",
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_no_training",
    "aten::_batch_norm_with_update",
    "aten::_batch_norm_no_update",
    "aten::native_group_norm",
    "aten::native_group_norm_backward",
    "aten::native_layer_norm",
    "aten::native_layer_norm_backward",
    "aten::linalg_lu_solve",
    "aten::_linalg_solve_ex",
    "aten::pixel_shuffle",  // keeps channels_last on a CPU
    "aten::pixel_unshuffle",
    "aten::addbmm_",                         // gives `self` the result's shape
    "aten::multilabel_margin_loss_forward",  // Meta makes a 1-d input's loss 1-d
    "aten::_native_multi_head_attention",    // no weights where none are wanted
};

// By overload: what our shape function does not answer here is a wrong call, which Meta does not notice, or a layout that
// it has wrong.
constexpr std::string_view kAskWhenUnsure[] = {
    "aten::multinomial",
    "aten::bucketize.Tensor",
    "aten::masked_scatter",
    "aten::complex",
    "aten::narrow_copy",
    "aten::index_put",
    "aten::max",
    "aten::min",
    "aten::median",
    "aten::glu_backward",
    "aten::rsub.Scalar",
    "aten::rsub.Tensor",
    "aten::binary_cross_entropy",
    "aten::binary_cross_entropy_backward",
    "aten::binary_cross_entropy_with_logits",
    "aten::_index_put_impl",
    "aten::put",
};

// Kernels that only CUDA has. How they lay out their results, and how much they keep for the backward pass, they know
// alone, and do alike for the same signature.
constexpr std::string_view kOnlyOnCuda[] = {
    "aten::cudnn_batch_norm",
    "aten::cudnn_batch_norm_backward",
    "aten::_flash_attention_forward",
    "aten::_flash_attention_backward",
    "aten::_efficient_attention_forward",
    "aten::_efficient_attention_backward",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_cudnn_rnn",
    "aten::_cudnn_rnn_backward",
    "aten::_cudnn_init_dropout_state",
    "aten::_cudnn_ctc_loss",
    "aten::cudnn_grid_sampler",
    "aten::cudnn_grid_sampler_backward",
    "aten::_fused_rms_norm",
    "aten::_fused_rms_norm_backward",
    "aten::_thnn_fused_lstm_cell",
    "aten::_thnn_fused_gru_cell",
};

// _linalg_check_errors() inside.
constexpr std::string_view kCheckValues[] = {
    "aten::cholesky",       "aten::cholesky_inverse", "aten::linalg_eig",  "aten::_linalg_eigvals",
    "aten::linalg_eigvals", "aten::_linalg_eigh",     "aten::_linalg_svd", "aten::linalg_pinv",
};

// Their kernels refuse tensors of several dtypes, and PyTorch's shape code does not look.
constexpr std::string_view kOneDtype[] = {
    "aten::mm",
    "aten::bmm",
    "aten::addmm",
    "aten::baddbmm",
    "aten::addbmm",
    "aten::addbmm_",
    "aten::addmm_",
    "aten::addmv",
    "aten::mv",
    "aten::dot",
    "aten::vdot",
    "aten::addmv_",
    "aten::_addmm_activation",
    "aten::baddbmm_",
};

constexpr std::string_view kHostIndices[] = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::_unsafe_index_put",
    "aten::_unsafe_masked_index",
    "aten::_unsafe_masked_index_put_accumulate",
    "aten::_index_put_impl",
};

template <typename List>
bool contains(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

bool has_dynamic_tag(const c10::OperatorHandle& operation) {
  return operation.hasTag(at::Tag::dynamic_output_shape) ||
         operation.hasTag(at::Tag::data_dependent_output);
}

int written_by(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr || !result.alias_info()->isWrite())
    return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() &&
        alias->beforeSets() == result.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

ReturnInfo return_info(const c10::FunctionSchema& schema, const c10::Argument& result) {
  ReturnInfo info;
  const auto kind = result.real_type()->kind();
  info.is_tensor = kind == c10::TypeKind::TensorType;
  info.is_list = kind == c10::TypeKind::ListType &&
                 result.real_type()->castRaw<c10::ListType>()->getElementType()->kind() ==
                     c10::TypeKind::TensorType;
  info.written_argument = written_by(schema, result);
  return info;
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// Of the form that makes a new tensor: "aten::masked_fill.Scalar" for "aten::masked_fill_.Scalar".
std::string functional_name(const wire::Introduction& operation) {
  std::string name = operation.name;
  if (name.ends_with('_'))
    name.pop_back();
  return operation.overload.empty() ? name : name + "." + operation.overload;
}

uint32_t next_id() {
  static std::atomic<uint32_t> next{0};
  return next.fetch_add(1);
}

}  // namespace

OperatorInfo::OperatorInfo(const c10::OperatorHandle& operation) : handle(operation) {
  const c10::FunctionSchema& schema = operation.schema();
  id = next_id();
  site_number = id < UINT16_MAX ? static_cast<uint16_t>(id + 1) : 0;
  name = full_name(operation.operator_name());
  introduction.name = operation.operator_name().name;
  introduction.overload = operation.operator_name().overload_name;
  const bool shaped_by_numbers = contains(kShapedByNumbers, introduction.name);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    introduction.arguments.push_back(argument.name());
    arguments.push_back(marshal::argument_info(argument, shaped_by_numbers));
    if (argument.name() == "check_errors" && argument.type()->kind() == c10::TypeKind::BoolType)
      check_errors = static_cast<int>(i);
    if (argument.is_out())
      out_arguments.push_back(static_cast<uint32_t>(i));
  }
  size_t tensors = 0;
  for (const c10::Argument& result : schema.returns()) {
    returns.push_back(return_info(schema, result));
    if (returns.back().is_tensor || returns.back().is_list)
      ++tensors;
    if (returns.back().written_argument < 0)
      has_fresh_outputs = true;
  }
  // A number for the user is read from data; one that comes with tensors (flash attention's sequence lengths) is
  // metadata, told by the server once for each signature.
  const bool returns_numbers = tensors != returns.size();
  depends_on_data = returns_numbers && tensors == 0;
  if (has_dynamic_tag(operation) || contains(kDependOnData, name))
    depends_on_data = true;
  writes_list = introduction.name.starts_with("aten::_foreach_") && schema.is_mutable() &&
                schema.arguments()[0].alias_info() != nullptr;
  is_refused = tensors != 0 && makes_another_layout(name);
  is_foreign = !name.starts_with(marshal::kAten);
  makes_view =
      std::any_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
        return result.alias_info() != nullptr && !result.alias_info()->isWrite();
      });
  const std::string functional = has_fresh_outputs ? name : functional_name(introduction);
  const bool makes_list = introduction.name.starts_with("aten::_foreach_") && has_fresh_outputs;
  asks_server = returns_numbers || makes_list || contains(kAskTheServer, introduction.name) ||
                contains(kAskWhenUnsure, functional) || contains(kOnlyOnCuda, introduction.name);
  looks_at_grad_mode = name == "aten::mkldnn_rnn_layer";  // a workspace for backward, or none
  checks_values = contains(kCheckValues, introduction.name);
  wants_one_dtype = contains(kOneDtype, introduction.name);
  spans_devices = introduction.name == "aten::copy_";
  takes_host_indices = contains(kHostIndices, introduction.name);
  shape = find_shape_function(functional);
  meta = find_meta_kernel(name);
}

namespace {

// Every operator that was ever called. Leaks: used at exit.
struct KnownOperators {
  Mutex mutex;
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorInfo>> all
      GUARDED_BY(mutex);
};

KnownOperators& known_operators() {
  static auto* const operators = new KnownOperators;
  return *operators;
}

}  // namespace

std::string operator_at(uint16_t site_number) {
  if (site_number == 0)
    return {};
  KnownOperators& operators = known_operators();
  MutexLock lock(operators.mutex);
  for (const auto& [schema, info] : operators.all) {
    if (info->site_number != site_number)
      continue;
    const std::string& name = info->introduction.name;
    return name.starts_with(marshal::kAten) ? name.substr(marshal::kAten.size()) : name;
  }
  return {};
}

const OperatorInfo& operator_info(const c10::OperatorHandle& operation) {
  thread_local ska::flat_hash_map<const c10::FunctionSchema*, const OperatorInfo*> seen;
  const c10::FunctionSchema* schema = &operation.schema();
  const auto found = seen.find(schema);
  if (C10_LIKELY(found != seen.end()))
    return *found->second;

  KnownOperators& operators = known_operators();
  auto made = std::make_unique<OperatorInfo>(operation);
  MutexLock lock(operators.mutex);
  const auto& info = *operators.all.try_emplace(schema, std::move(made)).first->second;
  seen.emplace(schema, &info);
  return info;
}

}  // namespace torch_remote::client
