#pragma once

namespace torch_remote::client {

// During its lifetime, waits of this thread keep the GIL. PyTorch calls some methods (of
// at::Generator) with a lock held that it takes under the GIL: a wait without the GIL could
// deadlock with a thread that has the GIL and wants the lock. None of our waits needs the GIL.
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
