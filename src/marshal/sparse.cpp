#include "marshal/sparse.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorOptions.h>

#include "base/error.h"

namespace torch_remote::marshal {
namespace {

at::SparseTensorImpl& coo_impl(const at::Tensor& sparse) {
  return static_cast<at::SparseTensorImpl&>(*sparse.unsafeGetTensorImpl());
}

at::SparseCsrTensorImpl& compressed_impl(const at::Tensor& sparse) {
  return static_cast<at::SparseCsrTensorImpl&>(*sparse.unsafeGetTensorImpl());
}

// The same memory under metadata of its own, as PyTorch does for the parts of a sparse tensor:
// a resize of a part must not change a tensor of the caller.
at::Tensor shallow_copy(const at::Tensor& part) {
  at::TensorImpl& impl = *part.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(), true));
}

at::Tensor empty_coo(c10::DispatchKeySet keys, const at::Tensor& values) {
  const c10::DeviceGuard guard(values.device());  // the constructor makes parts on this device
  return at::detail::make_tensor<at::SparseTensorImpl>(keys, values.dtype());
}

}  // namespace

std::optional<wire::Layout> to_wire(at::Layout layout) {
  switch (layout) {
    case at::kStrided:
      return wire::Layout::kStrided;
    case at::kSparse:
      return wire::Layout::kSparseCoo;
    case at::kSparseCsr:
      return wire::Layout::kSparseCsr;
    case at::kSparseCsc:
      return wire::Layout::kSparseCsc;
    case at::kSparseBsr:
      return wire::Layout::kSparseBsr;
    case at::kSparseBsc:
      return wire::Layout::kSparseBsc;
    default:
      return std::nullopt;
  }
}

at::Layout from_wire(wire::Layout layout) {
  switch (layout) {
    case wire::Layout::kStrided:
      return at::kStrided;
    case wire::Layout::kSparseCoo:
      return at::kSparse;
    case wire::Layout::kSparseCsr:
      return at::kSparseCsr;
    case wire::Layout::kSparseCsc:
      return at::kSparseCsc;
    case wire::Layout::kSparseBsr:
      return at::kSparseBsr;
    case wire::Layout::kSparseBsc:
      return at::kSparseBsc;
  }
  throw InternalError("a layout of unknown kind");
}

wire::SparseSpec sparse_spec_of(const at::Tensor& sparse) {
  wire::SparseSpec spec;
  const auto layout = to_wire(sparse.layout());
  TORCH_CHECK_NOT_IMPLEMENTED(layout, "tensors of layout ", sparse.layout(),
                              " are not supported on a remote device");
  spec.layout = *layout;
  spec.is_coalesced = sparse.is_sparse() && coo_impl(sparse).coalesced();
  spec.sizes = sparse.sizes().vec();
  return spec;
}

Parts parts_of(const at::Tensor& sparse) {
  if (sparse.is_sparse())
    return {coo_impl(sparse).indices(), coo_impl(sparse).values()};
  const at::SparseCsrTensorImpl& impl = compressed_impl(sparse);
  return {impl.compressed_indices(), impl.plain_indices(), impl.values()};
}

at::Tensor join_parts(const wire::SparseSpec& spec, c10::ArrayRef<at::Tensor> parts) {
  const at::Tensor& values = parts.back();
  const at::Layout layout = from_wire(spec.layout);
  const c10::DispatchKeySet keys(values.options().layout(layout).computeDispatchKey());
  const at::Tensor sparse = layout == at::kSparse
                                ? empty_coo(keys, values)
                                : at::detail::make_tensor<at::SparseCsrTensorImpl>(
                                      keys, values.device(), layout, values.dtype());
  replace_parts(sparse, spec, parts);
  return sparse;
}

void replace_parts(const at::Tensor& sparse, const wire::SparseSpec& spec,
                   c10::ArrayRef<at::Tensor> parts) {
  if (!sparse.is_sparse()) {
    compressed_impl(sparse).set_member_tensors(shallow_copy(parts[0]), shallow_copy(parts[1]),
                                               shallow_copy(parts[2]),
                                               c10::IntArrayRef(spec.sizes));
    return;
  }
  const at::Tensor& indices = parts[0];
  const auto dimensions = static_cast<int64_t>(spec.sizes.size());
  TORCH_CHECK(indices.dim() == 2 && indices.size(0) <= dimensions,
              "indices must have a row for each sparse dimension, but have the sizes ",
              indices.sizes());
  coo_impl(sparse).raw_resize_(indices.size(0), dimensions - indices.size(0), spec.sizes);
  coo_impl(sparse).set_indices_and_values_unsafe(shallow_copy(indices), shallow_copy(parts[1]));
  coo_impl(sparse).set_coalesced(spec.is_coalesced);
}

}  // namespace torch_remote::marshal
