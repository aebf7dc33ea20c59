#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

// Note [Recurrent layers on a CPU server]
//
// PyTorch composes recurrent layers from other operators, differently on a CPU: one product of
// input and weights for all steps, separate operators for the gates, and one oneDNN call for a
// whole LSTM layer where possible. The client does the same, so that results are equal bit by bit.
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

// A hidden state: one tensor, or two for LSTM. A cell gets the product of input and weights.
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

// Packed sequences of different lengths: `batch_sizes[step]` of them have an element at a step.
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

// Runs the layers in turn. `first` and the result have one state per layer and direction.
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
