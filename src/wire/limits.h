#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

// Every number from the network is checked against one of these before it sizes anything.
// docs/protocol.md gives the reason for each and its test.
namespace torch_remote::wire {

// Throws ProtocolError: "<what>: <value> is over the limit of <limit>".
[[noreturn]] inline void refuse_over_limit(std::string_view what, uint64_t value, uint64_t limit) {
  throw ProtocolError(std::string(what) + ": " + std::to_string(value) + " is over the limit of " +
                      std::to_string(limit));
}

inline void check_limit(std::string_view what, uint64_t value, uint64_t limit) {
  if (value > limit) [[unlikely]]
    refuse_over_limit(what, value, limit);
}

constexpr uint64_t kMaxHandshakeBytes = 4096;  // before authentication, in all
constexpr uint64_t kMaxSignatures = 65536;     // per session, on both ends
constexpr uint64_t kMaxOperators = 8192;       // operators that a session can introduce
constexpr uint64_t kMaxArguments = 256;        // arguments or results of one operator
constexpr uint64_t kMaxListLength = 1 << 20;   // elements of one list argument
constexpr uint64_t kMaxResults = 1 << 19;      // of one call, with those in lists
constexpr uint64_t kMaxTensors = 1 << 20;      // tensors mentioned by one call
constexpr uint64_t kMaxNumbers = 1 << 20;      // numbers in the lists of one call
constexpr uint64_t kMaxDimensions = 128;  // PyTorch's kernels take 64, its tensors may have more
constexpr uint64_t kMaxSignatureBytes = 8 << 20;  // one signature
constexpr uint64_t kMaxText = 1 << 16;            // one string argument or name
constexpr uint64_t kMaxInlineBytes = 64 << 10;  // bytes of an upload or reply sent inside a message
constexpr uint64_t kMaxReplyBytes = 4 << 20;    // body of one REPLY
constexpr uint64_t kMaxFrees = 1 << 22;         // names in one FREE
constexpr uint64_t kMaxStorageBytes = 1ULL << 48;  // one storage
constexpr uint64_t kMaxStorages = 1 << 24;         // live storages of a session
constexpr uint64_t kMaxDevices = 16;               // devices of one server
constexpr uint64_t kMaxStreams = 64;               // of one device, beside the default one
constexpr uint64_t kMaxEvents = 1 << 16;           // events of a session
constexpr uint64_t kMaxMemoryStats = 256;          // figures in one answer
constexpr uint64_t kMaxGpuProcesses = 1 << 12;     // in one answer
constexpr uint64_t kMaxProfiledCalls = 1 << 17;    // whose times a server keeps for a client
constexpr uint64_t kMaxProfiledBatch = 1 << 16;    // of them in one answer
constexpr uint64_t kMaxCachedUploads = 1 << 13;    // in one answer
constexpr uint64_t kMinCachedUpload = 1 << 20;     // bytes; a cache keeps no shorter upload

constexpr uint64_t kMaxFileName = 1 << 10;     // bytes; of a file, and of a tensor in one
constexpr uint64_t kMaxListedFiles = 1 << 16;  // in the folders of serve --files
constexpr uint64_t kMaxOpenFiles = 256;        // of a session
constexpr uint64_t kMaxFileHeader = 32 << 20;  // bytes; of the headers of a session's open files
constexpr uint64_t kMaxFileEntries = 1 << 18;  // tensors that one header names
constexpr uint64_t kMaxShards = 1 << 11;       // files that one index names
constexpr uint64_t kFilePage = 1 << 20;        // bytes of an answer about files, then it ends

constexpr uint64_t kMaxPrograms = 4096;            // of a session
constexpr uint64_t kMaxProgramSteps = 1 << 16;     // of one program
constexpr uint64_t kMaxProgramStorages = 1 << 18;  // of one program

constexpr uint64_t kMaxGroups = 256;                // process groups of a session
constexpr uint64_t kMaxGroupSize = 1 << 12;         // ranks of one
constexpr uint64_t kMaxGroupEntries = 1 << 12;      // keys and values in one message about it
constexpr uint64_t kMaxGroupKey = 1 << 10;          // bytes of a key
constexpr uint64_t kMaxGroupValue = 1 << 16;        // bytes of a value
constexpr uint64_t kMaxGroupTimeout = 604'800'000;  // milliseconds: a week

constexpr uint64_t kMaxGenerators = 1 << 16;      // generators of a session
constexpr uint64_t kMaxGeneratorState = 1 << 16;  // bytes of a generator's state
constexpr uint64_t kMaxErrorText = 16 << 10;      // text of an error; the sender cuts longer ones
constexpr uint64_t kMaxErrorResults = 64;         // storages that one error lists
constexpr uint64_t kMaxStoppedThreads = 65536;    // per session
constexpr uint64_t kMaxWarningText = 4 << 10;     // text of a warning; the sender cuts longer ones
constexpr uint64_t kMaxWarningTexts = 1024;       // different texts of warnings, per session
constexpr uint64_t kMaxSkippedTags = 1024;        // messages of an unknown tag, per session

}  // namespace torch_remote::wire
