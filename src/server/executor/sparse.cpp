#include "server/executor/sparse.h"

#include <optional>

#include <ATen/ops/_validate_sparse_compressed_tensor_args.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>

#include "marshal/sparse.h"
#include "server/executor/storage_table.h"

namespace torch_remote::server {

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset() && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_conj() == b.is_conj() &&
         a.is_neg() == b.is_neg();
}

namespace {

// Whether the tensor is as coalesced as it is said to be. Throws for what is wrong otherwise.
bool check_coo(const wire::SparseSpec& spec, const marshal::Parts& parts) {
  const c10::IntArrayRef sizes(spec.sizes);
  if (spec.is_coalesced) {
    try {
      at::_validate_sparse_coo_tensor_args(parts[0], parts[1], sizes, true);
      return true;
    } catch (const c10::Error&) {  // the other check says whether this is all
    }
  }
  at::_validate_sparse_coo_tensor_args(parts[0], parts[1], sizes, false);
  return false;
}

// What a compressed tensor consists of: wire/spec.h.
struct Compressed {
  const at::Tensor& compressed;
  const at::Tensor& plain;
  const at::Tensor& values;
};

bool has_rows_in_memory(const at::Tensor& indices) {
  return indices.size(-1) < 2 || indices.stride(-1) == 1;
}

// The sizes as PyTorch's documents give them: batches, two sparse dimensions, dense ones. Returns
// how many plain indices there may be in each compressed row, or nothing where the sizes disagree.
std::optional<int64_t> plain_extent(const wire::SparseSpec& spec, const Compressed& parts) {
  const auto& [compressed, plain, values] = parts;
  const bool has_blocks =
      spec.layout == wire::Layout::kSparseBsr || spec.layout == wire::Layout::kSparseBsc;
  const bool has_rows =
      spec.layout == wire::Layout::kSparseCsr || spec.layout == wire::Layout::kSparseBsr;
  const int64_t batches = compressed.dim() - 1;
  const int64_t before = batches + 1 + (has_blocks ? 2 : 0);  // dimensions of values before dense
  const c10::IntArrayRef sizes(spec.sizes);
  if (batches < 0 || plain.dim() != batches + 1 || values.dim() < before ||
      static_cast<int64_t>(sizes.size()) != batches + 2 + values.dim() - before)
    return std::nullopt;
  const bool are_indices = compressed.scalar_type() == plain.scalar_type() &&
                           (plain.scalar_type() == at::kInt || plain.scalar_type() == at::kLong);
  const bool agree = compressed.sizes().slice(0, batches) == sizes.slice(0, batches) &&
                     plain.sizes().slice(0, batches) == sizes.slice(0, batches) &&
                     values.sizes().slice(0, batches) == sizes.slice(0, batches) &&
                     values.size(batches) == plain.size(-1) &&
                     values.sizes().slice(before) == sizes.slice(batches + 2);
  if (!are_indices || !agree || !has_rows_in_memory(compressed) || !has_rows_in_memory(plain))
    return std::nullopt;
  int64_t extents[2];
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t block = has_blocks ? values.size(batches + 1 + i) : 1;
    if (block == 0 || sizes[batches + i] % block != 0)
      return std::nullopt;
    extents[i] = sizes[batches + i] / block;
  }
  if (compressed.size(-1) != extents[has_rows ? 0 : 1] + 1)
    return std::nullopt;
  return extents[has_rows ? 1 : 0];
}

// Not whether the plain indices of a row are in order: those of a product of MKL are not.
bool are_inside(const Compressed& parts, int64_t extent) {
  const int64_t count = parts.plain.size(-1);
  // As int64, because the extent may be no int32.
  const at::Tensor rows = parts.compressed.to(at::kLong);
  const at::Tensor plain = parts.plain.to(at::kLong);
  const at::Tensor wrong = rows.lt(0)
                               .logical_or(rows.gt(count))
                               .any()
                               .logical_or(rows.select(-1, 0).ne(0).any())
                               .logical_or(rows.select(-1, -1).ne(count).any())
                               .logical_or(plain.lt(0).logical_or(plain.ge(extent)).any());
  if (wrong.item<bool>())
    return false;
  const at::Tensor steps = rows.diff();
  return !steps.lt(0).logical_or(steps.gt(extent)).any().item<bool>();
}

// PyTorch's own check also wants order, and on a CUDA device what is wrong ends the process.
void check_compressed(const wire::SparseSpec& spec, const Compressed& parts) {
  const std::optional<int64_t> extent = plain_extent(spec, parts);
  if (extent.has_value() && are_inside(parts, *extent))
    return;
  if (parts.values.is_cpu())  // raises with PyTorch's text
    at::_validate_sparse_compressed_tensor_args(parts.compressed, parts.plain, parts.values,
                                                spec.sizes, marshal::from_wire(spec.layout));
  throw Refused("has a sparse argument whose parts do not agree, or whose indices are outside it");
}

}  // namespace

at::Tensor make_sparse(const marshal::SparseRecipe& recipe, c10::ArrayRef<at::Tensor> tensors) {
  marshal::Parts parts;
  for (const uint32_t part : recipe.parts)
    parts.push_back(tensors[part]);
  wire::SparseSpec spec = recipe.spec;
  if (spec.layout == wire::Layout::kSparseCoo)
    spec.is_coalesced = check_coo(spec, parts);
  else
    check_compressed(spec, {parts[0], parts[1], parts[2]});
  return marshal::join_parts(spec, parts);
}

bool is_unchanged(const at::Tensor& sparse, const marshal::SparseRecipe& recipe,
                  c10::ArrayRef<at::Tensor> tensors) {
  if (marshal::sparse_spec_of(sparse) != recipe.spec)
    return false;
  const marshal::Parts parts = marshal::parts_of(sparse);
  for (size_t i = 0; i < parts.size(); ++i)
    if (!is_same_view(parts[i], tensors[recipe.parts[i]]))
      return false;
  return true;
}

}  // namespace torch_remote::server
