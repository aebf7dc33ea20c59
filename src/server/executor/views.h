#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "marshal/recipe.h"
#include "server/executor/entry.h"

// Tensors over the memory of storages. StorageTable::resolve() checks what clients ask for.
namespace torch_remote::server {

// True if the view is the whole storage.
bool covers(const Entry& entry, const marshal::TensorRecipe& view, uint64_t offset);
// For a view that a kernel may have resized or set to another storage.
bool is_view_of(const Entry& entry, const at::Tensor& view, uint64_t offset);

at::Tensor make_view(const c10::Storage& storage, const marshal::TensorRecipe& view,
                     uint64_t offset);
// Whether make_view() would make this tensor of its storage. An undefined tensor is none.
bool is_made_as(const at::Tensor& tensor, const marshal::TensorRecipe& view, uint64_t offset);

// Bytes of a storage as a tensor, for copies.
at::Tensor bytes_of(const c10::Storage& storage, uint64_t offset, uint64_t length);

}  // namespace torch_remote::server
