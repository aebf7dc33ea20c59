#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

// Note [Recurrent layers on a CPU server]
//
// PyTorch composes recurrent layers from other operators, and does it differently on a CPU: the input is multiplied
// by its weights for all steps at once, the gates are computed by separate operators, and a whole LSTM layer is one
// oneDNN call where that can be used. To be bit for bit the same the client composes them in that way.
namespace torch_remote::client::kernels {

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

std::vector<Weights> weights_of(at::TensorList params, bool has_biases, bool has_projections);

// A hidden state: one tensor, or for LSTM two. A cell takes an input that has been multiplied by its weights.
using State = Tensors;
using Cell = State (*)(const at::Tensor& gates_of_input, const State& state,
                       const Weights& weights);

State lstm_step(const at::Tensor& input, const State& state, const Weights& weights);
State gru_step(const at::Tensor& input, const State& state, const Weights& weights);
State tanh_step(const at::Tensor& input, const State& state, const Weights& weights);
State relu_step(const at::Tensor& input, const State& state, const Weights& weights);

// A padded sequence: (time, batch, features).
struct Padded {
  at::Tensor data;
};

// Sequences of different lengths, packed: at each step the first `batch_sizes[step]` of them go on.
struct Packed {
  at::Tensor data;
  std::vector<int64_t> batch_sizes;
};

Packed packed(const at::Tensor& data, const at::Tensor& batch_sizes);

struct LayerOptions {
  int64_t num_layers;
  double dropout;
  bool train;
  bool bidirectional;
};

// All layers, one after the other. `first` has a state for each layer and direction; so has what comes back.
std::pair<at::Tensor, std::vector<State>> run_layers(Cell cell, Padded sequence,
                                                     const std::vector<State>& first,
                                                     const std::vector<Weights>& weights,
                                                     const LayerOptions& options);
std::pair<at::Tensor, std::vector<State>> run_layers(Cell cell, Packed sequence,
                                                     const std::vector<State>& first,
                                                     const std::vector<Weights>& weights,
                                                     const LayerOptions& options);

std::vector<State> states_of(at::TensorList hidden);
at::Tensor stacked(const std::vector<State>& states, size_t part);

}  // namespace torch_remote::client::kernels
