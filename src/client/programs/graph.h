#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/programs/program.h"
#include "client/programs/recorder.h"

namespace torch_remote::client {

// What torch.cuda.CUDAGraph is on CUDA: records the calls of a thread, and replays them as one
// message. Not thread-safe, but for replay().
class Graph {
 public:
  // From here to end() the calls of this thread are recorded, and do not run.
  void begin();
  // Raises if something was done meanwhile that cannot be recorded; then nothing is captured.
  void end();

  // Gives up what is being recorded, if anything is.
  void abandon() { recorder_.reset(); }

  void replay();
  // Forgets what was captured.
  void reset();

  bool is_recording() const { return recorder_ != nullptr; }

  bool is_captured() const { return is_captured_; }

  // How many calls a replay makes.
  uint64_t calls() const { return program_ == nullptr ? 0 : program_->calls(); }

  // Program::describe_calls(); empty if nothing is captured.
  std::vector<std::string> describe_calls() const;

 private:
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Program> program_;  // null: nothing captured, or no call
  bool is_captured_ = false;
};

}  // namespace torch_remote::client
