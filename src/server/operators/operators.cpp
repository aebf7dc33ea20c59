#include "server/operators/operators.h"

#include <cerrno>
#include <fstream>
#include <stdexcept>

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/version.h>

#include "base/error.h"
#include "base/text.h"
#include "marshal/route.h"
#include "marshal/schemas.h"
#include "server/operators/operator_list.h"

namespace torch_remote::server {
namespace {

using marshal::kAten;

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

std::string may_not(std::string_view reason) {
  return "may not be called by a client: " + std::string(reason);
}

bool runs(const Listed& listed) {
  return listed.kind == OperatorClass::kRuns || listed.kind == OperatorClass::kUnchecked;
}

bool is_sent(const c10::OperatorHandle& operation) {
  const marshal::OperatorRules rules = marshal::rules_of(operation.operator_name());
  return marshal::route_of(operation, rules) == marshal::Route::kSent;
}

// Only words: it is refused either way. Null: this server's torch does not have it.
std::string refuse_unlisted(const c10::OperatorHandle* operation) {
  if (operation != nullptr && !is_sent(*operation))
    return may_not("the client composes it of other operators, or does it itself");
  return "is refused until somebody has read its kernel: it is not in this server's list of "
         "operators (src/server/operators/operator_list.txt)";
}

constexpr std::string_view kFirstLine = "# torch ";

}  // namespace

bool may_be_called(std::string_view name) {
  return runs(find_listed(name));
}

std::string refuse_operator(std::string_view name, const c10::OperatorHandle* operation) {
  const Listed listed = find_listed(name);
  if (runs(listed))
    return {};
  if (listed.kind == OperatorClass::kRefused)
    return may_not(listed.reason);
  return refuse_unlisted(operation);
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
  if (name.name.size() + name.overload_name.size() > kMaxOperatorName) {
    reason =
        "is no operator: its name is longer than " + std::to_string(kMaxOperatorName) + " bytes";
    return std::nullopt;
  }
  const bool is_of_library = of_libraries_.contains(name);
  if (!is_of_library && !name.name.starts_with(kAten)) {
    reason =
        "is not known to this server: start it with `torch-remote serve --library FILE`, the "
        "library that has `" +
        std::string(namespace_of(name.name)) +
        "`'s operators (for the embedded server, TORCH_REMOTE_LIBRARY=FILE)";
    return std::nullopt;
  }
  const bool is_claimed = is_of_library || !claimed_ || claimed_by_name_.contains(full_name(name));
  auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle || !is_claimed) {
    reason = "is not known to this server's torch " + torch_version();
    return std::nullopt;
  }
  if (!is_of_library)
    reason = refuse_operator(full_name(name), &*handle);
  if (!reason.empty())
    return std::nullopt;
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
  operation.name = cut_text(full_name(name), kMaxOperatorName + 1);
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
  const marshal::OperatorRules rules = marshal::rules_of(name);
  operation.callee.overwrites_self = rules.has(marshal::kOverwritesSelf);
  operation.check = argument_check(operation.handle->schema());
  operation.is_seeded = operation.handle->hasTag(at::Tag::nondeterministic_seeded);
  operation.shares_outputs = rules.has(marshal::kSharesOutputs);
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
    if (may_be_called(wire::operator_of(schema)))
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

SchemaFile read_schema_file(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw std::invalid_argument(describe_errno("cannot read schemas from " + path, errno));
  std::string line;
  if (!std::getline(file, line) || !line.starts_with(kFirstLine)) {
    throw std::invalid_argument("cannot read schemas from " + path +
                                ": the first line is not \"# torch VERSION\"");
  }
  SchemaFile read;
  read.torch_version = line.substr(kFirstLine.size());
  while (std::getline(file, line))
    if (!line.empty())
      read.schemas.push_back(line);
  return read;
}

}  // namespace torch_remote::server
