#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "wire/codec.h"
#include "wire/spec.h"

namespace torch_remote::wire {

// A signature is the part that calls have in common which differ only in their slots.
//
//   signature := index:varint operator:varint [introduction] defaults key:bytes outputs
//   introduction := name:text overload:text n:varint argument-name:text*n    when operator is new
//   defaults  := n:varint argument:varint*n      arguments that equal their schema's default
//   key       := number:varint device:u8 environment:u8 n:varint value*n n:varint storage*n
//   storage   := (device << 1 | fresh):u8 [nbytes:varint]
//                fresh: the first call with this storage; the server makes it of `nbytes`
//   value     := kind:u8 …                       (ValueKind)
//   outputs   := 0 | 1 n:varint output*n         0: only the server knows them
//   output    := kind:u8 [spec | tensor:varint | n:varint output*n | integer:zigzag] (OutputKind)
//
// The client looks signatures up by `key`. `number` is its own number for the operator;
// `environment` has the settings that decide metadata (default dtype, deterministic, fill). Of
// these the server reads only bit 7 of `environment`: run the kernel with grad mode on.
//
// A call sends the slots of its key in order: Note [Slots] in wire/slots.h.
enum class ValueKind : uint8_t {
  kNone = 0,
  kTensor = 1,        // spec storage:varint    storages are numbered in order of first mention
  kUndefined = 2,     // an undefined tensor
  kScalarTensor = 3,  // dtype:u8 wrapped:u8    0-dim CPU tensor; its bytes are a slot
  kInt = 4,           // zigzag
  kFloat = 5,         // slot: f64
  kFalse = 6,
  kTrue = 7,
  kScalarInt = 8,          // slot: zigzag
  kScalarFloat = 9,        // slot: f64
  kScalarComplex = 10,     // slot: f64 f64
  kScalarBool = 11,        // slot: u8
  kString = 12,            // text
  kIntList = 13,           // n:varint zigzag*n
  kFloatList = 14,         // n:varint              slot: same:u8 then one or n f64
  kBoolList = 15,          // n:varint u8*n
  kList = 16,              // n:varint value*n      tensors (undefined ones allowed), strings
  kScalarList = 17,        // n:varint (kind:u8)*n  slot: same:u8 then one or n by kind
  kDtype = 18,             // u8
  kLayout = 19,            // u8 (Layout)
  kMemoryFormat = 20,      // u8: 0 contiguous 1 preserve 2 channels_last 3 channels_last_3d
  kDevice = 21,            // the device of the call
  kGenerator = 22,         // slot: varint name
  kConstFloat = 23,        // f64: decides a shape, so it is no slot
  kConstScalarInt = 24,    // zigzag
  kConstScalarFloat = 25,  // f64
  kCpuDevice = 26,         // the argument asks for the CPU
  kComplex = 27,           // slot: f64 f64 (schema type complex)
  kAgain = 28,             // tensor:varint    the n-th tensor of the key, the same object
  kScalarUnsigned = 29,    // slot: varint     too large for a zigzag
  kSparse = 30,            // sparse value*parts    the parts are kTensor or kAgain (spec.h)
  kSparseAgain = 31,       // tensor:varint    the n-th sparse tensor of the key, the same object
};

constexpr uint8_t kValueKindCount = 32;

struct Value {
  ValueKind kind = ValueKind::kNone;
  // kInt, kScalarTensor (wrapped), kDtype, kLayout, kMemoryFormat, kConstScalarInt, kAgain,
  // kSparseAgain
  int64_t integer = 0;
  double real = 0;                // kConstFloat, kConstScalarFloat
  uint32_t storage = 0;           // kTensor
  uint64_t extent = 0;            // kTensor: bytes needed after the offset
  TensorSpec spec;                // kTensor, kScalarTensor (dtype)
  SparseSpec sparse;              // kSparse
  std::string text;               // kString
  std::vector<int64_t> integers;  // kIntList, kBoolList, kScalarList (kinds)
  uint64_t count = 0;             // kFloatList
  std::vector<Value> items;       // kList; kSparse: its parts
};

struct FreshStorage {
  bool fresh = false;
  uint8_t device = 0;  // the server's number for the device that it lies on
  uint64_t nbytes = 0;
};

enum class OutputKind : uint8_t {
  kUndefined = 0,
  kFresh = 1,   // spec; in a new storage that the call names
  kTensor = 2,  // tensor:varint, the n-th tensor of the key is returned
  kList = 3,
  kInt = 4,  // zigzag: a number that follows from metadata, as flash attention returns
};

struct Output {
  OutputKind kind = OutputKind::kUndefined;
  TensorSpec spec;
  uint64_t tensor = 0;
  int64_t integer = 0;
  std::vector<Output> items;
};

struct Introduction {
  std::string name;
  std::string overload;
  std::vector<std::string> arguments;
};

struct Signature {
  uint32_t index = 0;  // its place in the tables of both ends
  uint32_t operator_id = 0;
  std::optional<Introduction> introduction;
  std::vector<uint32_t> defaults;
  uint8_t device = 0;
  bool grad_mode = false;
  std::vector<Value> arguments;
  std::vector<FreshStorage> storages;
  bool outputs_known = false;
  std::vector<Output> outputs;
};

// What SIGNATURE has besides the key.
struct SignatureParts {
  uint32_t index = 0;  // its place in the tables of both ends
  uint32_t operator_id = 0;
  const Introduction* introduction = nullptr;  // null: the server knows the operator
  std::span<const uint32_t> defaults;
  std::span<const std::byte> key;
  bool outputs_known = false;
  std::span<const Output> outputs;
};

void encode(Writer& writer, const SignatureParts& parts);
void encode(Writer& writer, const Output& output);

// `next_operator` is the id of the next introduction. A lower id is an operator introduced before;
// a higher one is refused.
Signature decode_signature(Reader& reader, uint32_t next_operator);

}  // namespace torch_remote::wire
