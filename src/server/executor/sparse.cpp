#include "server/executor/sparse.h"

#include <ATen/ops/_validate_sparse_compressed_tensor_args.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>

#include "marshal/sparse.h"

namespace torch_remote::server {

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset() && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_conj() == b.is_conj() &&
         a.is_neg() == b.is_neg();
}

at::Tensor make_sparse(const marshal::SparseRecipe& recipe, c10::ArrayRef<at::Tensor> tensors) {
  marshal::Parts parts;
  for (const uint32_t part : recipe.parts)
    parts.push_back(tensors[part]);
  const c10::IntArrayRef sizes(recipe.spec.sizes);
  if (recipe.spec.layout == wire::Layout::kSparseCoo)
    at::_validate_sparse_coo_tensor_args(parts[0], parts[1], sizes, recipe.spec.is_coalesced);
  else
    at::_validate_sparse_compressed_tensor_args(parts[0], parts[1], parts[2], sizes,
                                                marshal::from_wire(recipe.spec.layout));
  return marshal::join_parts(recipe.spec, parts);
}

bool is_unchanged(const at::Tensor& sparse, const marshal::SparseRecipe& recipe,
                  c10::ArrayRef<at::Tensor> tensors) {
  if (marshal::sparse_spec_of(sparse) != recipe.spec)
    return false;
  const marshal::Parts parts = marshal::parts_of(sparse);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!is_same_view(parts[i], tensors[recipe.parts[i]]))
      return false;
  }
  return true;
}

}  // namespace torch_remote::server
