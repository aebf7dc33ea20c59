#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "marshal/recipe.h"

namespace torch_remote::server {

// Note [Sparse arguments are checked]
//
// PyTorch's kernels read and write memory at the indices of a sparse tensor without a check. So
// each sparse tensor of a call is made here, after the checks of PyTorch's `check_invariants` that
// memory depends on: the sizes of the parts agree, and every index is inside the tensor. Throws
// PyTorch's error where it has one, else Refused. On a CUDA device this waits for the device.
//
// Kernels rely on the order of the indices of a COO tensor that is coalesced. One that is said to
// be, and is not, is made without that flag: PyTorch's own permute() sets it wrongly.
//
// A call that writes the memory of indices, as `out=` or as values, is refused: they would change
// after the check.
at::Tensor make_sparse(const marshal::SparseRecipe& recipe, c10::ArrayRef<at::Tensor> tensors);

// Whether two tensors are the same elements of the same memory.
bool is_same_view(const at::Tensor& a, const at::Tensor& b);

// Whether a call has left a sparse argument as the recipe made it, apart from elements.
bool is_unchanged(const at::Tensor& sparse, const marshal::SparseRecipe& recipe,
                  c10::ArrayRef<at::Tensor> tensors);

}  // namespace torch_remote::server
