#pragma once

namespace torch_remote::client {

// While one lives, waits of this thread keep the GIL. For methods that PyTorch calls with a lock held which it
// takes with the GIL (at::Generator's): a thread that waits without the GIL and keeps such a lock can never get the
// GIL back from a thread that has it and wants the lock. Nothing that we wait for needs the GIL.
class KeepGil {
 public:
  KeepGil() { ++depth_; }

  ~KeepGil() { --depth_; }

  KeepGil(const KeepGil&) = delete;
  KeepGil& operator=(const KeepGil&) = delete;

  static bool is_kept() { return depth_ > 0; }

 private:
  static thread_local int depth_;
};

}  // namespace torch_remote::client
