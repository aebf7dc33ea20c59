#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_cell_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/gru_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/lstm_cell_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/lstm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/rnn_relu_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_tanh_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "client/kernels/composite.h"
#include "client/kernels/cudnn_recurrent.h"
#include "client/kernels/recurrent_layers.h"
#include "client/memory/server_branch.h"

// See Note [Recurrent layers on a CPU server].
namespace torch_remote::client::kernels {
namespace {

template <typename Sequence>
Two run_single(Cell cell, Sequence sequence, const at::Tensor& hx, at::TensorList params,
               bool has_biases, const LayerOptions& options) {
  auto [output, last] = run_layers(cell, std::move(sequence), states_of(hx),
                                   weights_of(params, has_biases, false), options);
  return {std::move(output), stacked(last, 0)};
}

Two run_padded(Cell cell, const at::Tensor& input, const at::Tensor& hx, at::TensorList params,
               bool has_biases, const LayerOptions& options, bool batch_first) {
  auto [output, hy] = run_single(cell, Padded{batch_first ? input.transpose(0, 1) : input}, hx,
                                 params, has_biases, options);
  return {batch_first ? output.transpose(0, 1) : output, hy};
}

// PyTorch's conditions for oneDNN's LSTM on a CPU.
bool uses_mkldnn(const at::Tensor& input) {
  const wire::Welcome& server = server_of(input);
  if (!server.mkldnn || !at::globalContext().userEnabledMkldnn() || input.sym_numel() == 0)
    return false;
  switch (input.scalar_type()) {
    case at::kFloat:
      return true;
    case at::kBFloat16:
      return server.mkldnn_bf16;
    case at::kHalf:
      return !at::GradMode::is_enabled() && server.mkldnn_fp16;
    default:
      return false;
  }
}

Three mkldnn_lstm(const at::Tensor& input, at::TensorList hx, at::TensorList params,
                  bool has_biases, const LayerOptions& options, bool batch_first) {
  constexpr int64_t kLstm = 2;  // oneDNN's mode
  const int64_t directions = options.bidirectional ? 2 : 1;
  const size_t each = has_biases ? 4 : 2;
  TORCH_CHECK(params.size() % each == 0, "MatrixRef: ArrayRef size ", params.size(),
              " not divisible by stride ", each);
  const at::Tensor h = hx[0].contiguous();
  const at::Tensor c = hx[1].contiguous();
  const int64_t hidden_size = h.sym_size(2).guard_int(__FILE__, __LINE__);
  at::Tensor layer_input = (batch_first ? input.transpose(0, 1) : input).contiguous();
  Tensors hy;
  Tensors cy;
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    Tensors outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t index = layer * directions + direction;
      const auto weights = params.slice(static_cast<size_t>(index) * each, each);
      auto bias = [&](size_t which) {
        return has_biases ? weights[2 + which]
                          : at::zeros_symint(weights[which].sym_sizes(), weights[which].options());
      };
      auto result =
          at::mkldnn_rnn_layer(layer_input, weights[0], weights[1], bias(0), bias(1), h[index],
                               c[index], direction == 1, {}, kLstm, hidden_size, options.num_layers,
                               has_biases, options.bidirectional, batch_first, options.train);
      outputs.push_back(std::get<0>(result));
      hy.push_back(std::get<1>(result));
      cy.push_back(std::get<2>(result));
    }
    layer_input = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (options.dropout != 0 && options.train && layer < options.num_layers - 1)
      layer_input = at::dropout(layer_input, options.dropout, true);
  }
  return {batch_first ? layer_input.transpose(0, 1) : layer_input, at::stack(hy, 0),
          at::stack(cy, 0)};
}

}  // namespace

Three lstm_input(const at::Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
                 int64_t num_layers, double dropout, bool train, bool bidirectional,
                 bool batch_first) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  if (uses_cudnn_rnn(input)) {
    return cudnn_rnn({CudnnMode::kLstm, hx[0], hx[1], params, has_biases, num_layers, dropout,
                      train, bidirectional},
                     input, batch_first);
  }
  if (!is_on_cpu_server(input)) {
    return at::compositeimplicitautograd::lstm(input, hx, params, has_biases, num_layers, dropout,
                                               train, bidirectional, batch_first);
  }
  const LayerOptions options{num_layers, dropout, train, bidirectional};
  const bool has_projections = hx[0].sym_size(2) != hx[1].sym_size(2);
  if (!has_projections && uses_mkldnn(input))
    return mkldnn_lstm(input, hx, params, has_biases, options, batch_first);
  auto [output, last] =
      run_layers(lstm_step, Padded{batch_first ? input.transpose(0, 1) : input}, states_of(hx),
                 weights_of(params, has_biases, has_projections), options);
  return {batch_first ? output.transpose(0, 1) : output, stacked(last, 0), stacked(last, 1)};
}

Two without_cell(const Three& result) {
  return {std::get<0>(result), std::get<1>(result)};
}

// Since torch 2.13 oneDNN's LSTM gets packed sequences of equal length unpacked (pytorch#185531).
bool unpacks_for_mkldnn(const at::Tensor& data, const std::vector<int64_t>& batch_sizes) {
  return !batch_sizes.empty() && batch_sizes.front() == batch_sizes.back() && uses_mkldnn(data) &&
         !server_of(data).torch_version.starts_with("2.11.");
}

Three lstm_data(const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList hx,
                at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                bool train, bool bidirectional) {
  TORCH_CHECK(hx.size() == 2, "lstm expects two hidden states");
  if (uses_cudnn_rnn(data)) {
    return cudnn_rnn({CudnnMode::kLstm, hx[0], hx[1], params, has_biases, num_layers, dropout,
                      train, bidirectional},
                     data, batch_sizes);
  }
  if (!is_on_cpu_server(data)) {
    return at::compositeimplicitautograd::lstm(data, batch_sizes, hx, params, has_biases,
                                               num_layers, dropout, train, bidirectional);
  }
  const LayerOptions options{num_layers, dropout, train, bidirectional};
  const bool has_projections = hx[0].sym_size(2) != hx[1].sym_size(2);
  const Packed sequence = packed(data, batch_sizes);
  if (!has_projections && unpacks_for_mkldnn(data, sequence.batch_sizes)) {
    const auto steps = static_cast<int64_t>(sequence.batch_sizes.size());
    auto result =
        mkldnn_lstm(data.reshape_symint({steps, sequence.batch_sizes[0], data.sym_size(-1)}), hx,
                    params, has_biases, options, false);
    at::Tensor& output = std::get<0>(result);
    output = output.reshape_symint({steps * sequence.batch_sizes[0], output.sym_size(-1)});
    return result;
  }
  auto [output, last] = run_layers(lstm_step, sequence, states_of(hx),
                                   weights_of(params, has_biases, has_projections), options);
  return {output, stacked(last, 0), stacked(last, 1)};
}

Two gru_input(const at::Tensor& input, const at::Tensor& hx, at::TensorList params, bool has_biases,
              int64_t num_layers, double dropout, bool train, bool bidirectional,
              bool batch_first) {
  if (uses_cudnn_rnn(input)) {
    return without_cell(cudnn_rnn(
        {CudnnMode::kGru, hx, {}, params, has_biases, num_layers, dropout, train, bidirectional},
        input, batch_first));
  }
  if (!is_on_cpu_server(input)) {
    return at::compositeimplicitautograd::gru(input, hx, params, has_biases, num_layers, dropout,
                                              train, bidirectional, batch_first);
  }
  return run_padded(gru_step, input, hx, params, has_biases,
                    {num_layers, dropout, train, bidirectional}, batch_first);
}

Two gru_data(const at::Tensor& data, const at::Tensor& batch_sizes, const at::Tensor& hx,
             at::TensorList params, bool has_biases, int64_t num_layers, double dropout, bool train,
             bool bidirectional) {
  if (uses_cudnn_rnn(data)) {
    return without_cell(cudnn_rnn(
        {CudnnMode::kGru, hx, {}, params, has_biases, num_layers, dropout, train, bidirectional},
        data, batch_sizes));
  }
  if (!is_on_cpu_server(data)) {
    return at::compositeimplicitautograd::gru(data, batch_sizes, hx, params, has_biases, num_layers,
                                              dropout, train, bidirectional);
  }
  return run_single(gru_step, packed(data, batch_sizes), hx, params, has_biases,
                    {num_layers, dropout, train, bidirectional});
}

Two rnn_tanh_input(const at::Tensor& input, const at::Tensor& hx, at::TensorList params,
                   bool has_biases, int64_t num_layers, double dropout, bool train,
                   bool bidirectional, bool batch_first) {
  if (uses_cudnn_rnn(input)) {
    return without_cell(cudnn_rnn(
        {CudnnMode::kTanh, hx, {}, params, has_biases, num_layers, dropout, train, bidirectional},
        input, batch_first));
  }
  if (!is_on_cpu_server(input)) {
    return at::compositeimplicitautograd::rnn_tanh(input, hx, params, has_biases, num_layers,
                                                   dropout, train, bidirectional, batch_first);
  }
  return run_padded(tanh_step, input, hx, params, has_biases,
                    {num_layers, dropout, train, bidirectional}, batch_first);
}

Two rnn_tanh_data(const at::Tensor& data, const at::Tensor& batch_sizes, const at::Tensor& hx,
                  at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                  bool train, bool bidirectional) {
  if (uses_cudnn_rnn(data)) {
    return without_cell(cudnn_rnn(
        {CudnnMode::kTanh, hx, {}, params, has_biases, num_layers, dropout, train, bidirectional},
        data, batch_sizes));
  }
  if (!is_on_cpu_server(data)) {
    return at::compositeimplicitautograd::rnn_tanh(data, batch_sizes, hx, params, has_biases,
                                                   num_layers, dropout, train, bidirectional);
  }
  return run_single(tanh_step, packed(data, batch_sizes), hx, params, has_biases,
                    {num_layers, dropout, train, bidirectional});
}

Two rnn_relu_input(const at::Tensor& input, const at::Tensor& hx, at::TensorList params,
                   bool has_biases, int64_t num_layers, double dropout, bool train,
                   bool bidirectional, bool batch_first) {
  if (uses_cudnn_rnn(input)) {
    return without_cell(cudnn_rnn(
        {CudnnMode::kRelu, hx, {}, params, has_biases, num_layers, dropout, train, bidirectional},
        input, batch_first));
  }
  if (!is_on_cpu_server(input)) {
    return at::compositeimplicitautograd::rnn_relu(input, hx, params, has_biases, num_layers,
                                                   dropout, train, bidirectional, batch_first);
  }
  return run_padded(relu_step, input, hx, params, has_biases,
                    {num_layers, dropout, train, bidirectional}, batch_first);
}

Two rnn_relu_data(const at::Tensor& data, const at::Tensor& batch_sizes, const at::Tensor& hx,
                  at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                  bool train, bool bidirectional) {
  if (uses_cudnn_rnn(data)) {
    return without_cell(cudnn_rnn(
        {CudnnMode::kRelu, hx, {}, params, has_biases, num_layers, dropout, train, bidirectional},
        data, batch_sizes));
  }
  if (!is_on_cpu_server(data)) {
    return at::compositeimplicitautograd::rnn_relu(data, batch_sizes, hx, params, has_biases,
                                                   num_layers, dropout, train, bidirectional);
  }
  return run_single(relu_step, packed(data, batch_sizes), hx, params, has_biases,
                    {num_layers, dropout, train, bidirectional});
}

namespace {

// The checks of PyTorch's cells, with their texts.
void check_cell_input(const at::Tensor& input, const at::Tensor& w_ih) {
  TORCH_CHECK(input.sym_size(1) == w_ih.sym_size(1), "input has inconsistent input_size: got ",
              input.sym_size(1), " expected ", w_ih.sym_size(1));
}

void check_cell_state(const at::Tensor& input, const at::Tensor& state, const at::Tensor& w_hh,
                      int number) {
  TORCH_CHECK(input.sym_size(0) == state.sym_size(0), "Input batch size ", input.sym_size(0),
              " doesn't match hidden", number, " batch size ", state.sym_size(0));
  TORCH_CHECK(state.sym_size(1) == w_hh.sym_size(1), "hidden", number,
              " has inconsistent hidden_size: got ", state.sym_size(1), ", expected ",
              w_hh.sym_size(1));
}

}  // namespace

Two lstm_cell(const at::Tensor& input, at::TensorList hx, const at::Tensor& w_ih,
              const at::Tensor& w_hh, const std::optional<at::Tensor>& b_ih,
              const std::optional<at::Tensor>& b_hh) {
  if (!is_on_cpu_server(input))
    return at::compositeimplicitautograd::lstm_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
  const Weights weights{w_ih, w_hh, b_ih.value_or(at::Tensor()), b_hh.value_or(at::Tensor()), {}};
  TORCH_CHECK(hx.size() == 2, "lstm_cell expects two hidden states");
  check_cell_input(input, w_ih);
  check_cell_state(input, hx[0], w_hh, 0);
  check_cell_state(input, hx[1], w_hh, 1);
  State next = lstm_step(weights.from_input(input), {hx[0], hx[1]}, weights);
  return {next[0], next[1]};
}

at::Tensor gru_cell(const at::Tensor& input, const at::Tensor& hx, const at::Tensor& w_ih,
                    const at::Tensor& w_hh, const std::optional<at::Tensor>& b_ih,
                    const std::optional<at::Tensor>& b_hh) {
  if (!is_on_cpu_server(input))
    return at::compositeimplicitautograd::gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
  const Weights weights{w_ih, w_hh, b_ih.value_or(at::Tensor()), b_hh.value_or(at::Tensor()), {}};
  check_cell_input(input, w_ih);
  check_cell_state(input, hx, w_hh, 0);
  return gru_step(weights.from_input(input), {hx}, weights)[0];
}

}  // namespace torch_remote::client::kernels
