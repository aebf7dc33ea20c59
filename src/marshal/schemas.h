#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/operators.h"

namespace torch_remote::marshal {

constexpr std::string_view kAten = "aten::";

// The schemas of this torch's `aten` operators, as PyTorch prints them, sorted.
std::vector<std::string> aten_schemas();

// Computed once, so operators that Python registers later are not in it.
const wire::Digest& aten_digest();

// The operators of process groups: Note [Process groups] in wire/group.h. A client calls them as
// it calls other operators, so an error of a collective stops its thread and the client does not
// wait. Each has a `group` first, the name that QUERY kGroup has opened, then what it writes,
// then what it reads.
constexpr const char* kCollectives = "torch_remote";  // their namespace

constexpr std::array<const char*, 10> kCollectiveSchemas{
    "all_reduce_(int group, Tensor(a!)[] tensors, int op) -> ()",
    "reduce_(int group, Tensor(a!)[] tensors, int op, int root) -> ()",
    "broadcast_(int group, Tensor(a!)[] tensors, int root) -> ()",
    // Outputs are one tensor, or one for each rank.
    "all_gather(int group, Tensor(a!)[] outputs, Tensor input) -> ()",
    // Inputs are one tensor, or one for each rank.
    "reduce_scatter(int group, Tensor(a!)[] output, Tensor[] inputs, int op) -> ()",
    // The root alone has outputs of gather and inputs of scatter.
    "gather(int group, Tensor(a!)[] outputs, Tensor input, int root) -> ()",
    "scatter(int group, Tensor(a!)[] output, Tensor[] inputs, int root) -> ()",
    // One tensor each, which the numbers divide in its first dimension (no number: evenly), or one
    // for each rank.
    "all_to_all(int group, Tensor(a!)[] outputs, Tensor[] inputs, int[] output_sizes, "
    "int[] input_sizes) -> ()",
    "send(int group, Tensor tensor, int peer, int tag) -> ()",
    "recv(int group, Tensor(a!)[] tensor, int peer, int tag) -> ()",
};

// The `op` of a schema. Not PyTorch's numbers.
enum class Reduction : uint8_t {
  kSum = 0,
  kAverage = 1,
  kProduct = 2,
  kMinimum = 3,
  kMaximum = 4,
  kBitAnd = 5,
  kBitOr = 6,
  kBitXor = 7,
};

// Makes PyTorch know the schemas. Once for the process: client and server may be in one.
void define_collectives();

}  // namespace torch_remote::marshal
