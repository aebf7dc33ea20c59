#include "server/executor/operators.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/version.h>

#include "marshal/schemas.h"

namespace torch_remote::server {
namespace {

using marshal::kAten;

// Names without the namespace, for all overloads.
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

// _reshape_alias*: views without checks; the client makes its views itself. _nested_*: kernels that
// trust sizes and offsets in tensors; the client handles nested tensors itself.
// fbgemm_*: byte tensors that contain pointers. *_getCurrentRawStream: returns a pointer.
bool has_refused_form(std::string_view name) {
  return name.starts_with("resize") || name.starts_with("fbgemm_") ||
         name.starts_with("_reshape_alias") || name.starts_with("_nested_") ||
         name.ends_with("_getCurrentRawStream");
}

// Operators that overwrite self without reading it.
bool is_overwriting(std::string_view name) {
  static const std::unordered_set<std::string_view> kNames = {
      "copy_",      "fill_",          "zero_",          "normal_", "uniform_",
      "random_",    "bernoulli_",     "exponential_",   "cauchy_", "log_normal_",
      "geometric_", "_foreach_zero_", "_foreach_copy_",
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
  for (const auto& inner : type.containedTypes())
    if (!travels(*inner))
      return false;
  return true;
}

std::string refuse_schema(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments())
    if (!travels(*argument.type()))
      return "takes a " + argument.type()->str() + ", which cannot be sent";
  for (const c10::Argument& result : schema.returns())
    if (!travels(*result.type()))
      return "returns a " + result.type()->str() + ", which cannot be sent";
  return {};
}

std::string_view namespace_of(std::string_view name) {
  const size_t end = name.find("::");
  return end == name.npos ? name : name.substr(0, end);
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

}  // namespace

std::string refuse_operator(std::string_view name) {
  if (!name.starts_with(kAten))
    return "is not one of PyTorch's own operators";
  const std::string_view bare = name.substr(kAten.size());
  if (refused_names().contains(bare) || has_refused_form(bare))
    return "may not be called by a client: it touches files, storages or raw memory";
  return {};
}

OperatorTable::OperatorTable(const std::vector<c10::OperatorName>& of_libraries,
                             std::optional<SchemaFile> claimed)
    : of_libraries_(of_libraries.begin(), of_libraries.end()), claimed_(std::move(claimed)) {
  if (!claimed_)
    return;
  for (const std::string& schema : claimed_->schemas)
    claimed_by_name_.emplace(wire::operator_of(schema), schema);
}

std::optional<c10::OperatorHandle> OperatorTable::look_up(const c10::OperatorName& name,
                                                          std::string& reason) const {
  const bool is_aten = name.name.starts_with(kAten);
  if (!is_aten && !of_libraries_.contains(name)) {
    reason =
        "is not known to this server: start it with `torch-remote serve --library FILE`, the "
        "library that has `" +
        std::string(namespace_of(name.name)) +
        "`'s operators (for the embedded server, TORCH_REMOTE_LIBRARY=FILE)";
    return std::nullopt;
  }
  if (is_aten)
    reason = refuse_operator(name.name);
  if (!reason.empty())
    return std::nullopt;
  const bool is_claimed = !is_aten || !claimed_ || claimed_by_name_.contains(full_name(name));
  auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle || !is_claimed) {
    reason = "is not known to this server's torch " + torch_version();
    return std::nullopt;
  }
  reason = refuse_schema(handle->schema());
  return reason.empty() ? handle : std::nullopt;
}

std::unique_ptr<const c10::FunctionSchema> OperatorTable::claimed_schema(
    const std::string& name) const {
  const auto found = claimed_by_name_.find(name);
  if (found == claimed_by_name_.end())
    return nullptr;
  return std::make_unique<const c10::FunctionSchema>(
      torch::jit::parseSchema(std::string(found->second), true));
}

Operator OperatorTable::find(wire::Introduction introduction) const {
  const c10::OperatorName name(introduction.name, introduction.overload);
  Operator operation;
  operation.name = full_name(name);
  operation.callee.arguments = std::move(introduction.arguments);
  operation.handle = look_up(name, operation.callee.refusal);
  if (!operation.handle)
    return operation;
  operation.callee.schema = &operation.handle->schema();
  try {
    operation.claimed = claimed_schema(operation.name);
  } catch (const std::exception& error) {  // the grammar of another version
    operation.handle.reset();
    operation.callee.schema = nullptr;
    operation.callee.refusal = "has a schema that this server cannot read";
    return operation;
  }
  operation.callee.claimed = operation.claimed.get();
  operation.callee.overwrites_self =
      name.name.starts_with(kAten) &&
      is_overwriting(std::string_view(name.name).substr(kAten.size()));
  operation.is_seeded = operation.handle->hasTag(at::Tag::nondeterministic_seeded);
  operation.shares_outputs = operation.name == "aten::_cudnn_rnn_backward" ||
                             operation.name == "aten::_transform_bias_rescale_qkv";
  return operation;
}

wire::OperatorAnswer OperatorTable::describe(const wire::OperatorQuery& query) const {
  const Operator operation = find({query.name, query.overload, {}});
  wire::OperatorAnswer answer;
  answer.is_known = operation.handle.has_value();
  if (!answer.is_known) {
    answer.reason = operation.callee.refusal;
    return answer;
  }
  for (const c10::Argument& argument : operation.callee.schema->arguments())
    if (marshal::knows(operation.callee, argument.name()))
      answer.arguments.push_back(argument.name());
  return answer;
}

wire::Digest OperatorTable::digest() const {
  return claimed_ ? wire::operators_digest(claimed_->schemas) : marshal::aten_digest();
}

std::vector<uint64_t> OperatorTable::fingerprints() const {
  std::vector<uint64_t> fingerprints;
  for (const std::string& schema : claimed_ ? claimed_->schemas : marshal::aten_schemas()) {
    const std::string_view name = wire::operator_of(schema);
    if (refuse_operator(name.substr(0, name.find('.'))).empty())
      fingerprints.push_back(wire::schema_fingerprint(schema));
  }
  for (const c10::OperatorName& name : of_libraries_) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle && refuse_schema(handle->schema()).empty())
      fingerprints.push_back(wire::schema_fingerprint(c10::toString(handle->schema())));
  }
  return fingerprints;
}

std::string OperatorTable::torch_version() const {
  return claimed_ ? claimed_->torch_version : TORCH_VERSION;
}

}  // namespace torch_remote::server
