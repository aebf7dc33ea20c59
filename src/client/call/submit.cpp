#include "client/call/submit.h"

#include <ATen/EmptyTensor.h>

#include "base/error.h"
#include "client/call/raise_local.h"
#include "client/memory/storage.h"
#include "client/session/context.h"
#include "client/shapes/out_arguments.h"
#include "marshal/dtype.h"
#include "marshal/sparse.h"
#include "wire/limits.h"

namespace torch_remote::client {
namespace {

using wire::Output;
using wire::OutputKind;
using wire::Result;
using wire::ResultKind;

bool equals_default(const OperatorInfo& info, uint32_t index, const c10::IValue& argument) {
  const auto& value = info.handle.schema().arguments()[index].default_value();
  if (!value.has_value() || argument.isTensor() || argument.isTensorList())
    return false;
  return argument.isNone() ? value->isNone() : !value->isNone() && *value == argument;
}

// Arguments equal to the schema's default: a server's operator may lack those.
std::vector<uint32_t> defaults_of(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<uint32_t> defaults;
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    if (equals_default(info, i, arguments[i]))
      defaults.push_back(i);
  }
  return defaults;
}

// Sends a signature, and its operator if the server does not know it. Under the submit lock.
void announce_signature(wire::Writer& writer, SignatureTable& table, Signature& signature,
                        c10::ArrayRef<c10::IValue> arguments, Counters& counters) {
  const OperatorInfo& info = *signature.operation;
  if (table.wire_operators.size() <= info.id)
    table.wire_operators.resize(info.id + 1, 0);
  uint32_t& known = table.wire_operators[info.id];
  const auto defaults =
      signature.match == nullptr ? std::vector<uint32_t>() : defaults_of(info, arguments);
  wire::SignatureParts parts;
  parts.slot = signature.slot;
  parts.introduction = known == 0 ? &info.introduction : nullptr;
  if (known == 0)
    known = ++table.operators_introduced;
  parts.operator_id = known - 1;
  parts.defaults = defaults;
  parts.key = signature.key;
  parts.outputs_known = signature.outputs_known;
  parts.outputs = signature.outputs;
  {
    const wire::Message framed(writer, wire::Tag::kSignature);
    encode(writer, parts);
  }
  signature.announced = true;
  ++counters.signatures_sent;
}

uint64_t bytes_of(const wire::TensorSpec& spec) {
  return wire::extent_bytes(spec);
}

void add_output_bytes(Signature& signature, const Output& output) {
  if (output.kind == OutputKind::kFresh)
    signature.output_bytes.push_back(bytes_of(output.spec));
  for (const Output& item : output.items)
    add_output_bytes(signature, item);
}

// Turns a result of a query into a prediction for the signature's next call. `nbytes` gets the size
// of each storage, which may be larger than its tensor.
bool to_output(const Result& result, Output& output, std::vector<uint64_t>& nbytes) {
  switch (result.kind) {
    case ResultKind::kFresh:
      output.kind = OutputKind::kFresh;
      output.spec = result.spec;
      nbytes.push_back(std::max(result.nbytes, bytes_of(result.spec)));
      return true;
    case ResultKind::kTensor:
      output.kind = OutputKind::kTensor;
      output.tensor = result.tensor;
      return true;
    case ResultKind::kUndefined:
      return true;
    case ResultKind::kInt:
      output.kind = OutputKind::kInt;
      output.integer = result.integer;
      return true;
    case ResultKind::kList:
      output.kind = OutputKind::kList;
      for (const Result& item : result.items) {
        if (!to_output(item, output.items.emplace_back(), nbytes))
          return false;
      }
      return true;
    default:
      return false;
  }
}

at::Tensor tensor_of(const c10::TensorImpl* impl) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
      const_cast<c10::TensorImpl*>(impl)));
}

}  // namespace

void check_match(const Signature& signature, c10::ArrayRef<c10::IValue> arguments,
                 Session& session) {
  const OperatorInfo& info = *signature.operation;
  for (const uint32_t index : signature.match->lacking) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        equals_default(info, index, arguments[index]), info.name, " on ", session.describe(0),
        ": the server's torch ", session.welcome().torch_version, " does not have the argument ",
        info.introduction.arguments[index],
        ", so it must keep its default; for another value the server needs this process's torch");
  }
}

void finish_signature(Signature& signature) {
  for (const Output& output : signature.outputs)
    add_output_bytes(signature, output);
}

at::Tensor tensor_on(StorageRecord* record, const wire::TensorSpec& spec, uint64_t nbytes,
                     c10::Device device) {
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), nbytes,
      c10::DataPtr(reinterpret_cast<void*>(record->address.load(std::memory_order_relaxed)), record,
                   &delete_record, device),
      c10::GetAllocator(c10::kPrivateUse1), true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(marshal::from_wire(spec.dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(spec.sizes, spec.strides);
  if (spec.conj)
    tensor._set_conj(true);
  if (spec.neg)
    tensor._set_neg(true);
  return tensor;
}

Outputs::Outputs(const Signature& signature, const Capture& capture, c10::Device device,
                 DevicePlace place)
    : device_(device), place_(place) {
  for (const Output& output : signature.outputs)
    results_.push_back(make(output, signature, capture));
}

at::Tensor Outputs::make_tensor(const wire::TensorSpec& spec, uint64_t nbytes) {
  StorageRecord* record = make_record(*place_.session, place_.device, device_.index(), nbytes);
  fresh_.push_back(record);
  return tensor_on(record, spec, nbytes, device_);
}

c10::IValue Outputs::make(const Output& output, const Signature& signature,
                          const Capture& capture) {
  switch (output.kind) {
    case OutputKind::kUndefined:
      return at::Tensor();
    case OutputKind::kFresh:
      return make_tensor(output.spec, signature.output_bytes[next_bytes_++]);
    case OutputKind::kTensor:
      return tensor_of(capture.impls()[output.tensor]);
    case OutputKind::kInt:
      return output.integer;
    case OutputKind::kList:
      break;
  }
  c10::List<at::Tensor> list;
  list.reserve(output.items.size());
  for (const Output& item : output.items)
    list.push_back(make(item, signature, capture).toTensor());
  return list;
}

void Outputs::encode_names(wire::Writer& writer, wire::NameState& names, uint64_t call,
                           uint64_t thread) const {
  for (StorageRecord* record : fresh_) {
    wire::encode_name(writer, names, record->name);
    record->note_made(call, thread);
  }
}

bool send_call(Session& session, SignaturePtr& signature, const Capture& capture, Outputs& outputs,
               c10::ArrayRef<c10::IValue> arguments, CallSite site, Request* outcome) {
  bool sent = false;
  session.submit(1, [&](wire::Writer& writer, wire::NameState& names, SignatureTable& table) {
    if (!capture.is_current())
      return false;
    if (signature->slot == Signature::kNotOnWire)
      signature = table.add(signature);
    if (!signature->outputs_known)
      return false;  // another thread added it without outputs: ask the server
    if (!signature->announced)
      announce_signature(writer, table, *signature, arguments, session.stream().counters());
    session.stream().mirror_context(writer);
    const uint64_t call = session.stream().number_call(site);
    const wire::Message framed(writer, outcome == nullptr ? wire::Tag::kCall : wire::Tag::kQuery);
    if (outcome != nullptr) {
      outcome->call = call;
      encode_head(writer, wire::Query{outcome->id, wire::QueryKind::kCheckedCall});
    }
    wire::encode_call(writer, signature->slot);
    capture.encode_slots(writer, names);
    const uint64_t thread = session.stream().last_thread();
    outputs.encode_names(writer, names, call, thread);
    capture.mark_announced(call, thread);
    sent = true;
    return true;
  });
  return sent;
}

namespace {

// A value that is missing is an earlier call's error; this one's own reads as it would locally.
[[noreturn]] void raise_outcome(Session& session, const Request& request, const Capture& capture) {
  if (request.error.call != request.call)
    session.raise_failed(request, &capture);
  raise_as_local(request.error);
}

}  // namespace

void wait_for_outcome(Session& session, const OperatorInfo& info, Signature& signature,
                      const Capture& capture, const std::shared_ptr<Request>& outcome) {
  session.wait_quietly(outcome, info.name.c_str());
  if (outcome->failed)
    raise_outcome(session, *outcome, capture);
  note_not_missing(capture);
  signature.is_doubted = false;
}

namespace {

constexpr uint64_t kMostParts = 3;  // of a sparse tensor

// How many names a queried call may need. Names that it does not use are lost; there are enough.
uint64_t names_for(const OperatorInfo& info, const Capture& capture) {
  const bool has_list = std::any_of(info.returns.begin(), info.returns.end(),
                                    [](const ReturnInfo& result) { return result.is_list; });
  return has_list ? wire::kMaxTensors
                  : kMostParts * (info.returns.size() + capture.sparse().size());
}

class ResultReader {
 public:
  ResultReader(const Capture& capture, c10::Device device, DevicePlace place, uint64_t first)
      : capture_(capture), device_(device), place_(place), next_(first) {}

  c10::IValue read(const Result& result) {
    switch (result.kind) {
      case ResultKind::kNone:
        return {};
      case ResultKind::kUndefined:
        return at::Tensor();
      case ResultKind::kFresh:
        return fresh(result);
      case ResultKind::kTensor:
        return argument(result.tensor);
      case ResultKind::kInt:
        return result.integer;
      case ResultKind::kBool:
        return result.integer != 0;
      case ResultKind::kFloat:
        return result.real;
      case ResultKind::kScalarComplex:
        return c10::complex<double>(result.real, result.imaginary);
      case ResultKind::kString:
        return result.text;
      case ResultKind::kSparse:
        return marshal::join_parts(result.sparse, parts(result));
      case ResultKind::kSparseTensor:
        return sparse_argument(result.tensor);
      case ResultKind::kList:
        break;
      case ResultKind::kResized:  // come after the returns: follow_changes()
      case ResultKind::kRewritten:
        raise(ErrorClass::kProtocol,
              "the server sent the size of an argument in place of a result");
    }
    c10::List<at::Tensor> list;
    for (const Result& item : result.items)
      list.push_back(read(item).toTensor());
    return list;
  }

  marshal::Parts parts(const Result& result) {
    marshal::Parts made;
    for (const Result& part : result.items)
      made.push_back(read(part).toTensor());
    return made;
  }

  at::Tensor sparse_argument(uint64_t number) {
    if (number >= capture_.sparse().size())
      raise(ErrorClass::kProtocol, "the server returned an argument that the call does not have");
    return tensor_of(capture_.sparse()[number]);
  }

 private:
  at::Tensor fresh(const Result& result) {
    const uint64_t nbytes = std::max(result.nbytes, bytes_of(result.spec));
    StorageRecord* record =
        make_record(*place_.session, place_.device, device_.index(), nbytes, next_++);
    record->announced.store(true, std::memory_order_relaxed);
    return tensor_on(record, result.spec, nbytes, device_);
  }

  at::Tensor argument(uint64_t number) {
    if (number >= capture_.impls().size())
      raise(ErrorClass::kProtocol, "the server returned an argument that the call does not have");
    return tensor_of(capture_.impls()[number]);
  }

  const Capture& capture_;
  const c10::Device device_;
  const DevicePlace place_;
  uint64_t next_;
};

bool writes(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
            const at::Tensor& sparse) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (info.arguments[i].is_written && arguments[i].isTensor() &&
        arguments[i].toTensor().is_same(sparse))
      return true;
  }
  return false;
}

// What the call has done to tensors that it has written, besides their elements.
void follow_changes(const OperatorInfo& info, const Capture& capture,
                    c10::ArrayRef<c10::IValue> arguments, const std::vector<Result>& changes,
                    ResultReader& make) {
  std::vector<Result> resized;
  for (const Result& change : changes) {
    if (change.kind != ResultKind::kRewritten) {
      resized.push_back(change);
      continue;
    }
    const at::Tensor sparse = make.sparse_argument(change.tensor);
    if (!writes(info, arguments, sparse) ||
        marshal::from_wire(change.sparse.layout) != sparse.layout())
      raise(ErrorClass::kProtocol, "a result rewrites a tensor that the call does not write");
    marshal::replace_parts(sparse, change.sparse, make.parts(change));
  }
  follow_resizes(info, capture, arguments, resized);
}

// Stores the outputs, so that the next call of this signature need not ask.
void remember(Session& session, const Signature& signature, const std::vector<Result>& results) {
  auto known = c10::make_intrusive<Signature>();
  known->key = signature.key;
  known->hash = signature.hash;
  known->operation = signature.operation;
  known->match = signature.match;
  known->shares_storage = signature.shares_storage;
  known->outputs_known = true;
  for (const Result& result : results) {
    if (!to_output(result, known->outputs.emplace_back(), known->output_bytes))
      return;
  }
  session.stream().with_signatures([&](SignatureTable& table) { table.replace(std::move(known)); });
}

}  // namespace

std::optional<Results> query_call(Session& session, const OperatorInfo& info,
                                  SignaturePtr signature, const Capture& capture,
                                  c10::ArrayRef<c10::IValue> arguments, c10::Device device,
                                  DevicePlace place) {
  const auto request = session.make_request({}, nullptr);
  request->device = place.device;
  const uint64_t names = names_for(info, capture);
  const uint64_t first = session.stream().new_names(std::max<uint64_t>(names, 1));
  request->first_name = first;
  const CallSite site{current_line(), place.device, info.site_number};
  bool sent = false;
  session.submit(1, [&](wire::Writer& writer, wire::NameState& state, SignatureTable& table) {
    if (!capture.is_current())
      return false;
    if (signature->slot == Signature::kNotOnWire)
      signature = table.add(signature);
    if (signature->outputs_known)
      return false;  // another thread has asked meanwhile: its outputs are known
    if (!signature->announced)
      announce_signature(writer, table, *signature, arguments, session.stream().counters());
    session.stream().mirror_context(writer);
    request->call = session.stream().number_call(site);
    const wire::Message framed(writer, wire::Tag::kQuery);
    encode_head(writer, wire::Query{request->id, wire::QueryKind::kCall});
    encode_head(writer, wire::QueriedCall{signature->slot, first, names});
    capture.encode_slots(writer, state);
    capture.mark_announced(0, 0);  // it is waited for
    sent = true;
    return true;
  });
  if (!sent) {
    session.requests().forget(*request);
    return std::nullopt;
  }
  try {
    session.wait_quietly(request, info.name.c_str());
  } catch (...) {
    session.abandon(request);
    throw;
  }
  if (request->failed)
    raise_outcome(session, *request, capture);
  wire::Reader reader(request->body);
  const std::vector<Result> results = wire::decode_results(reader);
  ResultReader make(capture, device, place, first);
  Results made;
  for (const Result& result : results) {
    if (made.size() == info.returns.size() && result.kind == ResultKind::kList)
      follow_changes(info, capture, arguments, result.items, make);
    else
      made.push_back(make.read(result));
  }
  if (made.size() != info.returns.size())
    raise(ErrorClass::kProtocol, "the server sent another number of results than the operator has");
  if (!info.depends_on_data && !info.is_foreign && results.size() == made.size())
    remember(session, *signature, results);
  return made;
}

}  // namespace torch_remote::client
