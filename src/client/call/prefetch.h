#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "client/memory/downloads.h"
#include "client/session/records.h"
#include "wire/view.h"

namespace torch_remote::client {

// Note [Downloads that go together]
//
// torch.save and Module.to("cpu") download one tensor after the other and wait for each. They tell
// this thread's plan beforehand which ones will come. Nothing is sent for that. The first download of
// a planned tensor sends the READs of the others behind its own, as many as the window allows, and
// later downloads find their bytes here.
//
// A value is used only if its session has numbered no call, upload or resize since it was asked for.
// Otherwise the plan is given up, and the tensor is read anew. So a plan changes when bytes travel,
// and never which.
//
// The server can undo what came after a failure until a value of that time has been read
// (docs/errors.md). One by one, the first download would raise and the others would not be made. So
// the plan asks first whether something has failed that the user does not know of. If so, it is given
// up.

// The downloads that a thread is about to make. Confined to its thread.
class Prefetch {
 public:
  // The plan of this thread, or null.
  static Prefetch* active();
  // False: there is one already.
  static bool begin();
  static void end();

  void plan(const at::Tensor& tensor);
  void plan(const c10::Storage& storage);  // all its bytes

  // What download(tensor) is to return; nothing if the tensor is not planned or may have changed.
  // Raises as download() does.
  std::optional<at::Tensor> take(const at::Tensor& tensor);

 private:
  struct Entry {
    at::Tensor tensor;  // another one of the same storage; undefined when it has been taken
    uint64_t offset;
    wire::TensorSpec spec;
    at::Tensor result;  // undefined: not asked for yet
    Download download;
  };

  Entry* find(const at::Tensor& tensor);
  bool start();  // false: a call has failed and the user was not told yet
  void send(Entry& entry);
  void fill_window();
  void give_up();

  std::vector<Entry> entries_;
  std::unordered_multimap<const StorageRecord*, size_t> by_record_;
  std::unordered_map<Session*, uint64_t> last_calls_;  // at start(); the window is for no later one
  size_t next_ = 0;      // those before it were sent, taken or are empty
  size_t waiting_ = 0;   // sent and not taken
  uint64_t window_ = 0;  // bytes of those
  bool is_started_ = false;
  bool is_given_up_ = false;
};

}  // namespace torch_remote::client
