#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Layout.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "wire/spec.h"

// Sparse tensors are sent as their parts, which are strided tensors: wire/spec.h.
namespace torch_remote::marshal {

// nullopt: a layout that cannot be sent (mkldnn, jagged).
std::optional<wire::Layout> to_wire(at::Layout layout);
at::Layout from_wire(wire::Layout layout);

// COO or compressed. Cheap.
inline bool is_sparse(const at::TensorImpl& tensor) {
  return tensor.is_sparse() || tensor.is_sparse_compressed();
}

wire::SparseSpec sparse_spec_of(const at::Tensor& sparse);

using Parts = c10::SmallVector<at::Tensor, 3>;

// Not copies: the tensors that the sparse tensor has.
Parts parts_of(const at::Tensor& sparse);

// Makes a sparse tensor of these parts, which it shares. Does not read indices: whoever cannot
// trust them checks them first. Raises if the sizes of the parts do not agree.
at::Tensor join_parts(const wire::SparseSpec& spec, c10::ArrayRef<at::Tensor> parts);

// The same for a tensor that exists and has the same layout.
void replace_parts(const at::Tensor& sparse, const wire::SparseSpec& spec,
                   c10::ArrayRef<at::Tensor> parts);

}  // namespace torch_remote::marshal
