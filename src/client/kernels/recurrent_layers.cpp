#include "client/kernels/recurrent_layers.h"

#include <algorithm>

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>

namespace torch_remote::client::kernels {
namespace {

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

Scan scan(const Padded& sequence, Cell cell, const State& first, const Weights& weights,
          bool backwards) {
  Tensors steps = weights.from_input(sequence.data).unbind(0);
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

Scan scan_forwards(const Packed& sequence, Cell cell, const State& first, const Weights& weights) {
  const at::Tensor input = weights.from_input(sequence.data);
  State state = first;
  Tensors outputs;
  std::vector<State> finished;
  int64_t at = 0;
  int64_t active = sequence.batch_sizes[0];
  for (const int64_t size : sequence.batch_sizes) {
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

Scan scan_backwards(const Packed& sequence, Cell cell, const State& first, const Weights& weights) {
  const at::Tensor input = weights.from_input(sequence.data);
  c10::SymInt at = sequence.data.sym_size(0);
  int64_t active = sequence.batch_sizes.back();
  State state = rows(first, 0, active);
  Tensors outputs;
  for (auto size = sequence.batch_sizes.rbegin(); size != sequence.batch_sizes.rend(); ++size) {
    if (*size > active)
      state = concatenated({state, rows(first, active, *size)});
    active = *size;
    at = at - *size;
    state = cell(input.narrow_symint(0, at, *size), state, weights);
    outputs.push_back(state[0]);
  }
  std::reverse(outputs.begin(), outputs.end());
  return {at::cat(outputs, 0), state};
}

Scan scan(const Packed& sequence, Cell cell, const State& first, const Weights& weights,
          bool backwards) {
  return backwards ? scan_backwards(sequence, cell, first, weights)
                   : scan_forwards(sequence, cell, first, weights);
}

template <typename Sequence>
std::pair<at::Tensor, std::vector<State>> run_all(Cell cell, Sequence sequence,
                                                  const std::vector<State>& first,
                                                  const std::vector<Weights>& weights,
                                                  const LayerOptions& options) {
  const size_t directions = options.bidirectional ? 2 : 1;
  TORCH_CHECK(first.size() % directions == 0 && weights.size() % directions == 0,
              "Odd number of params or hiddens given to a bidirectional RNN");
  TORCH_CHECK(first.size() == static_cast<size_t>(options.num_layers) * directions,
              "Expected more hidden states in stacked_rnn");
  TORCH_CHECK(weights.size() == first.size(), "Expected more weights in stacked_rnn");
  std::vector<State> last;
  for (int64_t layer = 0; layer < options.num_layers; ++layer) {
    Tensors outputs;
    for (size_t direction = 0; direction < directions; ++direction) {
      const size_t index = static_cast<size_t>(layer) * directions + direction;
      auto [output, state] = scan(sequence, cell, first[index], weights[index], direction == 1);
      outputs.push_back(std::move(output));
      last.push_back(std::move(state));
    }
    at::Tensor joined = directions == 1 ? outputs[0] : at::cat(outputs, outputs[0].dim() - 1);
    if (options.dropout != 0 && options.train && layer < options.num_layers - 1)
      joined = at::dropout(joined, options.dropout, true);
    sequence.data = std::move(joined);
  }
  return {sequence.data, std::move(last)};
}

}  // namespace

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

namespace {

// The gates of a cell, one beside the other. unsafe_chunk() gives fewer parts where the size of a
// weight is no multiple of their number.
Tensors split_gates(const at::Tensor& gates, int64_t number) {
  Tensors parts = gates.unsafe_chunk(number, 1);
  TORCH_CHECK(parts.size() == static_cast<size_t>(number), "a weight of ", gates.size(1),
              " rows does not have ", number, " gates");
  return parts;
}

}  // namespace

State lstm_step(const at::Tensor& input, const State& state, const Weights& weights) {
  const Tensors gates = split_gates(weights.from_hidden(state[0]).add_(input), 4);
  const at::Tensor in = at::Tensor(gates[0]).sigmoid_();
  const at::Tensor forget = at::Tensor(gates[1]).sigmoid_();
  const at::Tensor cell = at::Tensor(gates[2]).tanh_();
  const at::Tensor out = at::Tensor(gates[3]).sigmoid_();
  const at::Tensor next = forget.mul(state[1]).add_(in.mul(cell));
  return {weights.project(out.mul(next.tanh())), next};
}

State gru_step(const at::Tensor& input, const State& state, const Weights& weights) {
  const Tensors from_input = split_gates(input, 3);
  const Tensors from_hidden = split_gates(weights.from_hidden(state[0]), 3);
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

std::pair<at::Tensor, std::vector<State>> run_layers(Cell cell, Padded sequence,
                                                     const std::vector<State>& first,
                                                     const std::vector<Weights>& weights,
                                                     const LayerOptions& options) {
  return run_all(cell, std::move(sequence), first, weights, options);
}

std::pair<at::Tensor, std::vector<State>> run_layers(Cell cell, Packed sequence,
                                                     const std::vector<State>& first,
                                                     const std::vector<Weights>& weights,
                                                     const LayerOptions& options) {
  return run_all(cell, std::move(sequence), first, weights, options);
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

}  // namespace torch_remote::client::kernels
