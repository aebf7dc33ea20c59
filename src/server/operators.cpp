#include "server/operators.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include "wire/codec.h"
#include "wire/handshake.h"

namespace torch_remote::server {
namespace {

constexpr std::string_view kNamespace = "aten::";

// Names without the namespace; an overload does not matter.
const std::unordered_set<std::string_view>& refused_names() {
  static const std::unordered_set<std::string_view> kNames = {
      // storages and raw memory
      "set",
      "set_",
      "set_data",
      "data",
      "as_strided",
      "as_strided_",
      "as_strided_copy",
      "_resize_output",
      "_resize_output_",
      "_pin_memory",
      "pin_memory",
      "is_pinned",
      "record_stream",
      "_reinterpret_tensor",
      "_lazy_clone",
      "_nested_view_from_buffer",
      "_nested_view_from_jagged",
      "_nested_tensor_from_tensor_list",
      "_sparse_coo_tensor_unsafe",
      "_sparse_compressed_tensor_unsafe",
      "_sparse_csr_tensor_unsafe",
      "_sparse_csc_tensor_unsafe",
      "_sparse_bsr_tensor_unsafe",
      "_sparse_bsc_tensor_unsafe",
      "_coalesced_",
      "_cuda_getCurrentRawStream",
      // files, standard output, Python
      "from_file",
      "_print",
      "_backward",
      "requires_grad_",
      "retain_grad",
      "_version",
      "_fw_primal",
      "_make_dual",
      "_unpack_dual",
      "rename",
      "rename_",
  };
  return kNames;
}

// _reshape_alias*, _nested_view_from*: views that nobody checks; clients make theirs themselves.
// fbgemm_*: packed weights are pointers inside a byte tensor. *_getCurrentRawStream: a pointer.
bool has_refused_form(std::string_view name) {
  return name.starts_with("resize") || name.starts_with("fbgemm_") ||
         name.starts_with("_reshape_alias") || name.starts_with("_nested_view_from") ||
         name.ends_with("_getCurrentRawStream");
}

// Operators that fill self without looking at what was there.
bool is_overwriting(std::string_view name) {
  static const std::unordered_set<std::string_view> kNames = {
      "copy_",      "fill_",        "zero_",   "normal_",     "uniform_",   "random_",
      "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_",
  };
  return kNames.contains(name);
}

bool travels(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::StorageType:
    case c10::TypeKind::StreamObjType:
    case c10::TypeKind::QSchemeType:
    case c10::TypeKind::AnyType:
    case c10::TypeKind::ClassType:
    case c10::TypeKind::DictType:
      return false;
    default:
      break;
  }
  for (const auto& inner : type.containedTypes()) {
    if (!travels(*inner))
      return false;
  }
  return true;
}

std::string refuse_schema(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (!travels(*argument.type())) {
      return "takes a " + argument.type()->str() + ", which does not travel";
    }
  }
  for (const c10::Argument& result : schema.returns()) {
    if (!travels(*result.type()))
      return "returns a " + result.type()->str() + ", which does not travel";
  }
  return {};
}

Operator refused(Operator operation, std::string reason) {
  operation.callee.refusal = std::move(reason);
  return operation;
}

}  // namespace

std::string refuse_operator(const std::string& name) {
  if (!name.starts_with(kNamespace)) {
    return "is not one of PyTorch's own operators; other libraries' are loaded with `serve "
           "--library`, "
           "which this server does not have yet";
  }
  const std::string_view bare = std::string_view(name).substr(kNamespace.size());
  if (refused_names().contains(bare) || has_refused_form(bare)) {
    return "may not be called by a client: it touches files, storages or raw memory";
  }
  return {};
}

Operator find_operator(wire::Introduction introduction) {
  Operator operation;
  operation.name = introduction.name;
  if (!introduction.overload.empty())
    operation.name += "." + introduction.overload;
  operation.callee.arguments = std::move(introduction.arguments);
  std::string reason = refuse_operator(introduction.name);
  if (!reason.empty())
    return refused(std::move(operation), std::move(reason));
  auto handle = c10::Dispatcher::singleton().findSchema({introduction.name, introduction.overload});
  if (!handle)
    return refused(std::move(operation), "is not known to this server's torch");
  reason = refuse_schema(handle->schema());
  if (!reason.empty())
    return refused(std::move(operation), std::move(reason));
  operation.callee.schema = &handle->schema();
  operation.callee.overwrites_self =
      is_overwriting(std::string_view(introduction.name).substr(kNamespace.size()));
  operation.is_seeded = handle->hasTag(at::Tag::nondeterministic_seeded);
  operation.handle = std::move(handle);
  return operation;
}

const std::array<std::byte, 32>& operators_digest() {
  static const std::array<std::byte, 32> kDigest = [] {
    std::vector<std::string> schemas;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!name.name.starts_with(kNamespace))
        continue;
      const auto handle = c10::Dispatcher::singleton().findSchema(name);
      if (handle)
        schemas.push_back(c10::toString(handle->schema()));
    }
    std::sort(schemas.begin(), schemas.end());
    wire::Writer writer;
    for (const std::string& schema : schemas)
      writer.text(schema);
    return wire::sha256(writer.view());
  }();
  return kDigest;
}

}  // namespace torch_remote::server
