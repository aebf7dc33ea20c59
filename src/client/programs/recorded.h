#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include "client/capture/record.h"
#include "client/process/lines.h"
#include "client/session/signature_table.h"
#include "wire/messages.h"
#include "wire/program.h"

namespace torch_remote::client {

class Session;

// A call, or a change of settings.
struct ProgramStep {
  SignaturePtr signature;            // null: a change of settings
  std::vector<uint32_t> defaults{};  // where the server's operator is another: defaults_of()
  wire::Context settings{};
  size_t begin = 0;  // of its slots in Recorded::slots
  size_t outputs =
      0;  // there: of the numbers of its fresh outputs, which are the last of its slots
  size_t end = 0;
};

// A storage that has a name in a program.
struct NamedStorage {
  uint32_t number = 0;  // in the program
  StorageRecord* record = nullptr;
  bool is_made = false;    // a fresh output of a step
  int64_t shift = 0;       // in bytes: is added to the place where each view begins
  c10::Storage storage{};  // null: the caller of run() keeps it
};

// How much each run adds to a version counter of a tensor that its calls write.
struct NewVersions {
  c10::VariableVersion counter;
  uint32_t count = 0;
};

// What a recorder has recorded.
struct Recorded {
  Session* session = nullptr;
  uint8_t device = 0;  // of the first call
  std::vector<ProgramStep> steps;
  std::vector<CallSite> sites;  // of the steps
  wire::Writer slots;
  std::vector<size_t> mentions;  // where in `slots` a storage stands: wire::encode_storage_slot()
  std::vector<wire::ProgramStorage> storages;
  std::vector<NamedStorage> named;          // those with a name, which they keep so
  std::vector<at::Generator> generators{};  // that steps draw from, which keep theirs
};

}  // namespace torch_remote::client
