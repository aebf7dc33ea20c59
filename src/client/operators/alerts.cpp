#include "client/operators/alerts.h"

#include <algorithm>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include "marshal/operator_table.h"

namespace torch_remote::client {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

bool always(Arguments, bool) {
  return true;
}

bool on_cuda(Arguments, bool is_cuda) {
  return is_cuda;
}

// (self, index, source, accumulate)
bool put(Arguments arguments, bool is_cuda) {
  return is_cuda || !arguments[3].toBool();
}

bool is_max(const c10::IValue& mode) {
  constexpr int64_t kMax = 2;
  return mode.toInt() == kMax;
}

// (grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, by_freq, mode, …)
bool embedding_bag(Arguments arguments, bool is_cuda) {
  return is_cuda && is_max(arguments[8]);
}

// The same without `offsets`.
bool embedding_bag_dense(Arguments arguments, bool is_cuda) {
  return is_cuda && is_max(arguments[7]);
}

// (self, target, weight, reduction, ignore_index)
bool nll_loss2d(Arguments arguments, bool is_cuda) {
  return is_cuda && arguments[3].toInt() != at::Reduction::None;
}

// (self, dim, index, src, reduce): CUDA adds numbers that are not integers by index_put.
bool scatter(Arguments arguments, bool is_cuda) {
  const bool is_integral = at::isIntegralType(arguments[0].toTensor().scalar_type(), true);
  return is_cuda && arguments[2].toTensor().numel() != 0 &&
         (is_integral || arguments[4].toStringView() == "multiply");
}

// (self, dim, index, src, reduce, include_self)
bool scatter_reduce(Arguments arguments, bool is_cuda) {
  return is_cuda && arguments[2].toTensor().numel() != 0 && arguments[4].toStringView() == "prod";
}

// (self, weights, minlength)
bool bincount(Arguments arguments, bool is_cuda) {
  return is_cuda && arguments[1].isTensor() && arguments[1].toTensor().defined();
}

bool histc(Arguments arguments, bool is_cuda) {
  return is_cuda && at::isFloatingType(arguments[0].toTensor().scalar_type());
}

// Every call of alertNotDeterministic() in PyTorch's kernels for a CPU and CUDA, in torch 2.13.
constexpr Alert kAlerts[] = {
    {"max_unpool2d.*", "max_unpooling2d_forward_out", always},
    {"max_unpool3d.*", "max_unpooling3d_forward_out", always},
    {"put", "put_", put},
    {"put_", "put_", put},
    {"_adaptive_avg_pool2d_backward", "adaptive_avg_pool2d_backward_cuda", on_cuda},
    {"_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward_cuda", on_cuda},
    {"adaptive_avg_pool3d_backward.*", "adaptive_avg_pool3d_backward_out_cuda", on_cuda},
    {"adaptive_max_pool2d_backward.*", "adaptive_max_pool2d_backward_cuda", on_cuda},
    {"avg_pool3d_backward.*", "avg_pool3d_backward_cuda", on_cuda},
    {"max_pool3d_with_indices_backward", "max_pool3d_with_indices_backward_cuda", on_cuda},
    {"max_pool3d_with_indices_backward.*", "max_pool3d_with_indices_backward_out_cuda", on_cuda},
    {"fractional_max_pool2d_backward.*", "fractional_max_pool2d_backward_cuda", on_cuda},
    {"fractional_max_pool3d_backward", "fractional_max_pool3d_backward_cuda", on_cuda},
    {"fractional_max_pool3d_backward.*", "fractional_max_pool3d_backward_out_cuda", on_cuda},
    {"_embedding_bag_backward", "embedding_bag_backward_cuda_max", embedding_bag},
    {"_embedding_bag_dense_backward", "embedding_bag_backward_cuda_max", embedding_bag_dense},
    {"grid_sampler_2d_backward", "grid_sampler_2d_backward_cuda", on_cuda},
    {"grid_sampler_3d_backward", "grid_sampler_3d_backward_cuda", on_cuda},
    {"cudnn_grid_sampler_backward", "cudnn_grid_sampler_backward", on_cuda},
    {"index_reduce.*", "index_reduce_cuda", on_cuda},
    {"index_reduce_", "index_reduce_cuda", on_cuda},
    {"_ctc_loss_backward.*", "ctc_loss_backward_gpu", on_cuda},
    {"nll_loss2d_forward.*", "nll_loss2d_forward_out_cuda_template", nll_loss2d},
    {"reflection_pad1d_backward.*", "reflection_pad1d_backward_out_cuda", on_cuda},
    {"reflection_pad3d_backward.*", "reflection_pad3d_backward_out_cuda", on_cuda},
    {"replication_pad1d_backward.*", "replication_pad1d_backward_cuda", on_cuda},
    {"replication_pad2d_backward", "replication_pad2d_backward_cuda", on_cuda},
    {"replication_pad2d_backward.*", "replication_pad2d_backward_out_cuda", on_cuda},
    {"replication_pad3d_backward", "replication_pad3d_backward_cuda", on_cuda},
    {"replication_pad3d_backward.*", "replication_pad3d_backward_out_cuda", on_cuda},
    {"scatter.reduce*", "scatter_reduce_cuda_kernel", scatter},
    {"scatter_.reduce", "scatter_reduce_cuda_kernel", scatter},
    {"scatter_reduce.two*", "scatter_reduce_cuda_prod_", scatter_reduce},
    {"scatter_reduce_.two", "scatter_reduce_cuda_prod_", scatter_reduce},
    {"median.dim*", "median CUDA with indices output", on_cuda},
    {"nanmedian.dim*", "median CUDA with indices output", on_cuda},
    {"bincount.*", "_bincount_cuda", bincount},
    {"histc.*", "_histc_cuda with floating point input", histc},
    {"upsample_linear1d_backward.*", "upsample_linear1d_backward_out_cuda", on_cuda},
    {"upsample_bilinear2d_backward.*", "upsample_bilinear2d_backward_out_cuda", on_cuda},
    {"_upsample_bilinear2d_aa_backward.*", "upsample_bilinear2d_aa_backward_out_cuda", on_cuda},
    {"upsample_bicubic2d_backward.*", "upsample_bicubic2d_backward_out_cuda", on_cuda},
    {"_upsample_bicubic2d_aa_backward.*", "upsample_bicubic2d_aa_backward_out_cuda", on_cuda},
    {"upsample_trilinear3d_backward.*", "upsample_trilinear3d_backward_out_cuda", on_cuda},
};

}  // namespace

const Alert* find_alert(const c10::OperatorName& operation) {
  const std::string key = marshal::row_key(operation);
  const auto found = std::find_if(std::begin(kAlerts), std::end(kAlerts), [&](const Alert& alert) {
    return marshal::matches(alert.operation, key);
  });
  return found == std::end(kAlerts) ? nullptr : found;
}

bool is_alert(std::string_view text) {
  return std::any_of(std::begin(kAlerts), std::end(kAlerts), [text](const Alert& alert) {
    const std::string_view caller = alert.caller;
    return text.starts_with(caller) &&
           text.substr(caller.size()).starts_with(" does not have a deterministic implementation");
  });
}

}  // namespace torch_remote::client
