#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

#include "client/session/requests.h"

namespace torch_remote::client {

// The bytes of a dense CPU tensor into a remote one of the same sizes and strides. Large ones are
// waited for, unless they are in pinned memory and `non_blocking`.
void upload(const at::Tensor& destination, const at::Tensor& source, bool non_blocking);

// Raises the failure of the call that was to make this tensor, if there is one: a part of a tensor
// that has not been made cannot be filled. May wait.
void check_exists(const at::Tensor& tensor);

// Bytes into a dense remote tensor, from byte `begin` of it on. Returns at once. The request ends
// when the server has received them; `owner` keeps them alive until then. Call check_exists() and
// Session::begin_call() before.
RequestPtr upload_part(const at::Tensor& destination, uint64_t begin,
                       std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

}  // namespace torch_remote::client
