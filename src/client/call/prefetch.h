#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "client/memory/downloads.h"
#include "client/process/records.h"
#include "wire/spec.h"

namespace torch_remote::client {

// Note [Downloads that go together]
//
// torch.save and Module.to("cpu") download one tensor after the other and wait for each. They tell
// this thread's plan beforehand which ones will come, which sends nothing. The first download of a
// planned tensor sends the READs of the others behind its own, as many as the window allows, and
// later downloads find their bytes here.
//
// A value is used only if its session has numbered no call, upload or resize since it was asked
// for. Otherwise the plan is given up and the tensor is read again. So a plan changes when bytes
// travel, and never which.
//
// If a call has failed, the first download raises and the others are not made. So the first
// download of a plan waits for the calls before it and gives the plan up if one has failed.

// The downloads that a thread is about to make. Confined to its thread.
class Prefetch {
 public:
  // The plan of this thread, or null.
  static Prefetch* active();
  // False: this thread already has one.
  static bool begin();
  static void end();

  void plan(const at::Tensor& tensor);
  void plan(const c10::Storage& storage);  // all its bytes

  // What download(tensor) returns, or raises; nothing if it is not planned or may have changed.
  std::optional<at::Tensor> take(const at::Tensor& tensor);

 private:
  struct Entry {
    at::Tensor tensor;  // an alias; undefined once its value was taken
    uint64_t offset;
    wire::TensorSpec spec;
    at::Tensor result;  // undefined before its READ is sent
    Download download;
  };

  Entry* find(const at::Tensor& tensor);
  bool start();  // false: a call has failed, and the thread was not told
  void send(Entry& entry);
  void fill_window();
  void give_up();

  std::vector<Entry> entries_;
  std::unordered_multimap<const StorageRecord*, size_t> by_record_;
  // At start(). READs are sent ahead only while these stay the last calls.
  std::unordered_map<Session*, uint64_t> last_calls_;
  size_t next_ = 0;      // all entries before it were sent, taken or are empty
  size_t waiting_ = 0;   // sent and not taken
  uint64_t window_ = 0;  // their bytes
  bool is_started_ = false;
  bool is_given_up_ = false;
};

}  // namespace torch_remote::client
