#include "client/operators/operator.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include <ATen/core/enum_tag.h>
#include <c10/util/flat_hash_map.h>

#include "base/mutex.h"
#include "client/operators/meta_table.h"
#include "marshal/route.h"
#include "marshal/schemas.h"

namespace torch_remote::client {
namespace {

const MetaTable& meta_table() {
  static const MetaTable* table = [] {
    auto* made = new MetaTable;
    fill_meta_table_0(*made);
    fill_meta_table_1(*made);
    fill_meta_table_2(*made);
    fill_meta_table_3(*made);
    return made;
  }();
  return *table;
}

}  // namespace

const c10::KernelFunction* find_meta_kernel(std::string_view name) {
  const auto found = meta_table().find(name);
  return found == meta_table().end() ? nullptr : &found->second;
}

bool has_form_in_place(std::string_view name) {
  return std::any_of(meta_table().begin(), meta_table().end(), [&](const auto& entry) {
    const std::string_view found = entry.first.substr(0, entry.first.find('.'));
    return found.size() == name.size() + 1 && found.starts_with(name) && found.ends_with('_');
  });
}

namespace {

bool has_dynamic_tag(const c10::OperatorHandle& operation) {
  return operation.hasTag(at::Tag::dynamic_output_shape) ||
         operation.hasTag(at::Tag::data_dependent_output);
}

int written_by(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr || !result.alias_info()->isWrite())
    return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite() &&
        alias->beforeSets() == result.alias_info()->beforeSets())
      return static_cast<int>(i);
  }
  return -1;
}

ReturnInfo return_info(const c10::FunctionSchema& schema, const c10::Argument& result) {
  ReturnInfo info;
  const auto kind = result.real_type()->kind();
  info.is_tensor = kind == c10::TypeKind::TensorType;
  info.is_list = kind == c10::TypeKind::ListType &&
                 result.real_type()->castRaw<c10::ListType>()->getElementType()->kind() ==
                     c10::TypeKind::TensorType;
  info.written_argument = written_by(schema, result);
  return info;
}

// The name of the form without in place: "aten::masked_fill.Scalar" for
// "aten::masked_fill_.Scalar".
std::string functional_name(const wire::Introduction& operation) {
  std::string name = operation.name;
  if (name.ends_with('_'))
    name.pop_back();
  return operation.overload.empty() ? name : name + "." + operation.overload;
}

// Who tells the outputs if neither our shape function nor the arguments do.
InferenceSource last_source(const OperatorInfo& info) {
  using marshal::ArgumentKind;
  const auto count = [&](ArgumentKind kind) {
    return std::count_if(info.arguments.begin(), info.arguments.end(),
                         [kind](const auto& argument) { return argument.kind == kind; });
  };
  const auto outs = static_cast<std::ptrdiff_t>(info.out_arguments.size());
  // Indexing depends on data only if an index is a mask, which infer() checks.
  if (info.has(kAsksServer) || (info.depends_on_data && outs == 0 && !info.has(kTakesHostIndices)))
    return InferenceSource::kServer;
  if (info.meta != nullptr)
    return InferenceSource::kMeta;
  // Only the kernel knows which dtypes an `out=` may have and its layout after a resize. Operators
  // without input (randperm, normal with numbers) get an `out=` that already fits.
  if (outs > 0 && (count(ArgumentKind::kTensor) > outs || count(ArgumentKind::kTensorList) > 0))
    return InferenceSource::kServer;
  // Meta has a fallback that throws, so the computed table does not tell whether there is a kernel.
  // Another library may add one at any time.
  const bool has_kernel = info.is_foreign || marshal::is_composed(info.handle) ||
                          info.handle.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  return has_kernel ? InferenceSource::kPython : InferenceSource::kServer;
}

// For calls that make nothing new. A call with one tensor is always valid, unless PyTorch's shape
// code refuses it. infer() checks lists that are written tensor by tensor, the kernel others.
std::vector<InferenceSource> sources_in_place(const OperatorInfo& info) {
  if (info.depends_on_data && !info.has(kTakesHostIndices))
    return {InferenceSource::kServer};
  int least = 0, most = 0;  // least and most tensors in a call
  for (const c10::Argument& argument : info.handle.schema().arguments()) {
    const std::string type = argument.type()->str();
    least += type == "Tensor" || type == "Tensor?[]" ? 1 : 0;
    most += type == "Tensor" || type == "Tensor?[]" || type == "Tensor?" ? 1 : 0;
  }
  const bool begins_with_tensor =
      !info.arguments.empty() && info.arguments[0].kind == marshal::ArgumentKind::kTensor;
  std::vector<InferenceSource> sources;
  if (info.shape != nullptr && begins_with_tensor)
    sources.push_back(InferenceSource::kShape);
  if (!begins_with_tensor || (info.meta == nullptr && least < 2))
    sources.push_back(InferenceSource::kArguments);
  if (info.writes_list || (begins_with_tensor && (info.meta != nullptr || most >= 2)))
    sources.push_back(last_source(info));
  return sources;
}

std::vector<InferenceSource> sources_of(const OperatorInfo& info) {
  if (!info.has_fresh_outputs && info.out_arguments.empty())
    return sources_in_place(info);
  if (info.shape == nullptr)
    return {last_source(info)};
  return {InferenceSource::kShape, last_source(info)};
}

// Null until it is handed in. Written before the first call.
FindShapeFunction find_shape_function = nullptr;

ShapeFunction find_shape(std::string_view name) {
  return find_shape_function == nullptr ? nullptr : find_shape_function(name);
}

uint32_t next_id() {
  static std::atomic<uint32_t> next{0};
  return next.fetch_add(1);
}

}  // namespace

void use_shape_functions(FindShapeFunction find) {
  find_shape_function = find;
}

std::string_view word(InferenceSource source) {
  constexpr std::string_view kWords[] = {"shape", "arguments", "meta", "python", "server"};
  return kWords[static_cast<size_t>(source)];
}

OperatorInfo::OperatorInfo(const c10::OperatorHandle& operation) : handle(operation) {
  const c10::FunctionSchema& schema = operation.schema();
  id = next_id();
  site_number = id + 1 < UINT16_MAX ? static_cast<uint16_t>(id + 1) : 0;
  name = c10::toString(operation.operator_name());
  introduction.name = operation.operator_name().name;
  introduction.overload = operation.operator_name().overload_name;
  const marshal::OperatorRules rules = marshal::rules_of(operation.operator_name());
  traits = rules.traits;
  bound = rules.bound;
  if (name.starts_with(marshal::kAten))
    alert = find_alert(operation.operator_name());
  if (alert != nullptr)
    traits |= kMayAlert;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    introduction.arguments.push_back(argument.name());
    arguments.push_back(marshal::argument_info(argument, has(kShapedByNumbers)));
    if (argument.name() == "check_errors" && argument.type()->kind() == c10::TypeKind::BoolType)
      check_errors = static_cast<int>(i);
    if (argument.is_out())
      out_arguments.push_back(static_cast<uint32_t>(i));
  }
  size_t tensors = 0;
  for (const c10::Argument& result : schema.returns()) {
    returns.push_back(return_info(schema, result));
    if (returns.back().is_tensor || returns.back().is_list)
      ++tensors;
    if (returns.back().written_argument < 0)
      has_fresh_outputs = true;
  }
  // A number alone is read from data. One that comes with tensors (flash attention's sequence
  // lengths) is metadata, which the server tells once for each signature.
  const bool returns_numbers = tensors != returns.size();
  depends_on_data = returns_numbers && tensors == 0;
  if (has_dynamic_tag(operation) || has(kDependsOnData))
    depends_on_data = true;
  const bool is_foreach = introduction.name.starts_with("aten::_foreach_");
  writes_list = is_foreach && schema.is_mutable() && schema.arguments()[0].alias_info() != nullptr;
  is_foreign = !name.starts_with(marshal::kAten);
  makes_view = marshal::returns_view(schema);
  if (returns_numbers || (is_foreach && has_fresh_outputs))
    traits |= kAsksServer;
  shape = find_shape(has_fresh_outputs ? name : functional_name(introduction));
  meta = find_meta_kernel(name);
  sources = sources_of(*this);
}

namespace {

// All operators called so far. Leaks: used at exit.
struct KnownOperators {
  Mutex mutex;
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorInfo>> all
      GUARDED_BY(mutex);
};

KnownOperators& known_operators() {
  static auto* const operators = new KnownOperators;
  return *operators;
}

}  // namespace

std::string operator_at(uint16_t site_number) {
  if (site_number == 0)
    return {};
  KnownOperators& operators = known_operators();
  MutexLock lock(operators.mutex);
  for (const auto& [schema, info] : operators.all) {
    if (info->site_number != site_number)
      continue;
    const std::string& name = info->introduction.name;
    return name.starts_with(marshal::kAten) ? name.substr(marshal::kAten.size()) : name;
  }
  return {};
}

const OperatorInfo& operator_info(const c10::OperatorHandle& operation) {
  thread_local ska::flat_hash_map<const c10::FunctionSchema*, const OperatorInfo*> seen;
  const c10::FunctionSchema* schema = &operation.schema();
  const auto found = seen.find(schema);
  if (C10_LIKELY(found != seen.end()))
    return *found->second;

  KnownOperators& operators = known_operators();
  auto made = std::make_unique<OperatorInfo>(operation);
  MutexLock lock(operators.mutex);
  const auto& info = *operators.all.try_emplace(schema, std::move(made)).first->second;
  seen.emplace(schema, &info);
  return info;
}

}  // namespace torch_remote::client
