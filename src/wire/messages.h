#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/codec.h"
#include "wire/limits.h"
#include "wire/signature.h"
#include "wire/slots.h"
#include "wire/spec.h"

namespace torch_remote::wire {

// A messages frame's payload is a run of messages:
//
//   message := tag:u8 length:varint body                    length: of the body, in bytes
//
// A message whose tag the receiver does not know is skipped; a server answers it with an ERROR.
//
//   client → server
//     SIGNATURE signature                                   (signature.h)
//     CALL      index:varint slots
//     CONTEXT   n:varint (setting:u8 value:zigzag)*n
//     GENERATOR name:varint action:u8 [seed:u64 | state:bytes]
//     RESIZE    storage:varint device:u8 nbytes:varint      makes the storage if it is not there
//     BEGIN     upload:varint storage:varint offset:varint length:varint form:u8 [raw]
//     FREE      n:varint zigzag*n                           applies where it stands
//     READ      request:varint storage:varint offset:varint spec
//     QUERY     request:varint kind:u8 …                    (QueryKind)
//     THREAD    thread:varint                               sends the messages that follow
//     PROGRAM, RUN, DROP                                    a list of calls (program.h)
//     STREAM    action:u8 device:u8 stream:varint …         (streams.h)
//     GO_ON     thread:varint                               its failure was raised: run its calls
//     CANCEL    call:varint                                 Note [Cancelled calls]
//     FILL, CLOSE_FILE                                      files of the server (files.h)
//   server → client
//     REPLY     request:varint body:bytes                   READ: elements; QUERY: see QueryKind
//     ERROR     request:varint error                        request 0: not an answer
//     PROGRESS  call:varint                                 the last call that is done, while a
//                                                           frame takes long; four a second at most
//     WARNING   call:varint …                               a kernel warns (warning.h)
//
// CHUNK is sent as a bulk frame (transport/frame.h) with lane = upload (to the server) or request
// (to the client). ACK, PING and CLOSE are kinds of frames too; HELLO, PROOF and WELCOME are in
// handshake.h.
//
// Note [Numbers of calls]
//
// CALL, QUERY kCall and kCheckedCall, BEGIN, FILL, RESIZE and RUN are numbered together from 1, in
// the order sent. Client and server both count. An error has the number of the call that failed, by
// which the client finds the user's line.
//
// Note [Fail-stop]
//
// A call that fails stops the client's thread that made it (THREAD says which). The server reports
// it at once (ERROR with request 0) and discards the thread's calls, random draws and uploads until
// GO_ON: in a local program the error would have kept them from running. Storages that a failed or
// discarded call should have made are missing: a call that uses one fails with the same error.
//
// Of a stopped thread the server still applies SIGNATURE, CONTEXT, FREE and RESIZE, makes and frees
// generators, and runs calls and uploads that only fill new storages (constants). It answers READ
// and QUERY for values with the error. A call that the client waits for (QUERY kCall, kCheckedCall)
// is answered with its error and stops nothing.
//
// Note [Cancelled calls]
//
// CANCEL is first in its frame, and only for servers with kCancelCapability. It counts when it is
// received, before the frames that wait to be applied: a CALL, QUERY kCall, kCheckedCall or RUN up
// to its number that has not begun fails (ErrorKind::kCancelled), and so stops its thread.
enum class Tag : uint8_t {
  kHello = 1,
  kProof = 2,
  kWelcome = 3,
  kSignature = 4,
  kCall = 5,
  kContext = 6,
  kGenerator = 7,
  kResize = 8,
  kStream = 9,
  kBegin = 10,
  kChunk = 11,
  kFree = 12,
  kRead = 13,
  kQuery = 14,
  kProgram = 15,
  kGoOn = 16,
  kReply = 17,
  kError = 18,
  kAck = 19,
  kPing = 20,
  kClose = 21,
  kThread = 22,
  kRun = 23,
  kDrop = 24,
  kProgress = 25,
  kCancel = 26,
  kWarning = 27,
  kFill = 28,
  kCloseFile = 29,
};

const char* to_text(Tag value);

// Writes tag and length around the body that is written during its life.
class Message {
 public:
  Message(Writer& writer, Tag tag) : writer_(writer) {
    writer.u8(static_cast<uint8_t>(tag));
    length_at_ = writer.size();
    writer.u8(0);
  }

  ~Message() { writer_.patch_length(length_at_); }

  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

 private:
  Writer& writer_;
  size_t length_at_ = 0;
};

struct ReceivedMessage {
  Tag tag;  // may be unknown
  Reader body;
};

ReceivedMessage next_message(Reader& reader);

void encode_signature(Writer& writer, const SignatureParts& parts);
// A SIGNATURE that is never called. It takes the index of one that the client has given up, so that
// the server can free that one. The server knows its operator already; every argument is none.
void encode_empty_signature(Writer& writer, uint32_t index, uint32_t operator_id, size_t arguments);

// CALL. `write_slots()` appends the slots and the names of the fresh outputs (Note [Slots]).
template <typename WriteSlots>
void encode_call(Writer& writer, uint64_t index, WriteSlots&& write_slots) {
  const Message framed(writer, Tag::kCall);
  writer.varint(index);
  write_slots();
}

uint64_t decode_call(Reader& reader);  // of CALL and QUERY kCheckedCall: the signature

// The client's settings that change results. marshal/context.cpp has their names and ranges.
// A precision is the value set for that part: 0 none (inherited), 1 ieee, 2 tf32, 3 bf16,
// 4 PyTorch's default.
enum class Setting : uint8_t {
  kThreads = 1,
  kDefaultDtype = 2,   // wire Dtype
  kDeterministic = 3,  // 0 off, 1 on, 2 warn only
  kFillUninitialized = 4,
  kCudaMatmulPrecision = 5,
  kCudaConvPrecision = 6,
  kFp16Reduction = 7,  // 0 reduced precision and split-k, 1 split-k only, 2 neither
  kBf16Reduction = 8,
  kCudnnEnabled = 9,
  kCudnnBenchmark = 10,
  kCudnnDeterministic = 11,
  kMkldnnEnabled = 12,
  kFlashSdp = 13,
  kEfficientSdp = 14,
  kMathSdp = 15,
  kCudnnSdp = 16,
  kOverrideableSdp = 17,
  kMatmulPrecision = 18,  // set_float32_matmul_precision: 0 highest, 1 high, 2 medium
  kLinalgBackend = 19,    // 0 default, 1 cuSOLVER, 2 MAGMA
  kBlasBackend = 20,      // 0 default, 1 cuBLAS, 2 cuBLASLt, 3 composable kernel
  kFp16Accumulation = 21,
  kMkldnnDeterministic = 22,
  kMathSdpReduction = 23,
  kMkldnnMatmulPrecision = 24,
  kCudnnBenchmarkLimit = 25,
  kCudaRnnPrecision = 26,
  kCudaPrecision = 27,
  kMkldnnConvPrecision = 28,
  kMkldnnRnnPrecision = 29,
  kMkldnnPrecision = 30,
  kPrecision = 31,
  kCudnnTf32 = 32,  // cudnn.allow_tf32 as it was last set
  // Five octal digits, first choice lowest: 0 math, 1 flash, 2 efficient, 3 cuDNN, 4 overrideable.
  kSdpOrder = 33,
  kNnpackEnabled = 34,
  kCudnnDepthwise = 35,  // 0 automatic, 1 cuDNN, 2 native
  kFp16ReductionCpu = 36,
  kSmCarveout = 37,     // -1 none
  kFlushDenormal = 38,  // of the calling thread
};

constexpr uint8_t kMaxSetting = 38;

struct SettingValue {
  Setting setting;
  int64_t value;
  bool operator==(const SettingValue&) const = default;
};

struct Context {
  std::vector<SettingValue> settings;
};

void encode(Writer& writer, const Context& context);
void encode_settings(Writer& writer, const Context& context);  // without the tag: a REPLY's body
Context decode_context(Reader& reader);

enum class GeneratorAction : uint8_t { kSeed = 0, kSetState = 1, kFree = 2, kMake = 3, kCopy = 4 };

// kDefaultGenerator + device is the name of a device's default generator. kMake makes another on
// the device in `seed`. kCopy copies the state of the generator whose name is in `seed`.
struct GeneratorMessage {
  uint64_t name = 0;
  GeneratorAction action = GeneratorAction::kSeed;
  uint64_t seed = 0;
  std::vector<std::byte> state;
};

constexpr uint64_t kDefaultGenerator = 1;     // names 1 … 16
constexpr uint64_t kFirstGenerator = 1 + 16;  // names from kMake
void encode(Writer& writer, const GeneratorMessage& message);
GeneratorMessage decode_generator(Reader& reader);

struct Resize {
  uint64_t storage = 0;
  uint8_t device = 0;
  uint64_t nbytes = 0;
};

void encode(Writer& writer, const Resize& message);
Resize decode_resize(Reader& reader);

struct Begin {
  uint64_t upload = 0;
  uint64_t storage = 0;
  uint64_t offset = 0;  // bytes
  uint64_t length = 0;  // bytes
  bool is_inline = false;
  bool is_kept = false;              // not inline: the server may keep the bytes for later sessions
  std::span<const std::byte> bytes;  // when inline; points into the input
};

void encode(Writer& writer, const Begin& message);
Begin decode_begin(Reader& reader);
// The BEGIN of a bulk upload, which is the first message of its frame; nothing if another is.
std::optional<Begin> find_bulk_begin(std::span<const std::byte> payload);

void encode_free(Writer& writer, std::span<const uint64_t> names);

template <typename Use>
void decode_free(Reader& reader, Use&& use) {
  uint64_t name = 0;
  for (uint64_t n = reader.count(kMaxFrees, "frees"); n > 0; --n)
    use(name += static_cast<uint64_t>(reader.zigzag()));
}

struct Read {
  uint64_t request = 0;
  uint64_t storage = 0;
  uint64_t offset = 0;  // elements
  TensorSpec spec;
};

void encode(Writer& writer, const Read& message);
Read decode_read(Reader& reader);

//   kCall         index:varint first:varint names:varint slots  fresh outputs: first, first+1, …
//   kBarrier                                                   when everything before is done
//   kCounters                                                  counters of the session
//   kGenerator    name:varint                                  state of a generator
//   kCheckedCall  index:varint slots                           a call with known outputs, when done
//   kContext                                                   every setting on the server
//   kOperators                                                 all operators (wire/operators.h)
//   kOperator     name:text overload:text                      one operator
//   kStream       device:u8 stream:varint waits:u8             whether it is done (wire/streams.h)
//   kEvent        event:varint waits:u8                        whether it has happened
//   kElapsed      first:varint second:varint                   time between two events
//   kMemory       device:u8 action:u8 …                        memory of a device (wire/figures.h)
//   kTelemetry    device:u8                                    NVML's figures (wire/figures.h)
//   kProfile      action:u8                                    times of calls (wire/figures.h)
//   kPeer         action:u8 link:varint …                      direct copies (wire/peers.h)
//   kGroup        group:varint action:u8 …                     opens, closes (wire/group.h)
//   kCachedUploads, kCachedUpload                              wire/upload_cache.h
//   kFile         action:u8 …                                  files of the server (wire/files.h)
enum class QueryKind : uint8_t {
  kCall = 0,
  kBarrier = 1,
  kCounters = 2,
  kGenerator = 3,
  kCheckedCall = 4,
  kContext = 5,
  kOperators = 6,
  kOperator = 7,
  kStream = 8,
  kEvent = 9,
  kElapsed = 10,
  kMemory = 11,
  kTelemetry = 12,
  kProfile = 13,
  kPeer = 14,
  kGroup = 15,
  kCachedUploads = 16,
  kCachedUpload = 17,
  kFile = 18,
};

constexpr QueryKind kMaxQueryKind = QueryKind::kFile;

struct Query {
  uint64_t request = 0;
  QueryKind kind = QueryKind::kBarrier;
};

// `write_fields()` appends the fields of the kind.
template <typename WriteFields>
void encode_query(Writer& writer, const Query& query, WriteFields&& write_fields) {
  const Message framed(writer, Tag::kQuery);
  writer.varint(query.request);
  writer.u8(static_cast<uint8_t>(query.kind));
  write_fields();
}

Query decode_query(Reader& reader);

template <typename WriteSlots>
void encode_checked_call(Writer& writer, uint64_t request, uint64_t index,
                         WriteSlots&& write_slots) {
  encode_query(writer, {request, QueryKind::kCheckedCall}, [&] {
    writer.varint(index);
    write_slots();
  });
}

struct QueriedCall {
  uint64_t index = 0;  // of the signature
  uint64_t first = 0;  // the name of the first fresh output
  uint64_t names = 0;  // how many names may be used
};

template <typename WriteSlots>
void encode_queried_call(Writer& writer, uint64_t request, const QueriedCall& call,
                         WriteSlots&& write_slots) {
  encode_query(writer, {request, QueryKind::kCall}, [&] {
    writer.varint(call.index);
    writer.varint(call.first);
    writer.varint(call.names);
    write_slots();
  });
}

QueriedCall decode_queried_call(Reader& reader);

// QUERY kGenerator.
void encode_generator_query(Writer& writer, uint64_t name);
uint64_t decode_generator_query(Reader& reader);

// The body of a REPLY to kCounters.
struct Counters {
  uint64_t calls = 0;
  uint64_t mispredicted = 0;
  uint64_t storages = 0;
  uint64_t storage_bytes = 0;
};

void encode(Writer& writer, const Counters& counters);
Counters decode_counters(Reader& reader);

// The body of a REPLY to kCall: results := n:varint result*n
enum class ResultKind : uint8_t {
  kNone = 0,
  kFresh = 1,   // spec nbytes:varint     takes the next name
  kTensor = 2,  // tensor:varint          the n-th tensor of the call
  kUndefined = 3,
  kInt = 4,
  kFloat = 5,
  kBool = 6,
  kList = 7,
  kScalarComplex = 8,
  kString = 9,
  // tensor:varint spec nbytes:varint: new shape of the n-th tensor and new size of its storage.
  // In a list after the returned values.
  kResized = 10,
  kSparse = 11,        // sparse result*parts    (spec.h); each part is kFresh or kTensor
  kSparseTensor = 12,  // tensor:varint          the n-th sparse tensor of the call
  // tensor:varint sparse result*parts: new sizes and parts of the n-th sparse tensor, which the
  // call has written. In the list after the returned values.
  kRewritten = 13,
};

struct Result {
  ResultKind kind = ResultKind::kNone;
  TensorSpec spec;
  SparseSpec sparse;
  uint64_t nbytes = 0;
  uint64_t tensor = 0;
  int64_t integer = 0;
  double real = 0;
  double imaginary = 0;
  std::string text;
  std::vector<Result> items;  // of a list; the parts of a sparse tensor
};

void encode(Writer& writer, const std::vector<Result>& results);
std::vector<Result> decode_results(Reader& reader);
// How many names they take.
uint64_t count_fresh(const std::vector<Result>& results);

enum class ErrorKind : uint8_t {
  kRuntime = 0,
  kIndex = 1,
  kValue = 2,
  kType = 3,
  kNotImplemented = 4,
  kOutOfMemory = 5,
  kRefused = 6,  // by the server: a limit, an operator not allowed, an unknown name
  kLinalg = 7,
  kAccelerator = 8,
  kCancelled = 9,  // by CANCEL
};

//   error := kind:u8 call:varint operator:text message:text signature:varint first:varint
//            thread:varint since:varint n:varint name:varint*n
//            [program:varint step:varint [wanted:varint free:varint]]
struct Error {
  ErrorKind kind = ErrorKind::kRuntime;
  uint64_t call = 0;  // Note [Numbers of calls]; 0: something else failed, such as a READ
  std::string operator_name;
  std::string message;
  uint64_t signature = 0;           // its index + 1; 0: no call
  uint64_t first = 0;               // not 0: one of the calls first … call has ended the session
  uint64_t thread = 0;              // the thread that it has stopped; 0: none
  uint64_t since = 0;               // number of the call that stopped the thread
  std::vector<uint64_t> results{};  // the first storages that it makes or writes
  uint64_t program = 0;             // not 0: `call` is a RUN of it
  uint64_t step = 0;                // which of its steps failed, from 0
  // Bytes, of kOutOfMemory, as far as they are known; only for clients with kShortageCapability.
  uint64_t wanted = 0;
  uint64_t free = 0;
};

void encode(Writer& writer, const Error& error);
Error decode_error(Reader& reader);
// What an ERROR begins with: the request that it answers, or 0.
uint64_t decode_error_request(Reader& reader);

void encode_thread(Writer& writer, uint64_t thread);
void encode_go_on(Writer& writer, uint64_t thread);

void encode_progress(Writer& writer, uint64_t call);
uint64_t decode_progress(Reader& reader);

void encode_cancel(Writer& writer, uint64_t call);
uint64_t decode_cancel(Reader& reader);
// The number in the CANCEL that the frame begins with; none if it begins with something else.
std::optional<uint64_t> find_cancel(std::span<const std::byte> payload);
uint64_t decode_thread(Reader& reader);  // of THREAD and GO_ON

void encode_reply(Writer& writer, uint64_t request, std::span<const std::byte> body);
void encode_error(Writer& writer, uint64_t request, const Error& error);

struct Reply {
  uint64_t request = 0;
  std::span<const std::byte> body;
};

Reply decode_reply(Reader& reader);

}  // namespace torch_remote::wire
