#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/codec.h"
#include "wire/signature.h"
#include "wire/view.h"

namespace torch_remote::wire {

// A messages frame's payload is a run of messages, each a tag and a body that ends itself.
//
//   client → server
//     SIGNATURE signature                                   (signature.h)
//     CALL      slot:varint slots
//     CONTEXT   n:varint (setting:u8 value:zigzag)*n
//     GENERATOR name:varint action:u8 [seed:u64 | state:bytes]
//     RESIZE    storage:varint device:u8 nbytes:varint      makes the storage if it is not there
//     BEGIN     upload:varint storage:varint offset:varint length:varint inline:u8 [raw]
//     FREE      n:varint zigzag*n                           applies where it stands
//     READ      request:varint storage:varint offset:varint spec
//     QUERY     request:varint kind:u8 …                    (QueryKind)
//     HEAL      cause:varint undoes:u8                      the user has been told of the failure with this number
//   server → client
//     REPLY     request:varint body:bytes                   READ: the elements; QUERY: as its kind says
//     ERROR     request:varint error                        request 0: nobody asked; the session goes on
//
// CHUNK travels as a bulk frame (transport/frame.h): lane = upload (to the server) or request (to the
// client). ACK, PING and CLOSE are frame kinds too; HELLO, PROOF and WELCOME are in handshake.h. STREAM
// and PROGRAM have a tag and no format yet: they are answered with an error.
//
// Note [Numbers of calls]
//
// CALL, QUERY kCall, BEGIN and RESIZE are what can fail after the user's program has gone on. Both ends count them
// together, from 1, in the order sent; an error names its own, so that the client can tell whose line it was.
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
  kHeal = 16,
  kReply = 17,
  kError = 18,
  kAck = 19,
  kPing = 20,
  kClose = 21,
};

const char* to_text(Tag tag);

// Settings that change results, mirrored from the client (DESIGN: "Context is mirrored"). marshal/context.cpp
// has the names and ranges. A precision is what was set for that part, not what it inherits: 0 none, 1 ieee,
// 2 tf32, 3 bf16, 4 what PyTorch does unasked.
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
  kSdpOrder =
      33,  // five octal digits, the first choice lowest: 0 math, 1 flash, 2 efficient, 3 cuDNN, 4 overrideable
  kNnpackEnabled = 34,
  kCudnnDepthwise = 35,  // 0 automatic, 1 cuDNN, 2 native
  kFp16ReductionCpu = 36,
  kSmCarveout = 37,     // -1 none
  kFlushDenormal = 38,  // of the thread that calls
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

// name: kDefaultGenerator + device is that device's default generator; others are made by kMake, whose
// seed field is the device. kCopy gives it the state of another, whose name is in the seed field: a generator that
// nobody draws from is a snapshot.
struct GeneratorMessage {
  uint64_t name = 0;
  GeneratorAction action = GeneratorAction::kSeed;
  uint64_t seed = 0;
  std::vector<std::byte> state;
};

constexpr uint64_t kDefaultGenerator = 1;     // names 1 … 16: the devices' own
constexpr uint64_t kFirstGenerator = 1 + 16;  // names that clients make
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
  std::span<const std::byte> bytes;  // when inline; points into the input
};

void encode(Writer& writer, const Begin& message);
Begin decode_begin(Reader& reader);

void encode_free(Writer& writer, std::span<const uint64_t> names);
std::vector<uint64_t> decode_free(Reader& reader);

struct Read {
  uint64_t request = 0;
  uint64_t storage = 0;
  uint64_t offset = 0;  // elements
  TensorSpec spec;
};

void encode(Writer& writer, const Read& message);
Read decode_read(Reader& reader);

//   kCall       slot:varint first:varint names:varint slots    run it, name fresh outputs first, first+1, …
//   kBarrier                                                   everything before is done; answered by Failures
//   kCounters                                                  what the session has counted
//   kGenerator  name:varint                                    a generator's state
//   kOutcome                                                   how the call before it went
//   kContext                                                   every setting, as it is on the server
//   kOperators                                                 what clients may call (wire/operators.h)
//   kOperator   name:text overload:text                        one of them
//   kTaints     cause:varint names                             what a failure has done to storages (Taints)
enum class QueryKind : uint8_t {
  kCall = 0,
  kBarrier = 1,
  kCounters = 2,
  kGenerator = 3,
  kOutcome = 4,
  kContext = 5,
  kOperators = 6,
  kOperator = 7,
  kTaints = 8,
};

QueryKind decode_query_kind(Reader& reader);

// QUERY kTaints: has the failure with this number poisoned these storages, or kept calls from writing them?
struct TaintQuery {
  uint64_t cause = 0;
  std::vector<uint64_t> names;
};

void encode(Writer& writer, const TaintQuery& query);
TaintQuery decode_taint_query(Reader& reader);

// Its answer, one of these for each name: kUntouched, kPoisoned, or kSkipped and the number of the first call that was
// skipped, added.
//
//   taints := varint*n
enum Taint : uint64_t { kUntouched = 0, kPoisoned = 1, kSkipped = 2 };

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
  kResized =
      10,  // tensor:varint spec nbytes:varint   the call gave its n-th tensor this shape, and its storage
           //                                    this size; in a list behind the returns
};

struct Result {
  ResultKind kind = ResultKind::kNone;
  TensorSpec spec;
  uint64_t nbytes = 0;
  uint64_t tensor = 0;
  int64_t integer = 0;
  double real = 0;
  double imaginary = 0;
  std::string text;
  std::vector<Result> items;
};

void encode(Writer& writer, const std::vector<Result>& results);
std::vector<Result> decode_results(Reader& reader);

// What went wrong with a remote call; kept in the place of its results.
enum class ErrorKind : uint8_t {
  kRuntime = 0,
  kIndex = 1,
  kValue = 2,
  kType = 3,
  kNotImplemented = 4,
  kOutOfMemory = 5,
  kRefused = 6,  // the server will not do it: limits, allow-list, unknown name
  kLinalg = 7,
  kAccelerator = 8,
};

//   error := kind:u8 call:varint operator:text message:text signature:varint first:varint
struct Error {
  ErrorKind kind = ErrorKind::kRuntime;
  uint64_t call = 0;  // Note [Numbers of calls]; 0: none of these failed, such as a read
  std::string operator_name;
  std::string message;
  uint64_t signature = 0;  // its slot + 1; 0: it was no call
  uint64_t first = 0;      // not 0: the session is over, and it was one of the calls first … call
};

void encode(Writer& writer, const Error& error);
Error decode_error(Reader& reader);

struct Heal {
  uint64_t cause = 0;   // Error::call
  bool undoes = false;  // everything that was written since, as far as its bytes are kept
};

void encode(Writer& writer, const Heal& message);
Heal decode_heal(Reader& reader);

// The body of a REPLY to kBarrier: failures that no HEAL has named yet, oldest first, and how many there are.
//
//   failures := total:varint n:varint error*n
struct Failures {
  uint64_t total = 0;
  std::vector<Error> errors;
};

void encode(Writer& writer, const Failures& failures);
Failures decode_failures(Reader& reader);

}  // namespace torch_remote::wire
