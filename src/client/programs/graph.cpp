#include "client/programs/graph.h"

#include <utility>

namespace torch_remote::client {

void Graph::begin() {
  TORCH_CHECK(recorder_ == nullptr, "this graph is being captured");
  TORCH_CHECK(!is_captured_,
              "this graph has captured calls already; to capture others, make a new graph, or "
              "call reset() first");
  recorder_ = std::make_unique<Recorder>();
}

void Graph::end() {
  TORCH_CHECK(recorder_ != nullptr, "this graph is not being captured");
  const std::unique_ptr<Recorder> recorder = std::move(recorder_);
  if (std::optional<Recorded> recorded = recorder->finish())
    program_ = std::make_unique<Program>(*std::move(recorded), Program::Without::kCallByCall);
  is_captured_ = true;
}

void Graph::replay() {
  TORCH_CHECK(is_captured_, "Called Graph::replay without a preceding successful capture.");
  if (program_ == nullptr)
    return;
  program_->prepare_run();
  program_->run();
}

std::vector<std::string> Graph::describe_calls() const {
  return program_ == nullptr ? std::vector<std::string>() : program_->describe_calls();
}

void Graph::reset() {
  TORCH_CHECK(recorder_ == nullptr, "this graph is being captured");
  program_.reset();
  is_captured_ = false;
}

}  // namespace torch_remote::client
