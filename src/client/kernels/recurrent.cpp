#include <algorithm>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_cell_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/gru_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm_cell_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/lstm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rnn_relu_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_tanh_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include "client/kernels/composite.h"
#include "client/kernels/cudnn_recurrent.h"
#include "client/kernels/server_branch.h"

// Note [Recurrent layers on a CPU server]
//
// PyTorch composes recurrent layers from other operators, and does it differently on a CPU: the input is multiplied
// by its weights for all steps at once, the gates are computed by separate operators, and a whole LSTM layer is one
// oneDNN call where that can be used. To be bit for bit the same the client composes them in that way.
namespace torch_remote::client::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;

// Weights of one layer and direction.
struct Weights {
  at::Tensor ih, hh, bias_ih, bias_hh, projection;

  at::Tensor from_input(const at::Tensor& input) const { return at::linear(input, ih, bias_ih); }

  at::Tensor from_hidden(const at::Tensor& hidden) const { return at::linear(hidden, hh, bias_hh); }

  at::Tensor project(const at::Tensor& hidden) const {
    return projection.defined() ? at::matmul(hidden, projection.t()) : hidden;
  }
};

std::vector<Weights> weights_of(at::TensorList params, bool has_biases, bool has_projections) {
  const size_t each = 2 + (has_biases ? 2 : 0) + (has_projections ? 1 : 0);
  TORCH_CHECK(params.size() % each == 0, "got an incorrect number of RNN parameters");
  std::vector<Weights> all;
  for (size_t i = 0; i < params.size(); i += each) {
    Weights weights{params[i], params[i + 1], {}, {}, {}};
    if (has_biases) {
      weights.bias_ih = params[i + 2];
      weights.bias_hh = params[i + 3];
    }
    if (has_projections)
      weights.projection = params[i + each - 1];
    all.push_back(std::move(weights));
  }
  return all;
}

// A hidden state: one tensor, or for LSTM two. A cell takes an input that has been multiplied by its weights.
using State = Tensors;
using Cell = State (*)(const at::Tensor& gates_of_input, const State& state,
                       const Weights& weights);

State lstm_step(const at::Tensor& input, const State& state, const Weights& weights) {
  const Tensors gates = weights.from_hidden(state[0]).add_(input).unsafe_chunk(4, 1);
  const at::Tensor in = at::Tensor(gates[0]).sigmoid_();
  const at::Tensor forget = at::Tensor(gates[1]).sigmoid_();
  const at::Tensor cell = at::Tensor(gates[2]).tanh_();
  const at::Tensor out = at::Tensor(gates[3]).sigmoid_();
  const at::Tensor next = forget.mul(state[1]).add_(in.mul(cell));
  return {weights.project(out.mul(next.tanh())), next};
}

State gru_step(const at::Tensor& input, const State& state, const Weights& weights) {
  const Tensors from_input = input.unsafe_chunk(3, 1);
  const Tensors from_hidden = weights.from_hidden(state[0]).unsafe_chunk(3, 1);
  const at::Tensor reset = at::Tensor(from_hidden[0]).add_(from_input[0]).sigmoid_();
  const at::Tensor update = at::Tensor(from_hidden[1]).add_(from_input[1]).sigmoid_();
  const at::Tensor fresh = from_input[2].add(at::Tensor(from_hidden[2]).mul_(reset)).tanh_();
  return {state[0].sub(fresh).mul_(update).add_(fresh)};
}

State tanh_step(const at::Tensor& input, const State& state, const Weights& weights) {
  return {at::tanh(weights.from_hidden(state[0]).add_(input))};
}

State relu_step(const at::Tensor& input, const State& state, const Weights& weights) {
  return {at::relu(weights.from_hidden(state[0]).add_(input))};
}

State rows(const State& state, int64_t from, int64_t to) {
  State part;
  for (const at::Tensor& tensor : state)
    part.push_back(tensor.narrow(0, from, to - from));
  return part;
}

State concatenated(const std::vector<State>& states) {
  State whole;
  for (size_t i = 0; i < states[0].size(); ++i) {
    Tensors parts;
    for (const State& state : states)
      parts.push_back(state[i]);
    whole.push_back(at::cat(parts, 0));
  }
  return whole;
}

struct Scan {
  at::Tensor outputs;
  State last;
};

// A padded sequence: (time, batch, features).
struct Padded {
  at::Tensor data;

  Padded with(at::Tensor outputs) const { return {std::move(outputs)}; }

  Scan scan(Cell cell, const State& first, const Weights& weights, bool backwards) const {
    Tensors steps = weights.from_input(data).unbind(0);
    if (backwards)
      std::reverse(steps.begin(), steps.end());
    State state = first;
    Tensors outputs;
    for (const at::Tensor& step : steps) {
      state = cell(step, state, weights);
      outputs.push_back(state[0]);
    }
    TORCH_CHECK(!outputs.empty(), "Expected sequence length to be larger than 0 in RNN");
    if (backwards)
      std::reverse(outputs.begin(), outputs.end());
    return {at::stack(outputs, 0), state};
  }
};

// Sequences of different lengths, packed: at each step the first `batch_sizes[step]` of them go on.
struct Packed {
  at::Tensor data;
  std::vector<int64_t> batch_sizes;

  Packed with(at::Tensor outputs) const { return {std::move(outputs), batch_sizes}; }

  Scan scan(Cell cell, const State& first, const Weights& weights, bool backwards) const {
    return backwards ? scan_backwards(cell, first, weights) : scan_forwards(cell, first, weights);
  }

 private:
  Scan scan_forwards(Cell cell, const State& first, const Weights& weights) const {
    const at::Tensor input = weights.from_input(data);
    State state = first;
    Tensors outputs;
    std::vector<State> finished;
    int64_t at = 0;
    int64_t active = batch_sizes[0];
    for (const int64_t size : batch_sizes) {
      if (size < active) {
        finished.push_back(rows(state, size, active));
        state = rows(state, 0, size);
        active = size;
      }
      state = cell(input.narrow(0, at, size), state, weights);
      outputs.push_back(state[0]);
      at += size;
    }
    finished.push_back(state);
    std::reverse(finished.begin(), finished.end());
    return {at::cat(outputs, 0), concatenated(finished)};
  }

  Scan scan_backwards(Cell cell, const State& first, const Weights& weights) const {
    const at::Tensor input = weights.from_input(data);
    int64_t at = data.size(0);
    int64_t active = batch_sizes.back();
    State state = rows(first, 0, active);
    Tensors outputs;
    for (auto size = batch_sizes.rbegin(); size != batch_sizes.rend(); ++size) {
      if (*size > active)
        state = concatenated({state, rows(first, active, *size)});
      active = *size;
      at -= *size;
      state = cell(input.narrow(0, at, *size), state, weights);
      outputs.push_back(state[0]);
    }
    std::reverse(outputs.begin(), outputs.end());
    return {at::cat(outputs, 0), state};
  }
};

struct Options {
  int64_t num_layers;
  double dropout;
  bool train;
  bool bidirectional;
};

// All layers, one after the other. `first` has a state for each layer and direction; so has what comes back.
template <typename Sequence>
std::pair<at::Tensor, std::vector<State>> run_layers(Cell cell, Sequence sequence,
                                                     const std::vector<State>& first,
                                                     const std::vector<Weights>& weights,
                                                     const Options& options) {
  const size_t directions = options.bidirectional ? 2 : 1;
  TORCH_CHECK(first.size() == static_cast<size_t>(options.num_layers) * directions,
              "Expected more hidden states in stacked_rnn");
  TORCH_CHECK(weights.size() == first.size(), "Expected more weights in stacked_rnn");
  std::vector<State> last;
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    Tensors outputs;
    for (size_t direction = 0; direction < directions; ++direction) {
      const size_t index = static_cast<size_t>(layer) * directions + direction;
      Scan scan = sequence.scan(cell, first[index], weights[index], direction == 1);
      outputs.push_back(std::move(scan.outputs));
      last.push_back(std::move(scan.last));
    }
    at::Tensor joined = directions == 1 ? outputs[0] : at::cat(outputs, outputs[0].dim() - 1);
    if (options.dropout != 0 && options.train && layer < options.num_layers - 1) {
      joined = at::dropout(joined, options.dropout, true);
    }
    sequence = sequence.with(std::move(joined));
  }
  return {sequence.data, std::move(last)};
}

std::vector<State> states_of(at::TensorList hidden) {
  std::vector<State> states;
  for (const at::Tensor& tensor : hidden) {
    const Tensors layers = tensor.unbind(0);
    states.resize(layers.size());
    for (size_t i = 0; i < layers.size(); ++i)
      states[i].push_back(layers[i]);
  }
  return states;
}

at::Tensor stacked(const std::vector<State>& states, size_t part) {
  Tensors tensors;
  for (const State& state : states)
    tensors.push_back(state[part]);
  return at::stack(tensors, 0);
}

Packed packed(const at::Tensor& data, const at::Tensor& batch_sizes) {
  const at::Tensor sizes = batch_sizes.cpu().contiguous();
  const auto* begin = sizes.const_data_ptr<int64_t>();
  return {data, {begin, begin + sizes.numel()}};
}

template <typename Sequence>
Two run_single(Cell cell, Sequence sequence, const at::Tensor& hx, at::TensorList params,
               bool has_biases, const Options& options) {
  auto [output, last] = run_layers(cell, std::move(sequence), states_of(hx),
                                   weights_of(params, has_biases, false), options);
  return {std::move(output), stacked(last, 0)};
}

Two run_padded(Cell cell, const at::Tensor& input, const at::Tensor& hx, at::TensorList params,
               bool has_biases, const Options& options, bool batch_first) {
  auto [output, hy] = run_single(cell, Padded{batch_first ? input.transpose(0, 1) : input}, hx,
                                 params, has_biases, options);
  return {batch_first ? output.transpose(0, 1) : output, hy};
}

// oneDNN's LSTM: the conditions PyTorch has for it on a CPU.
bool uses_mkldnn(const at::Tensor& input) {
  const wire::Welcome& server = server_of(input);
  if (!server.mkldnn || !at::globalContext().userEnabledMkldnn() || input.numel() == 0)
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
                  bool has_biases, const Options& options, bool batch_first) {
  constexpr int64_t kLstm = 2;  // oneDNN's mode
  const int64_t directions = options.bidirectional ? 2 : 1;
  const size_t each = has_biases ? 4 : 2;
  const at::Tensor h = hx[0].contiguous();
  const at::Tensor c = hx[1].contiguous();
  const int64_t hidden_size = h.size(2);
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
                          : at::zeros(weights[which].sizes(), weights[which].options());
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
    if (options.dropout != 0 && options.train && layer < options.num_layers - 1) {
      layer_input = at::dropout(layer_input, options.dropout, true);
    }
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
  const Options options{num_layers, dropout, train, bidirectional};
  const bool has_projections = hx[0].size(2) != hx[1].size(2);
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

// Sequences of one length are no longer packed for oneDNN's LSTM: since torch 2.13 (pytorch#185531).
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
  const Options options{num_layers, dropout, train, bidirectional};
  const bool has_projections = hx[0].size(2) != hx[1].size(2);
  const Packed sequence = packed(data, batch_sizes);
  if (!has_projections && unpacks_for_mkldnn(data, sequence.batch_sizes)) {
    const auto steps = static_cast<int64_t>(sequence.batch_sizes.size());
    auto result = mkldnn_lstm(data.reshape({steps, sequence.batch_sizes[0], data.size(-1)}), hx,
                              params, has_biases, options, false);
    at::Tensor& output = std::get<0>(result);
    output = output.reshape({steps * sequence.batch_sizes[0], output.size(-1)});
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

// What PyTorch's cells look at, in its words.
void check_cell_input(const at::Tensor& input, const at::Tensor& w_ih) {
  TORCH_CHECK(input.size(1) == w_ih.size(1), "input has inconsistent input_size: got ",
              input.size(1), " expected ", w_ih.size(1));
}

void check_cell_state(const at::Tensor& input, const at::Tensor& state, const at::Tensor& w_hh,
                      int number) {
  TORCH_CHECK(input.size(0) == state.size(0), "Input batch size ", input.size(0),
              " doesn't match hidden", number, " batch size ", state.size(0));
  TORCH_CHECK(state.size(1) == w_hh.size(1), "hidden", number,
              " has inconsistent hidden_size: got ", state.size(1), ", expected ", w_hh.size(1));
}

}  // namespace

Two lstm_cell(const at::Tensor& input, at::TensorList hx, const at::Tensor& w_ih,
              const at::Tensor& w_hh, const std::optional<at::Tensor>& b_ih,
              const std::optional<at::Tensor>& b_hh) {
  if (!is_on_cpu_server(input)) {
    return at::compositeimplicitautograd::lstm_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
  }
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
  if (!is_on_cpu_server(input)) {
    return at::compositeimplicitautograd::gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
  }
  const Weights weights{w_ih, w_hh, b_ih.value_or(at::Tensor()), b_hh.value_or(at::Tensor()), {}};
  check_cell_input(input, w_ih);
  check_cell_state(input, hx, w_hh, 0);
  return gru_step(weights.from_input(input), {hx}, weights)[0];
}

}  // namespace torch_remote::client::kernels
