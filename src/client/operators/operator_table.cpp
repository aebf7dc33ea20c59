#include "client/operators/operator_table.h"

#include <algorithm>
#include <string_view>

#include "marshal/schemas.h"

namespace torch_remote::client {
namespace {

using enum Route;

// clang-format off
constexpr OperatorRow kRows[] = {
    {kUsual, kDependsOnData, "data decides what comes out, and no tag of PyTorch's says so",
     {"_unique", "histogram.bin_ct", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts",
      "masked_scatter_backward", "linalg_lstsq"}},
    {kUsual, kDependsOnData, "raises by what the data is, so each call is waited for",
     {"_linalg_check_errors", "_assert_async", "_validate_compressed_sparse_indices"}},
    {kUsual, kDependsOnData, "data decides how many elements are not zero",
     {"_to_sparse.*", "_to_sparse_csr.*", "_to_sparse_csc.*", "_to_sparse_bsr.*",
      "_to_sparse_bsc.*", "_spdiags"}},
    {kUsual, kChecksValues, "its kernel reads values and raises by them, also on CUDA",
     {"cholesky.*", "cholesky_inverse.*", "linalg_eig.*", "_linalg_eigvals.*", "linalg_eigvals.*",
      "_linalg_eigh.*", "_linalg_svd.*", "linalg_pinv.*"}},

    {kUsual, kSpansDevices, "copies between two devices of a server without passing through here",
     {"copy_"}},

    // The server tells the result, once for each signature, if our shape function declines.
    {kUsual, kAsksServer, "Meta is wrong about its result, mostly about strides",
     {"roll.*", "addr.*", "_fft_r2c.*", "_fft_c2r.*", "_fft_c2c.*", "linalg_eig.*",
      "_linalg_eigvals.*", "_linalg_svd.*", "_linalg_eigh.*", "geqrf.*", "max_unpool2d.*",
      "max_unpool3d.*", "col2im.*", "im2col.*", "nonzero_static.*", "_embedding_bag.*",
      "_embedding_bag_forward_only.*", "convolution.*", "convolution_backward.*",
      "native_batch_norm.*", "native_batch_norm_backward.*", "_native_batch_norm_legit.*",
      "_native_batch_norm_legit_no_training.*", "_batch_norm_with_update.*",
      "_batch_norm_no_update.*", "native_group_norm.*", "native_group_norm_backward.*",
      "native_layer_norm.*", "native_layer_norm_backward.*", "linalg_lu_solve.*",
      "_linalg_solve_ex.*"}},
    {kUsual, kAsksServer, "keeps channels_last on a CPU, which Meta does not",
     {"pixel_shuffle.*", "pixel_unshuffle.*"}},
    {kUsual, kAsksServer, "gives `self` the result's shape", {"addbmm_.*"}},
    {kUsual, kAsksServer, "Meta says [0], the kernel makes []", {"isin.Scalar_Tensor*"}},
    {kUsual, kAsksServer, "Meta makes the loss of a 1-d input 1-d",
     {"multilabel_margin_loss_forward.*"}},
    {kUsual, kAsksServer, "returns no weights where none are wanted",
     {"_native_multi_head_attention.*"}},
    {kUsual, kAsksServer, "oneDNN decides the size of its workspace, and its gradients' dtype",
     {"mkldnn_rnn_layer.*", "mkldnn_rnn_layer_backward.*"}},
    {kUsual, kLooksAtGradMode, "makes a workspace for the backward pass in grad mode only",
     {"mkldnn_rnn_layer"}},
    {kUsual, kLooksAtGradMode, "finds the elements that the backward pass needs in grad mode only",
     {"_sparse_mm_reduce_impl"}},
    {kUsual, kAsksServer,
     "what our shape function declines is a wrong call, or a layout, that Meta gets wrong",
     {"multinomial", "bucketize.Tensor", "masked_scatter", "masked_scatter_", "complex",
      "narrow_copy", "index_put", "index_put_", "_index_put_impl", "_index_put_impl_", "put",
      "put_", "max", "min", "median", "glu_backward", "rsub.Tensor", "binary_cross_entropy",
      "binary_cross_entropy_backward", "binary_cross_entropy_with_logits"}},
    {kUsual, kAsksServer,
     "a kernel of CUDA alone, which decides its layout and what it keeps for the backward pass",
     {"cudnn_batch_norm.*", "cudnn_batch_norm_backward.*", "_flash_attention_forward.*",
      "_flash_attention_backward.*", "_efficient_attention_forward.*",
      "_efficient_attention_backward.*", "_scaled_dot_product_flash_attention.*",
      "_scaled_dot_product_flash_attention_backward.*",
      "_scaled_dot_product_efficient_attention.*",
      "_scaled_dot_product_efficient_attention_backward.*",
      "_scaled_dot_product_cudnn_attention.*", "_scaled_dot_product_cudnn_attention_backward.*",
      "_cudnn_rnn.*", "_cudnn_rnn_backward.*", "_cudnn_init_dropout_state.*", "_cudnn_ctc_loss.*",
      "cudnn_grid_sampler.*", "cudnn_grid_sampler_backward.*", "_fused_rms_norm.*",
      "_fused_rms_norm_backward.*", "_thnn_fused_lstm_cell.*", "_thnn_fused_gru_cell.*"}},

    {kUsual, kWantsOneDtype, "its kernel refuses several dtypes; PyTorch's shape code does not",
     {"mm.*", "bmm.*", "addmm.*", "addmm_.*", "baddbmm.*", "baddbmm_.*", "addbmm.*", "addbmm_.*",
      "mv.*", "addmv.*", "addmv_.*", "dot.*", "vdot.*", "_addmm_activation.*"}},
    {kUsual, kTakesHostIndices, "takes index tensors of the CPU, as CUDA does: they are sent",
     {"index.*", "index_put.*", "index_put_.*", "_index_put_impl.*", "_index_put_impl_.*",
      "_unsafe_index.*", "_unsafe_index_put.*", "_unsafe_masked_index.*",
      "_unsafe_masked_index_put_accumulate.*"}},
    {kUsual, kShapedByNumbers, "numbers decide its size", {"arange.*", "range.*"}},
    {kUsual, kFillsAnyShape, "fills an `out=` of as many elements whatever its shape",
     {"arange.*", "range.*", "linspace.*", "logspace.*"}},

    {kSent, kPlain, "our rms_norm calls it where the server has that kernel", {"_fused_rms_norm"}},
    {kSent, kPlain, "PyTorch's code for it calls a kernel that no private device can have",
     {"kaiser_window*"}},
    {kComposed, kPlain, "makes a tensor here, and fills it by one call at most",
     {"_to_copy.out", "empty_like.*", "zeros_like.*", "ones_like.*", "full_like.*", "rand_like.*",
      "randn_like.*", "randint_like.*", "new_empty.*", "new_empty_strided.*", "new_full.*",
      "new_zeros.*", "new_ones.*", "_new_zeros_with_same_feature_meta.*", "_pin_memory.*",
      "lift.*"}},
    {kComposed, kPlain, "only looks at metadata",
     {"is_same_size.*", "_has_same_storage_numel.*", "is_pinned.*", "dense_dim.*",
      "sparse_dim.*"}},
    {kComposed, kPlain, "makes a sparse tensor of its parts here",
     {"_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors"}},
    {kComposed, kPlain, "goes by lengths that lie on the CPU", {"_pack_padded_sequence.*"}},
    {kComposed, kPlain,
     "a copy of the whole storage, with its strides and offset, and a write into it: two kernels",
     {"copy.*", "select_scatter.*", "slice_scatter.*", "diagonal_scatter.*",
      "as_strided_scatter.*"}},
    {kComposed, kPlain, "becomes another overload, whose result PyTorch's C++ code tells",
     {"sort", "rsub.Scalar"}},

    // Jagged nested tensors are not concerned: they are dense tensors in a Python class.
    {kRefused, kPlain, "makes a tensor that a remote device does not hold",
     {"to_mkldnn*", "quantize_per_*", "_make_per_*", "mkldnn_reorder*"}},
    // tests/fuzz/composites.py finds them.
    {kReadsMemory, kPlain, "PyTorch's composition reads the memory of its tensors",
     {"fbgemm_*", "_saturate_weight_to_fp16", "choose_qparams_optimized", "_sobol_engine_*",
      "_reshape_from_tensor", "_nnpack_spatial_convolution.*"}},
};
// clang-format on

}  // namespace

OperatorRows call_rows() {
  return kRows;
}

std::string row_key(const c10::OperatorName& operation) {
  const bool is_aten = operation.name.starts_with(marshal::kAten);
  return operation.name.substr(is_aten ? marshal::kAten.size() : 0) + "." + operation.overload_name;
}

bool matches(const NamedOperator& row, std::string_view key) {
  const std::string_view name = row.name;
  if (name.ends_with('*'))
    return key.starts_with(name.substr(0, name.size() - 1));
  return key.starts_with(name) && (key.size() == name.size() || key.substr(name.size()) == ".");
}

void Special::add(OperatorRows rows, const c10::OperatorName& operation) {
  const std::string key = row_key(operation);
  for (const OperatorRow& row : rows) {
    const auto named = std::find_if(row.operators.begin(), row.operators.end(),
                                    [&](const NamedOperator& each) { return matches(each, key); });
    if (named == row.operators.end())
      continue;
    route = row.route == Route::kUsual ? route : row.route;
    traits |= row.traits;
    kernel = named->kernel == nullptr ? kernel : named->kernel;
    reason += (reason.empty() ? "" : "\n") + std::string(row.reason);
  }
}

}  // namespace torch_remote::client
