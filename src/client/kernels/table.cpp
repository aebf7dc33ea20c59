#include "client/kernels/table.h"

#include <algorithm>

#include <ATen/ops/channel_shuffle_native.h>
#include <torch/library.h>

#include "client/kernels/boxed.h"
#include "client/kernels/composite.h"
#include "client/kernels/nested.h"
#include "client/kernels/tensors.h"
#include "marshal/operator_table.h"

namespace torch_remote::client::kernels {
namespace {

// Why each is here is in the table of operators (marshal/operator_table.cpp).
constexpr KernelRow kRows[] = {
    {"empty.memory_format", unboxed<&empty_memory_format>},
    {"empty_strided", unboxed<&empty_strided>},
    {"_efficientzerotensor", unboxed<&efficient_zero_tensor>},
    {"tril_indices", unboxed<&tril_indices>},
    {"triu_indices", unboxed<&triu_indices>},
    {"as_strided", unboxed<&as_strided>},
    {"view", unboxed<&view>},
    {"_unsafe_view", unboxed<&unsafe_view>},
    {"_reshape_alias", unboxed<&reshape_alias>},
    {"unfold", unboxed<&unfold>},
    {"view_as_real", unboxed<&view_as_real>},
    {"view_as_complex", unboxed<&view_as_complex>},
    {"unsafe_split.Tensor", unboxed<&unsafe_split>},
    {"unsafe_split_with_sizes", unboxed<&unsafe_split_with_sizes>},
    {"channel_shuffle", unboxed<&at::native::channel_shuffle>},  // for a tensor without elements
    {"_foreach_addcdiv.Tensor", unboxed<&foreach_addcdiv>},
    {"_foreach_addcdiv_.Tensor", unboxed<&foreach_addcdiv_>},
    {"_foreach_addcmul.Tensor", unboxed<&foreach_addcmul>},
    {"_foreach_addcmul_.Tensor", unboxed<&foreach_addcmul_>},
    {"resize_", unboxed<&resize_>},
    {"set_.source_Storage", unboxed<&set_source_storage>},
    {"set_.source_Storage_storage_offset", unboxed<&set_source_storage_offset>},
    {"set_.source_Tensor", unboxed<&set_source_tensor>},
    {"set_", unboxed<&set_empty>},
    {"_nested_from_padded", unboxed<&nested_from_padded>},
    {"_nested_*", boxed<&make_nested>},
    {"to_padded_tensor", boxed<&make_nested>},
    {"_has_compatible_shallow_copy_type", unboxed<&has_compatible_shallow_copy_type>},
    {"is_set_to", unboxed<&is_set_to>},
    {"record_stream", unboxed<&record_stream>},
    {"_lazy_clone", unboxed<&lazy_clone>},
    {"copy_", unboxed<&copy_>},
    {"_to_copy", unboxed<&to_copy>},
    {"_copy_from", unboxed<&copy_from>},
    {"_copy_from_and_resize", unboxed<&copy_from_and_resize>},
    {"_local_scalar_dense", unboxed<&local_scalar_dense>},
    {"convolution", boxed<&convolution>},
    {"_embedding_bag_backward", boxed<&embedding_bag_backward>},
    {"scaled_dot_product_attention", unboxed<&scaled_dot_product_attention>},
    {"dropout", unboxed<&dropout>},
    {"softmax.int", unboxed<&softmax>},
    {"log_softmax.int", unboxed<&log_softmax>},
    {"group_norm", unboxed<&group_norm>},
    {"rms_norm", unboxed<&rms_norm>},
    {"grid_sampler", unboxed<&grid_sampler>},
    {"_grid_sampler_2d_cpu_fallback", unboxed<&grid_sampler_fallback>},
    {"max_pool1d", unboxed<&max_pool1d>},
    {"ctc_loss.Tensor", unboxed<&ctc_loss_tensor>},
    {"_batch_norm_impl_index", unboxed<&batch_norm_impl_index>},
    {"lstm.input", unboxed<&lstm_input>},
    {"lstm.data", unboxed<&lstm_data>},
    {"gru.input", unboxed<&gru_input>},
    {"gru.data", unboxed<&gru_data>},
    {"rnn_tanh.input", unboxed<&rnn_tanh_input>},
    {"rnn_tanh.data", unboxed<&rnn_tanh_data>},
    {"rnn_relu.input", unboxed<&rnn_relu_input>},
    {"rnn_relu.data", unboxed<&rnn_relu_data>},
    {"lstm_cell", unboxed<&lstm_cell>},
    {"gru_cell", unboxed<&gru_cell>},
};

}  // namespace

c10::ArrayRef<KernelRow> kernel_rows() {
  return kRows;
}

Kernel find_kernel(const c10::OperatorName& operation) {
  const std::string key = marshal::row_key(operation);
  const auto* const found = std::ranges::find_if(
      kRows, [&](const KernelRow& row) { return marshal::matches(row.name, key); });
  return found == std::end(kRows) ? nullptr : found->kernel;
}

}  // namespace torch_remote::client::kernels
