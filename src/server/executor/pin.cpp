#include "server/executor/pin.h"

#include <utility>

#include <ATen/ops/clone.h>

#include "base/error.h"

namespace torch_remote::server {

Pin::Pin(const c10::Storage& storage)
    : storage_(storage.getWeakStorageImpl()),
      capacity_(storage.nbytes()),
      was_resizable_(storage.unsafeGetStorageImpl()->resizable()) {
  storage.unsafeGetStorageImpl()->set_resizable(false);
}

Pin::~Pin() {
  const c10::intrusive_ptr<c10::StorageImpl> storage = storage_.lock();
  if (!storage)
    return;
  storage->set_nbytes(capacity_);  // RESIZE may have made it smaller
  storage->set_resizable(was_resizable_);
}

std::shared_ptr<const Pin> pin(Entry& entry) {
  check_internal(entry.storage && entry.upload == nullptr && !entry.is_being_sent(),
                 "a storage is pinned when it is ready to be written");
  if (std::shared_ptr<const Pin> present = entry.pin.lock())
    return present;
  auto made = std::make_shared<const Pin>(entry.storage);
  entry.pin = made;
  return made;
}

at::Tensor for_reply(const Entry& entry, at::Tensor view) {
  return entry.is_pinned() ? view.clone() : std::move(view);
}

}  // namespace torch_remote::server
