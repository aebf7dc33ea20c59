#include "marshal/operator_table.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "marshal/schemas.h"

namespace torch_remote::marshal {
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
      "_reshape_from_tensor", "_nnpack_spatial_convolution.*", "_rowwise_prune"}},

    {kUsual, kPlain, "", {"nonzero.*"}, ResultBound::kNonzero},
    {kUsual, kPlain, "", {"masked_select.*"}, ResultBound::kMaskedSelect},
    {kUsual, kPlain, "",
     {"_unique.*", "_unique2.*", "unique_consecutive.*", "unique_dim.*",
      "unique_dim_consecutive.*"},
     ResultBound::kUnique},
    {kUsual, kPlain, "", {"index.*"}, ResultBound::kIndex},
    {kUsual, kPlain, "",
     {"_to_sparse.*", "_to_sparse_csr.*", "_to_sparse_csc.*", "_to_sparse_bsr.*",
      "_to_sparse_bsc.*"},
     ResultBound::kToSparse},
    {kUsual, kPlain, "", {"bincount.*"}, ResultBound::kCounts},
    {kUsual, kPlain, "", {"repeat_interleave.*"}, ResultBound::kRepeats},
    {kUsual, kOverwritesSelf, "",
     {"copy_.*", "fill_.*", "zero_.*", "normal_.*", "uniform_.*", "random_.*", "bernoulli_.*",
      "exponential_.*", "cauchy_.*", "log_normal_.*", "geometric_.*", "_foreach_zero_.*",
      "_foreach_copy_.*"}},
    {kUsual, kSharesOutputs, "", {"_cudnn_rnn_backward", "_transform_bias_rescale_qkv"}},

    // Read a kernel before you add it: one that reads memory, at the address of a remote tensor,
    // ends the process.
    {kUsual, kHandlesNestedParts, "",
     {"_fused_sdp_choice", "_native_multi_head_attention",
      "_nested_from_padded_and_nested_example", "_nested_select_backward", "_nested_tensor_size",
      "_nested_tensor_softmax_with_shape", "_nested_tensor_storage_offsets",
      "_nested_tensor_strides", "_pin_memory", "_safe_softmax", "_softmax",
      "_softmax_backward_data", "_to_copy", "_transformer_encoder_layer_fwd", "abs", "abs_",
      "add.Tensor", "add_.Tensor", "alias", "all.dim", "bmm", "cat", "chunk", "clone", "copy_",
      "cos", "detach", "div.Scalar", "div.Tensor", "embedding", "empty_like", "eq.Scalar",
      "eq.Tensor", "fill_.Scalar", "fill_.Tensor", "ge.Scalar", "gelu", "gelu_", "gelu_backward",
      "gt.Scalar", "is_pinned", "is_same_size", "isinf", "isnan", "isneginf", "isposinf",
      "linear", "linear_backward", "logical_not", "logical_not_", "masked_fill.Scalar",
      "matmul.out", "matmul_backward", "mul.Scalar", "mul.Tensor", "mul_.Scalar", "mul_.Tensor",
      "narrow", "native_dropout", "native_dropout_backward", "neg", "neg_", "normal_",
      "ones_like", "relu", "relu_", "select.int", "sgn", "sgn_", "silu", "silu_", "silu_backward",
      "sin", "split_with_sizes", "sqrt", "squeeze", "squeeze.dim", "squeeze.dims", "sub.Tensor",
      "tanh", "tanh_", "threshold_backward", "to_padded_tensor", "transpose.int", "unbind.int",
      "unsqueeze", "value_selecting_reduction_backward", "values", "view", "where.self",
      "where.self_out", "zero_"}},
    {kUsual, kAddsSparse, "", {"add_.Tensor"}},
    // Besides those that return views of parts: indices, values, crow_indices, …
    {kUsual, kHandlesCooParts, "",
     {"_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "sparse_dim",
      "_dimI", "dense_dim", "_dimV", "_nnz", "is_coalesced", "_coalesced_", "empty.memory_format",
      "empty_like", "clone", "copy_", "copy_sparse_to_sparse_", "sparse_resize_",
      "sparse_resize_and_clear_", "resize_as_sparse_", "zero_", "zeros.out", "is_pinned",
      "_pin_memory"}},
    {kUsual, kHandlesCompressedParts, "",
     {"sparse_dim", "dense_dim", "_nnz", "empty.memory_format", "empty_like", "clone", "copy_",
      "resize_", "resize_as_sparse_", "zero_", "fill_.Scalar", "normal_", "select_copy.int",
      "is_pinned", "_pin_memory"}},

    // Operators with kernels of ours, which are in client/kernels/table.cpp.
    {kKernel, kPlain, "its memory is named on this side",
     {"empty.memory_format", "empty_strided", "_efficientzerotensor"}},
    {kKernel, kPlain, "its values are few, and sent as bytes",
     {"tril_indices", "triu_indices"}},
    {kKernel, kPlain, "makes or changes a view, which is metadata of this side",
     {"as_strided", "view", "_unsafe_view", "_reshape_alias", "unfold", "view_as_real",
      "view_as_complex", "unsafe_split.Tensor", "unsafe_split_with_sizes", "channel_shuffle",
      "resize_", "set_.source_Storage", "set_.source_Storage_storage_offset",
      "set_.source_Tensor", "set_"}},
    {kKernel, kPlain, "makes a nested tensor here, of dense remote tensors",
     {"_nested_from_padded", "_nested_*", "to_padded_tensor"}},
    {kKernel, kPlain, "only looks at metadata",
     {"_has_compatible_shallow_copy_type", "is_set_to", "record_stream"}},
    {kKernel, kPlain, "is a clone: copy-on-write would have to know of every write on the server",
     {"_lazy_clone"}},
    {kKernel, kReads, "moves bytes between devices; waits where they come to the CPU",
     {"copy_", "_to_copy", "_copy_from", "_copy_from_and_resize", "_local_scalar_dense"}},
    {kKernel, kPlain, "sends the numbers of a tensor, which PyTorch wants on the CPU",
     {"_foreach_addcdiv.Tensor", "_foreach_addcdiv_.Tensor", "_foreach_addcmul.Tensor",
      "_foreach_addcmul_.Tensor"}},
    {kSent, kPlain, "while torch.jit.trace records, PyTorch's kernel runs, which it records",
     {"convolution"}},
    {kSent, kPlain, "composed here where its gradient is asked to be sparse",
     {"_embedding_bag_backward"}},
    {kBranch, kPlain, "composed differently for each kind of device: here, as for the server's",
     {"scaled_dot_product_attention", "dropout", "softmax.int", "log_softmax.int", "group_norm",
      "rms_norm", "grid_sampler", "_grid_sampler_2d_cpu_fallback", "max_pool1d",
      "ctc_loss.Tensor", "_batch_norm_impl_index", "lstm.input", "lstm.data", "gru.input",
      "gru.data", "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data",
      "lstm_cell", "gru_cell"}},
};

// clang-format on

// Finds the rows of an operator without comparing it with every name.
class RowIndex {
 public:
  RowIndex() {
    for (const OperatorRow& row : kRows)
      for (const std::string_view name : row.operators) {
        const std::string_view stem = name.substr(0, name.find_first_of(".*"));
        const bool is_prefix = stem.size() < name.size() && name[stem.size()] == '*';
        auto& entries = is_prefix ? prefixes_ : by_stem_[stem];
        entries.push_back({&row, name});
      }
  }

  // In the order of the table, each once.
  std::vector<const OperatorRow*> find(std::string_view key) const {
    std::vector<const OperatorRow*> found;
    const auto add = [&](const std::vector<Entry>& entries) {
      for (const Entry& entry : entries)
        if (matches(entry.name, key))
          found.push_back(entry.row);
    };
    add(prefixes_);
    const auto named = by_stem_.find(key.substr(0, key.find('.')));
    if (named != by_stem_.end())
      add(named->second);
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

 private:
  struct Entry {
    const OperatorRow* row;
    std::string_view name;
  };

  std::unordered_map<std::string_view, std::vector<Entry>> by_stem_;  // "roll" for "roll.*"
  std::vector<Entry> prefixes_;                                       // "fbgemm_*"
};

}  // namespace

c10::ArrayRef<OperatorRow> operator_rows() {
  return kRows;
}

std::string row_key(const c10::OperatorName& operation) {
  const bool is_aten = operation.name.starts_with(kAten);
  return operation.name.substr(is_aten ? kAten.size() : 0) + "." + operation.overload_name;
}

bool matches(std::string_view name, std::string_view key) {
  if (name.ends_with('*'))
    return key.starts_with(name.substr(0, name.size() - 1));
  return key.starts_with(name) && (key.size() == name.size() || key.substr(name.size()) == ".");
}

OperatorRules rules_of(const c10::OperatorName& operation) {
  static const RowIndex* const index = new RowIndex;  // leaks: used at exit
  OperatorRules rules;
  for (const OperatorRow* row : index->find(row_key(operation))) {
    rules.route = row->route == Route::kUsual ? rules.route : row->route;
    rules.traits |= row->traits;
    rules.bound = row->bound == ResultBound::kNone ? rules.bound : row->bound;
    const std::string_view reason = row->reason;
    if (!rules.reason.empty() && !reason.empty())
      rules.reason += '\n';
    rules.reason += reason;
  }
  return rules;
}

}  // namespace torch_remote::marshal
