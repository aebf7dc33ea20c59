#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include "client/process/context.h"
#include "client/programs/program.h"
#include "client/programs/recorder.h"
#include "wire/spec.h"

namespace torch_remote::client {

// Calls that were recorded on some tensors and run on others that look the same: a graph of
// torch.compile. Each run makes new outputs. Thread-safe.
class Function {
 public:
  struct Inputs {
    std::vector<at::Tensor> tensors;
    std::vector<uint32_t> versions;  // by how many the recording has changed the version of each
    // Inputs of a run may begin elsewhere in their storages than those of the recording did: no
    // call counts an offset from the beginning of a storage.
    bool may_move = false;
    uint64_t first_new = 0;  // storages with this name, or a later one, are made by the recording
    std::vector<NewVersions> others{};  // of tensors that are no inputs
  };

  // Undefined outputs stay undefined. Raises if an output is no strided tensor of the same server.
  Function(Recorded recorded, const Inputs& inputs, at::TensorList outputs);

  // The outputs. Nothing if the inputs do not look like those of the recording, or share storages
  // in another way, or settings have changed: then nothing runs.
  std::optional<std::vector<at::Tensor>> run(at::TensorList inputs);

  // How many calls a run makes.
  uint64_t calls() const { return program_.calls(); }

 private:
  // A tensor on one of the storages.
  struct View {
    wire::TensorSpec spec;
    int64_t offset = 0;  // in elements
    size_t storage = 0;
  };

  enum class Source : uint8_t { kInput, kMade, kKept };

  // A storage of an input or output.
  struct Place {
    Source source = Source::kInput;
    std::optional<uint32_t> number{};  // in the program, if a call mentions it
    bool is_fresh = false;             // a call makes it
    uint8_t server_device = 0;
    c10::Device device = at::kMeta;
    uint64_t nbytes = 0;
    bool is_returned = false;  // an output is on it
    c10::Storage kept{};       // of kKept
  };

  struct Input {
    View view;
    uint32_t versions = 0;
  };

  struct Output {
    enum class Kind : uint8_t { kUndefined, kInput, kEarlier, kNew };

    Kind kind = Kind::kUndefined;
    size_t index = 0;  // of an input, or of an earlier output
    View view{};       // kNew
  };

  // The storage that a place has in one run.
  struct Bound {
    StorageRecord* record = nullptr;
    int64_t shift = 0;  // in bytes: its tensors are so far behind where those of the recording were
  };

  using AllBound = c10::SmallVector<Bound, 64>;

  size_t place_of(const at::Tensor& tensor, Source source);
  View view_of(const at::Tensor& tensor, Source source);
  Output describe(const at::Tensor& output, at::TensorList inputs, at::TensorList earlier);
  // Takes what the program has of the inputs and outputs: the caller of run() keeps it.
  Recorded take_named(Recorded recorded);

  static int64_t shift_of(const at::Tensor& tensor, const StorageRecord& record, const View& view);
  // The storages of the inputs; nothing if these are not like those of the recording.
  std::optional<AllBound> match(at::TensorList inputs) const;
  std::vector<at::Tensor> make_outputs(at::TensorList inputs, AllBound& bound) const;

  Session* session_;  // while this is made
  uint64_t first_new_;
  bool may_move_;
  ContextValues settings_ = current_context();
  uint8_t environment_ = read_environment();
  std::vector<Place> places_;          // those of inputs first
  std::vector<StorageRecord*> known_;  // of places_, while this is made
  size_t input_places_ = 0;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<NewVersions> others_;  // of written tensors that are no inputs
  // That the program names itself and whose value each run makes anew; none may be an input.
  std::vector<StorageRecord*> remade_;
  Program program_;
};

// Records calls while it lives. Confined to a thread.
class FunctionRecording {
 public:
  // The calls use these strided remote tensors.
  FunctionRecording(std::vector<at::Tensor> inputs, bool may_move, RecordedCalls calls);

  // Null: there was no call. Raises if something was done that cannot be recorded.
  std::unique_ptr<Function> finish(at::TensorList outputs);

 private:
  Function::Inputs inputs_;
  Recorder recorder_;
};

}  // namespace torch_remote::client
