#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>

#include "base/mutex.h"
#include "client/capture/capture.h"
#include "client/process/context.h"
#include "client/process/recording.h"
#include "client/programs/recorded.h"

namespace torch_remote::client {

// Collects the calls of a thread, and of autograd's workers that work for it, while it lives. A
// storage that the server knows already, or that is alive at the end, has its name in the program;
// any other is a temporary. Thread-safe.
class Recorder : public Recording {
 public:
  // From now on the thread's calls come here.
  explicit Recorder(RecordedCalls calls = RecordedCalls::kOfUsersThread) {
    begin_recording(*this, calls);
  }

  ~Recorder() override { end_recording(*this); }

  struct Call {
    Session& session;
    SignaturePtr signature;  // of a key without fresh storages: Capture::begin()
    const Capture& capture;
    c10::ArrayRef<c10::IValue> arguments;
    c10::ArrayRef<c10::IValue> results;
    CallSite site;
  };

  void add(const Call& call);

  // What was recorded; nothing if no call was. Raises if the recording is spoiled.
  std::optional<Recorded> finish();

  // Gives tensors that were there before the recording, and that its calls write, the versions that
  // they had then: nothing has run. What their versions were changed by, for each run to repeat.
  std::vector<NewVersions> take_versions();

 private:
  // A tensor that a call writes, before the first such call.
  struct Written {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // so that no other gets its address
    c10::VariableVersion counter;
    uint32_t version = 0;
  };

  // A storage that was mentioned.
  struct Mentioned {
    StorageRecord* record = nullptr;
    uint8_t device = 0;
    uint64_t nbytes = 0;  // the most that it had
    bool is_made = false;
    c10::Storage held{};  // if the server knows it
    // The storage of the last tensor on it.
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> seen{};
  };

  // The number of the storage that the tensor is on.
  uint32_t number_of(const c10::TensorImpl& tensor, StorageRecord& record) REQUIRES(mutex_);
  void add_step(const Call& call) REQUIRES(mutex_);
  void add_settings(CallSite site) REQUIRES(mutex_);
  void add_fresh(const wire::Output& output, const c10::IValue& result) REQUIRES(mutex_);
  void keep_generators(c10::ArrayRef<c10::IValue> arguments) REQUIRES(mutex_);
  void note_written(const Call& call) REQUIRES(mutex_);
  void note_written(const at::Tensor& tensor) REQUIRES(mutex_);
  void check_size() REQUIRES(mutex_);

  Mutex mutex_;
  Recorded recorded_ GUARDED_BY(mutex_);
  wire::NameState numbers_ GUARDED_BY(mutex_);
  ContextMirror settings_ GUARDED_BY(mutex_);
  std::vector<Mentioned> storages_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, uint32_t> numbers_of_names_ GUARDED_BY(mutex_);
  std::vector<Written> written_ GUARDED_BY(mutex_);
  std::unordered_set<const c10::TensorImpl*> known_written_ GUARDED_BY(mutex_);
};

}  // namespace torch_remote::client
