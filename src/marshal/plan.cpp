#include "marshal/plan.h"

#include <algorithm>

#include <ATen/core/jit_type.h>

#include "base/error.h"

namespace torch_remote::marshal {
namespace {

using wire::Value;
using wire::ValueKind;

// --- the client's order: steps, tensors, and where the slots of each argument begin

class Layout {
 public:
  explicit Layout(Plan& plan) : plan_(plan) {}

  std::vector<Cursor> lay_out(const std::vector<Value>& arguments) {
    std::vector<Cursor> begins;
    for (const Value& value : arguments) {
      begins.push_back(cursor_);
      add(value);
    }
    return begins;
  }

 private:
  void number(SlotKind kind, uint32_t count = 1) {
    plan_.steps.push_back({kind, count, 0});
    ++cursor_.number;
  }

  void add_tensor(const Value& value) {
    TensorRecipe recipe = make_tensor_recipe(value.spec);
    recipe.storage = value.storage;
    const bool is_new = value.storage == mentioned_;
    if (is_new)
      ++mentioned_;
    recipe.is_repeat = !is_new;
    plan_.steps.push_back({is_new ? SlotKind::kStorage : SlotKind::kOffset, 1, value.storage});
    plan_.tensors.push_back(std::move(recipe));
    ++cursor_.tensor;
  }

  void add_sparse(const Value& value) {
    SparseRecipe recipe;
    recipe.spec = value.sparse;
    for (const Value& part : value.items) {
      const bool is_again = part.kind == ValueKind::kAgain;
      recipe.parts.push_back(is_again ? static_cast<uint32_t>(part.integer) : cursor_.tensor);
      add(part);
    }
    plan_.sparse.push_back(std::move(recipe));
    ++cursor_.sparse;
  }

  void add_scalar_list(const Value& value) {
    const auto count = static_cast<uint32_t>(value.integers.size());
    const auto first = static_cast<uint32_t>(plan_.scalar_kinds.size());
    for (const int64_t kind : value.integers)
      plan_.scalar_kinds.push_back(static_cast<ValueKind>(kind));
    plan_.steps.push_back({SlotKind::kScalarList, count, first});
    cursor_.number += count;
  }

  void add(const Value& value) {
    switch (value.kind) {
      case ValueKind::kTensor:
        return add_tensor(value);
      case ValueKind::kSparse:
        return add_sparse(value);
      case ValueKind::kScalarTensor:
        return number(SlotKind::kRaw, static_cast<uint32_t>(wire::element_bytes(value.spec.dtype)));
      case ValueKind::kScalarInt:
        return number(SlotKind::kInt);
      case ValueKind::kScalarUnsigned:
        return number(SlotKind::kUnsigned);
      case ValueKind::kFloat:
      case ValueKind::kScalarFloat:
        return number(SlotKind::kFloat);
      case ValueKind::kComplex:
      case ValueKind::kScalarComplex:
        return number(SlotKind::kComplex);
      case ValueKind::kScalarBool:
        return number(SlotKind::kBool);
      case ValueKind::kFloatList:
        plan_.steps.push_back({SlotKind::kFloatList, static_cast<uint32_t>(value.count), 0});
        cursor_.number += static_cast<uint32_t>(value.count);
        return;
      case ValueKind::kScalarList:
        return add_scalar_list(value);
      case ValueKind::kGenerator:
        plan_.steps.push_back({SlotKind::kGenerator, 1, 0});
        ++cursor_.generator;
        return;
      case ValueKind::kList:
        for (const Value& item : value.items)
          add(item);
        return;
      default:
        return;
    }
  }

  Plan& plan_;
  Cursor cursor_;
  uint32_t mentioned_ = 0;
};

bool is_generator(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::GeneratorType)
    return true;
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional != nullptr && is_generator(*optional->getElementType());
}

// The server reads the indices of every sparse tensor, to check them.
void mark_parts(Plan& plan, SparseRecipe& sparse, bool is_written) {
  sparse.is_written |= is_written;
  for (const uint32_t part : sparse.parts) {
    plan.tensors[part].is_written |= is_written;
    plan.tensors[part].may_change |= is_written;
    plan.tensors[part].is_read = true;
  }
}

struct Access {
  bool is_read = true;
  bool is_written = false;
  bool may_change = false;
};

// The batch norms of several backends update their statistics, and their schemas do not say so.
bool is_running_statistic(const c10::Argument& argument) {
  return argument.name() == "running_mean" || argument.name() == "running_var";
}

Access access_of(const c10::Argument& argument, const Callee& callee) {
  const bool overwrites =
      argument.is_out() || (callee.overwrites_self && argument.name() == "self");
  Access access;
  access.is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  access.is_read = !(access.is_written && overwrites);
  access.may_change = access.is_written || is_running_statistic(argument);
  return access;
}

// One tensor may be several arguments, such as an input and `out`.
void mark_access(Plan& plan, const Recipe& recipe, const Access& access) {
  for (const Recipe& item : recipe.items)
    mark_access(plan, item, access);
  if (recipe.kind == RecipeKind::kSparse)
    mark_parts(plan, plan.sparse[recipe.index], access.is_written);
  if (recipe.kind != RecipeKind::kTensor)
    return;
  TensorRecipe& tensor = plan.tensors[recipe.index];
  tensor.is_argument = true;
  tensor.is_written |= access.is_written;
  tensor.is_read |= access.is_read;
  tensor.may_change |= access.may_change;
}

// Goes from the last argument to the first; `met` are the tensors that later arguments use.
void mark_last_use(Recipe& recipe, std::vector<bool>& met) {
  for (auto item = recipe.items.rbegin(); item != recipe.items.rend(); ++item)
    mark_last_use(*item, met);
  if (recipe.kind != RecipeKind::kTensor)
    return;
  recipe.is_last_use = !met[recipe.index];
  met[recipe.index] = true;
}

// Past the end when the client does not send the argument, or the server does not have it.
size_t client_index(const Callee& callee, const std::string& name) {
  if (!knows(callee, name))
    return callee.arguments.size();
  const auto found = std::find(callee.arguments.begin(), callee.arguments.end(), name);
  return static_cast<size_t>(found - callee.arguments.begin());
}

Recipe make_argument(const wire::Signature& signature, const Callee& callee,
                     const std::vector<Cursor>& begins, const c10::Argument& argument,
                     c10::Device device) {
  const size_t index = client_index(callee, argument.name());
  if (index < signature.arguments.size()) {
    try {
      return make_recipe(*argument.real_type(), signature.arguments[index], begins[index], device);
    } catch (const Refusal& refusal) {
      throw Refusal{"argument " + argument.name() + " " + refusal.text};
    }
  }
  if (!argument.default_value())
    throw Refusal{"argument " + argument.name() + " is not known to the client's torch"};
  Recipe recipe;
  recipe.constant = *argument.default_value();
  return recipe;
}

void add_arguments(Plan& plan, const wire::Signature& signature, const Callee& callee,
                   const std::vector<Cursor>& begins, c10::Device device) {
  for (TensorRecipe& tensor : plan.tensors)
    tensor.is_read = false;
  for (const c10::Argument& argument : callee.schema->arguments()) {
    Recipe recipe = make_argument(signature, callee, begins, argument, device);
    mark_access(plan, recipe, access_of(argument, callee));
    if (is_generator(*argument.type()) && recipe.kind == RecipeKind::kConstant)
      plan.takes_no_generator = true;
    plan.arguments.push_back(std::move(recipe));
  }
  std::vector<bool> met(plan.tensors.size());
  for (auto argument = plan.arguments.rbegin(); argument != plan.arguments.rend(); ++argument)
    mark_last_use(*argument, met);
}

// An argument that the server's torch does not have must have its default value.
void check_unknown(const wire::Signature& signature, const Callee& callee) {
  for (size_t i = 0; i < callee.arguments.size(); ++i) {
    if (knows(callee, callee.arguments[i]))
      continue;
    const auto& defaults = signature.defaults;
    if (std::find(defaults.begin(), defaults.end(), i) != defaults.end())
      continue;
    throw Refusal{"argument " + callee.arguments[i] + " is not known to this server's torch"};
  }
}

uint32_t count_fresh(const std::vector<wire::Output>& outputs) {
  uint32_t count = 0;
  for (const wire::Output& output : outputs)
    count += output.kind == wire::OutputKind::kFresh ? 1 : count_fresh(output.items);
  return count;
}

// --- memory

template <typename Items>
uint64_t bytes_of(const Items& items) {
  return items.capacity() * sizeof(items[0]);
}

uint64_t bytes_of_recipes(const std::vector<Recipe>& recipes) {
  uint64_t bytes = bytes_of(recipes);
  for (const Recipe& recipe : recipes)
    bytes += bytes_of(recipe.kinds) + bytes_of_recipes(recipe.items);
  return bytes;
}

uint64_t bytes_of_outputs(const std::vector<wire::Output>& outputs) {
  uint64_t bytes = bytes_of(outputs);
  for (const wire::Output& output : outputs)
    bytes += bytes_of(output.spec.sizes) + bytes_of(output.spec.strides) +
             bytes_of_outputs(output.items);
  return bytes;
}

// A constant is a list of one-byte numbers at worst, each of which becomes an IValue.
constexpr uint64_t kConstantFactor = sizeof(c10::IValue);

}  // namespace

uint64_t memory_of(const Plan& plan, uint64_t encoded) {
  uint64_t bytes = sizeof(plan) + encoded * kConstantFactor + plan.refusal.size();
  bytes += bytes_of(plan.steps) + bytes_of(plan.scalar_kinds) + bytes_of(plan.tensors) +
           bytes_of(plan.sparse) + bytes_of(plan.storages);
  return bytes + bytes_of_recipes(plan.arguments) + bytes_of_outputs(plan.outputs);
}

bool knows(const Callee& callee, const std::string& argument) {
  return callee.schema->argumentIndexWithName(argument).has_value() &&
         (callee.claimed == nullptr || callee.claimed->argumentIndexWithName(argument).has_value());
}

Plan make_plan(const wire::Signature& signature, const Callee& callee, c10::Device device) {
  if (callee.arguments.size() != signature.arguments.size())
    throw ProtocolError("a signature and its operator have different numbers of arguments");
  Plan plan;
  plan.device = signature.device;
  plan.grad_mode = signature.grad_mode;
  plan.storages = signature.storages;
  plan.outputs_known = signature.outputs_known;
  plan.outputs = signature.outputs;
  plan.fresh_outputs = count_fresh(plan.outputs);
  const std::vector<Cursor> begins = Layout(plan).lay_out(signature.arguments);
  if (callee.schema == nullptr) {
    plan.refusal = callee.refusal;
    return plan;
  }
  try {
    check_unknown(signature, callee);
    add_arguments(plan, signature, callee, begins, device);
  } catch (const Refusal& refusal) {
    plan.refusal = refusal.text;
    plan.arguments.clear();
  }
  return plan;
}

}  // namespace torch_remote::marshal
