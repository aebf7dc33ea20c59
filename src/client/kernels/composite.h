#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>

// Composite operators that branch on the device: they take the branch of the server's device. Each
// calls differentiable operators, so autograd works through it.
namespace torch_remote::client::kernels {

at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout_p,
                                        bool is_causal, std::optional<double> scale,
                                        bool enable_gqa);
// PyTorch's own composition calls this under vmap. A CPU server: the CPU's choice; else math.
int64_t attention_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa);
at::Tensor dropout(const at::Tensor& input, double p, bool train);

at::Tensor softmax(const at::Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype);
at::Tensor log_softmax(const at::Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype);
at::Tensor group_norm(const at::Tensor& input, int64_t groups,
                      const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double eps, bool cudnn_enabled);
at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized,
                    const std::optional<at::Tensor>& weight, std::optional<double> eps);
at::Tensor grid_sampler(const at::Tensor& input, const at::Tensor& grid, int64_t interpolation,
                        int64_t padding, bool align_corners);
// PyTorch's plain code for grid_sampler_2d on a CPU: the server's own kernel gives the same.
at::Tensor grid_sampler_fallback(const at::Tensor& input, const at::Tensor& grid,
                                 int64_t interpolation, int64_t padding, bool align_corners);
at::Tensor max_pool1d(const at::Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode);
at::Tensor ctc_loss_tensor(const at::Tensor& log_probs, const at::Tensor& targets,
                           const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                           int64_t blank, int64_t reduction, bool zero_infinity);

using BatchNormResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t>;
BatchNormResult batch_norm_impl_index(const at::Tensor& input,
                                      const std::optional<at::Tensor>& weight,
                                      const std::optional<at::Tensor>& bias,
                                      const std::optional<at::Tensor>& mean,
                                      const std::optional<at::Tensor>& variance, bool training,
                                      double momentum, double eps, bool cudnn_enabled);

// One call. torch.jit.trace records `_convolution`, which PyTorch's kernel calls, and not
// `convolution`. So while a trace is recorded PyTorch's kernel runs here.
void convolution(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// With sparse=True PyTorch's composition runs here, and makes the gradient of its parts.
void embedding_bag_backward(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;

Three lstm_input(const at::Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
                 int64_t num_layers, double dropout, bool train, bool bidirectional,
                 bool batch_first);
Three lstm_data(const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList hx,
                at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                bool train, bool bidirectional);
Two gru_input(const at::Tensor& input, const at::Tensor& hx, at::TensorList params, bool has_biases,
              int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first);
Two gru_data(const at::Tensor& data, const at::Tensor& batch_sizes, const at::Tensor& hx,
             at::TensorList params, bool has_biases, int64_t num_layers, double dropout, bool train,
             bool bidirectional);
Two rnn_tanh_input(const at::Tensor& input, const at::Tensor& hx, at::TensorList params,
                   bool has_biases, int64_t num_layers, double dropout, bool train,
                   bool bidirectional, bool batch_first);
Two rnn_tanh_data(const at::Tensor& data, const at::Tensor& batch_sizes, const at::Tensor& hx,
                  at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                  bool train, bool bidirectional);
Two rnn_relu_input(const at::Tensor& input, const at::Tensor& hx, at::TensorList params,
                   bool has_biases, int64_t num_layers, double dropout, bool train,
                   bool bidirectional, bool batch_first);
Two rnn_relu_data(const at::Tensor& data, const at::Tensor& batch_sizes, const at::Tensor& hx,
                  at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                  bool train, bool bidirectional);
Two lstm_cell(const at::Tensor& input, at::TensorList hx, const at::Tensor& w_ih,
              const at::Tensor& w_hh, const std::optional<at::Tensor>& b_ih,
              const std::optional<at::Tensor>& b_hh);
at::Tensor gru_cell(const at::Tensor& input, const at::Tensor& hx, const at::Tensor& w_ih,
                    const at::Tensor& w_hh, const std::optional<at::Tensor>& b_ih,
                    const std::optional<at::Tensor>& b_hh);

}  // namespace torch_remote::client::kernels
