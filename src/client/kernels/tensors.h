#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/SymIntArrayRef.h>

// Kernels that work on metadata (factories, views, resizes). They send nothing unless it says so.
namespace torch_remote::client::kernels {

// Whether new memory has to be filled, as on every device:
// torch.use_deterministic_algorithms(True).
bool fills_new_memory();

at::Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, std::optional<at::Device> device,
                               std::optional<bool> pin_memory,
                               std::optional<at::MemoryFormat> format);
at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory);
// Zeros without memory, by which forward-mode differentiation marks what is known to be zero. If an
// operator uses one, find_record_slowly() gives it memory filled with zeros.
at::Tensor efficient_zero_tensor(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                                 std::optional<bool> pin_memory);
at::Tensor tril_indices(int64_t row, int64_t column, int64_t offset,
                        std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                        std::optional<at::Device> device, std::optional<bool> pin_memory);
at::Tensor triu_indices(int64_t row, int64_t column, int64_t offset,
                        std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                        std::optional<at::Device> device, std::optional<bool> pin_memory);

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset);
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size);
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride);
at::Tensor unsafe_view(const at::Tensor& self, c10::SymIntArrayRef size);
at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step);
at::Tensor view_as_real(const at::Tensor& self);
at::Tensor view_as_complex(const at::Tensor& self);
std::vector<at::Tensor> unsafe_split(const at::Tensor& self, c10::SymInt split_size, int64_t dim);
std::vector<at::Tensor> unsafe_split_with_sizes(const at::Tensor& self, c10::SymIntArrayRef sizes,
                                                int64_t dim);

std::vector<at::Tensor> foreach_addcdiv(at::TensorList self, at::TensorList tensor1,
                                        at::TensorList tensor2, const at::Tensor& scalars);
void foreach_addcdiv_(at::TensorList self, at::TensorList tensor1, at::TensorList tensor2,
                      const at::Tensor& scalars);
std::vector<at::Tensor> foreach_addcmul(at::TensorList self, at::TensorList tensor1,
                                        at::TensorList tensor2, const at::Tensor& scalars);
void foreach_addcmul_(at::TensorList self, at::TensorList tensor1, at::TensorList tensor2,
                      const at::Tensor& scalars);

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size,
                          std::optional<at::MemoryFormat> format);
at::Tensor& set_source_storage(at::Tensor& self, at::Storage source);
at::Tensor& set_source_storage_offset(at::Tensor& self, at::Storage source, c10::SymInt offset,
                                      c10::SymIntArrayRef size, c10::SymIntArrayRef stride);
at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source);
at::Tensor& set_empty(at::Tensor& self);

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination);
at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> format);
at::Tensor lazy_clone(const at::Tensor& self);
at::Scalar local_scalar_dense(const at::Tensor& self);
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from);
bool is_set_to(const at::Tensor& self, const at::Tensor& other);
void record_stream(at::Tensor& self, at::Stream stream);

}  // namespace torch_remote::client::kernels
