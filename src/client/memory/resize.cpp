#include "client/memory/resize.h"

#include "client/machines/machines.h"
#include "client/memory/memory_figures.h"
#include "client/memory/memory_notes.h"
#include "client/memory/storage.h"
#include "client/process/memory_history.h"
#include "client/process/recording.h"
#include "client/session/submission.h"

namespace torch_remote::client {
namespace {

void move_storage(c10::StorageImpl& storage, uint64_t nbytes, uint64_t address) {
  auto* record = static_cast<StorageRecord*>(storage.data_ptr().get_context());
  const uint64_t before = record->address.exchange(address, std::memory_order_relaxed);
  if (MemoryHistory::is_needed()) [[unlikely]] {
    note_freed(*record, before, storage.nbytes());
    note_made(*record);
  }
  c10::DataPtr old = storage.set_data_ptr(
      c10::DataPtr(reinterpret_cast<void*>(address), record, &delete_record, storage.device()));
  old.release_context();
  storage.set_nbytes(nbytes);
}

void set_bytes(StorageRecord& record, uint64_t nbytes) {
  const uint64_t before = record.nbytes.exchange(nbytes, std::memory_order_relaxed);
  session_of(record)
      ->order()
      .memory(record.server_device)
      .add(static_cast<int64_t>(nbytes) - static_cast<int64_t>(before));
}

// Raises if the server had no memory for it. Then it still has `before` bytes.
void check_resize(Session& session, StorageRecord& record, uint64_t call, uint64_t before) {
  session.query(wire::QueryKind::kBarrier, "resize");
  if (!session.faults().site_of(call).has_value())
    return;
  set_bytes(record, before);
  session.raise_own_failure();
}

// The same for a storage that the server has not known.
void reserve_resized(StorageRecord& record, uint64_t before) {
  Session& session = *session_of(record);
  try {
    reserve(record);
  } catch (...) {
    if (!session.link().is_lost()) {
      Submission at(session, IfLost::kWrite);
      at.number_message({0, record.server_device, kResizeSite});
      encode(at.writer(), wire::Resize{record.name, record.server_device, before});
    }
    set_bytes(record, before);
    throw;
  }
}

}  // namespace

bool owns_record(const c10::StorageImpl& storage) {
  return storage.data_ptr().get_deleter() == &delete_record;
}

// The name stays, so that all views of the storage see the new size; the address changes.
void resize_storage(c10::StorageImpl& storage, uint64_t nbytes) {
  auto* record = static_cast<StorageRecord*>(storage.data_ptr().get_context());
  if (!owns_record(storage)) {
    TORCH_CHECK(storage.nbytes() == 0, "a storage that wraps another's address cannot be resized");
    storage.set_data_ptr_noswap(allocate_remote(nbytes, storage.device().index()));
    storage.set_nbytes(nbytes);
    return;
  }
  if (record->announced.load(std::memory_order_relaxed))
    check_not_recording("resizing a tensor from outside of the graph");
  // Before the message: it raises if no server could hold that much.
  const uint64_t address = RecordPool::instance().new_address(nbytes);
  Session& session = *session_of(*record);
  const CallSite site{current_line(), record->server_device, kResizeSite};
  const uint64_t before = record->nbytes.load(std::memory_order_relaxed);
  uint64_t call = 0;
  if (nbytes > before)
    check_memory_limit(session, record->server_device, nbytes - before, /*is_counted=*/false);
  {
    Submission at(session);
    set_bytes(*record, nbytes);
    // Else the first mention of the storage sends its size.
    if (record->announced.load(std::memory_order_relaxed)) {
      call = at.number_message(site).call;
      encode(at.writer(), wire::Resize{record->name, record->server_device, nbytes});
    }
  }
  if (call != 0 && nbytes > before && may_not_fit(session, record->server_device))
    check_resize(session, *record, call, before);
  if (call == 0 && nbytes > before && must_reserve(session, record->server_device, nbytes))
    reserve_resized(*record, before);
  move_storage(storage, nbytes, address);
}

void take_size(c10::StorageImpl& storage, uint64_t nbytes) {
  auto* record = static_cast<StorageRecord*>(storage.data_ptr().get_context());
  set_bytes(*record, nbytes);
  move_storage(storage, nbytes, RecordPool::instance().new_address(nbytes));
}

}  // namespace torch_remote::client
