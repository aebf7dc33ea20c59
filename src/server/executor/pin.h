#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include "server/executor/entry.h"

namespace torch_remote::server {

// Note [Pinned storages]
//
// What has been captured, such as a CUDA graph, has addresses in it. So the memory of a storage
// that it uses stays where it is while something holds a Pin of the storage. What else gives a
// storage other memory then works in the memory that it has:
//
//   an upload of the whole storage   is copied into it
//   RESIZE, and a kernel's resize    up to the size that the memory has; beyond it they are refused
//   a write while a reply is sent    the reply has been sent from a copy: make it with for_reply()
//
// Freeing the name frees the memory, pinned or not: a captured thing that may run afterwards holds
// the storage itself, and counts it.
class Pin {
 public:
  explicit Pin(const c10::Storage& storage);
  ~Pin();
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

  uint64_t capacity() const { return capacity_; }

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  const WeakStorage storage_;
  const uint64_t capacity_;
  const bool was_resizable_;
};

// The storage's memory stays where it is as long as somebody has the result. Call after
// StorageTable::prepare(entry, true) and resolve(): it has memory then, which nobody is sent from.
std::shared_ptr<const Pin> pin(Entry& entry);

// What a reply is sent from: the view, or a copy of it if the storage is pinned.
at::Tensor for_reply(const Entry& entry, at::Tensor view);

}  // namespace torch_remote::server
