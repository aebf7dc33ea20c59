#include "client/call/results.h"

#include "base/error.h"
#include "client/memory/storage.h"
#include "client/session/session.h"
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

constexpr uint64_t kMostParts = 3;  // of a sparse tensor

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
        throw ProtocolError("the server sent the size of an argument in place of a result");
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
      throw ProtocolError("the server returned an argument that the call does not have");
    return tensor_of(capture_.sparse()[number]);
  }

 private:
  at::Tensor fresh(const Result& result) {
    const uint64_t nbytes = std::max(result.nbytes, wire::extent_bytes(result.spec));
    StorageRecord* record =
        make_record(*place_.session, place_.device, device_.index(), nbytes, next_++,
                    RecordPool::kToBeWritten);  // the server has it: not to be announced
    record->announced.store(true, std::memory_order_relaxed);
    record->made_by.store(0, std::memory_order_relaxed);
    return tensor_on(record, result.spec, nbytes, device_);
  }

  at::Tensor argument(uint64_t number) {
    if (number >= capture_.impls().size())
      throw ProtocolError("the server returned an argument that the call does not have");
    return tensor_of(capture_.impls()[number]);
  }

  const Capture& capture_;
  const c10::Device device_;
  const DevicePlace place_;
  uint64_t next_;
};

bool writes(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments,
            const at::Tensor& sparse) {
  for (size_t i = 0; i < arguments.size(); ++i)
    if (info.arguments[i].is_written && arguments[i].isTensor() &&
        arguments[i].toTensor().is_same(sparse))
      return true;
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
      throw ProtocolError("a result rewrites a tensor that the call does not write");
    marshal::replace_parts(sparse, change.sparse, make.parts(change));
  }
  follow_resizes(info, capture, arguments, resized);
}

// Turns a result of a query into a prediction for the signature's next call. `nbytes` gets the size
// of each storage, which may be larger than its tensor.
bool to_output(const Result& result, Output& output, std::vector<uint64_t>& nbytes) {
  switch (result.kind) {
    case ResultKind::kFresh:
      output.kind = OutputKind::kFresh;
      output.spec = result.spec;
      nbytes.push_back(std::max(result.nbytes, wire::extent_bytes(result.spec)));
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
      for (const Result& item : result.items)
        if (!to_output(item, output.items.emplace_back(), nbytes))
          return false;
      return true;
    default:
      return false;
  }
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
  for (const Result& result : results)
    if (!to_output(result, known->outputs.emplace_back(), known->output_bytes))
      return;
  session.order().with_signatures([&](SignatureTable& table) { table.replace(std::move(known)); });
}

}  // namespace

uint64_t names_for(const OperatorInfo& info, const Capture& capture) {
  const bool has_list = std::any_of(info.returns.begin(), info.returns.end(),
                                    [](const ReturnInfo& result) { return result.is_list; });
  if (has_list)
    return wire::kMaxTensors;
  return std::max<uint64_t>(1, kMostParts * (info.returns.size() + capture.sparse().size()));
}

Results take_results(const AnsweredCall& call, const std::vector<wire::Result>& results) {
  check_results(call, results);
  ResultReader make(call.capture, call.device, call.place, call.first_name);
  Results made;
  for (const Result& result : results)
    if (made.size() == call.info.returns.size() && result.kind == ResultKind::kList)
      follow_changes(call.info, call.capture, call.arguments, result.items, make);
    else
      made.push_back(make.read(result));
  if (!call.info.depends_on_data && !call.info.is_foreign && results.size() == made.size())
    remember(*call.place.session, call.signature, results);
  return made;
}

}  // namespace torch_remote::client
