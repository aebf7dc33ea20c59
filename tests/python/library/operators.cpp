// A small library of operators, as users write them: kernels for the CPU, none for a private
// backend. test_custom_operators.py compiles it and loads it into client and server.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "attacks.h"

namespace {

using at::Tensor;

// Has a Meta kernel, so that the client can predict the result.
Tensor scaled(const Tensor& self, double factor) {
  Tensor result = at::empty_like(self, at::MemoryFormat::Contiguous);
  const Tensor source = self.contiguous();
  const float* from = source.const_data_ptr<float>();
  float* to = result.mutable_data_ptr<float>();
  for (int64_t i = 0; i < source.numel(); ++i)
    to[i] = from[i] * static_cast<float>(factor);
  return result;
}

Tensor scaled_meta(const Tensor& self, double /*factor*/) {
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

// Has no Meta kernel.
Tensor outer_sum(const Tensor& a, const Tensor& b) {
  return a.unsqueeze(1) + b.unsqueeze(0);
}

std::tuple<Tensor, Tensor> split_sign(const Tensor& self) {
  return {self.clamp_min(0), self.clamp_max(0)};
}

Tensor& add_index_(Tensor& self, int64_t start) {
  float* at = self.mutable_data_ptr<float>();
  for (int64_t i = 0; i < self.numel(); ++i)
    at[i] += static_cast<float>(start + i);
  return self;
}

void fill_all(at::TensorList tensors, double value) {
  for (const Tensor& tensor : tensors)
    tensor.fill_(value);
}

// The size of the result depends on data, and no tag says so.
Tensor positive(const Tensor& self) {
  return self.masked_select(self > 0);
}

int64_t count_positive(const Tensor& self) {
  return (self > 0).sum().item<int64_t>();
}

Tensor first_row(const Tensor& self) {
  return self.select(0, 0);
}

Tensor refuse(const Tensor& self) {
  TORCH_CHECK_VALUE(false, "refuse never works, and this tensor has ", self.numel(), " elements");
}

// As a CUDA kernel would: an assert fails (710), or a launch is refused (9) and the device lives.
Tensor fault(const Tensor& self, int64_t code) {
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                              static_cast<int32_t>(code), "CUDA error: this is a test");
}

Tensor exhaust(const Tensor& self) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. This is a test");
}

Tensor fault_meta(const Tensor& self, int64_t /*code*/) {
  return at::empty_like(self);
}

Tensor exhaust_meta(const Tensor& self) {
  return at::empty_like(self);
}

// Composed of PyTorch's own operators.
Tensor twice_plus_one(const Tensor& self) {
  return self * 2 + 1;
}

struct Cube : torch::autograd::Function<Cube> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& self) {
    at::AutoDispatchBelowAutograd below;
    context->save_for_backward({self});
    static auto cube = c10::Dispatcher::singleton()
                           .findSchemaOrThrow("tests::cube", "")
                           .typed<Tensor(const Tensor&)>();
    return cube.call(self);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Tensor self = context->get_saved_variables()[0];
    return {gradients[0] * 3 * self * self};
  }
};

Tensor cube(const Tensor& self) {
  return self * self * self;
}

Tensor cube_autograd(const Tensor& self) {
  return Cube::apply(self);
}

}  // namespace

TORCH_LIBRARY(tests, m) {
  m.def("scaled(Tensor self, float factor) -> Tensor");
  m.def("outer_sum(Tensor a, Tensor b) -> Tensor");
  m.def("split_sign(Tensor self) -> (Tensor, Tensor)");
  m.def("add_index_(Tensor(a!) self, int start) -> Tensor(a!)");
  m.def("fill_all(Tensor(a!)[] tensors, float value) -> ()");
  m.def("positive(Tensor self) -> Tensor");
  m.def("count_positive(Tensor self) -> int");
  m.def("first_row(Tensor(a) self) -> Tensor(a)");
  m.def("refuse(Tensor self) -> Tensor");
  m.def("cube(Tensor self) -> Tensor");
  m.def("fault(Tensor self, int code) -> Tensor");
  m.def("exhaust(Tensor self) -> Tensor");
  m.def("twice_plus_one(Tensor self) -> Tensor", twice_plus_one);
}

TORCH_LIBRARY_IMPL(tests, CPU, m) {
  m.impl("scaled", scaled);
  m.impl("outer_sum", outer_sum);
  m.impl("split_sign", split_sign);
  m.impl("add_index_", add_index_);
  m.impl("fill_all", fill_all);
  m.impl("positive", positive);
  m.impl("count_positive", count_positive);
  m.impl("first_row", first_row);
  m.impl("refuse", refuse);
  m.impl("fault", fault);
  m.impl("exhaust", exhaust);
  m.impl("cube", cube);
}

TORCH_LIBRARY_IMPL(tests, Meta, m) {
  m.impl("scaled", scaled_meta);
  m.impl("fault", fault_meta);
  m.impl("exhaust", exhaust_meta);
}

TORCH_LIBRARY_IMPL(tests, Autograd, m) {
  m.impl("cube", cube_autograd);
}
