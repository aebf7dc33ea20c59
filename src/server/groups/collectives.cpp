#include "server/groups/collectives.h"

#include <deque>
#include <numeric>
#include <string_view>

#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include "marshal/schemas.h"
#include "server/groups/collective_call.h"

namespace torch_remote::server {
namespace {

using at::Tensor;
using at::TensorList;
using Tensors = std::vector<Tensor>;
using Work = c10::intrusive_ptr<c10d::Work>;

// Works that have begun. Each is waited for, whatever happens: the engine writes to the memory of
// the session's storages.
class Works {
 public:
  Works() = default;
  Works(const Works&) = delete;
  Works& operator=(const Works&) = delete;

  ~Works() {
    for (const Work& work : works_) {
      try {
        work->wait();
      } catch (const std::exception&) {
        // The error of an earlier one is on its way.
      }
    }
  }

  void add(Work work) { works_.push_back(std::move(work)); }

  void wait() {
    while (!works_.empty()) {
      const Work first = std::move(works_.front());
      works_.pop_front();
      first->wait();
    }
  }

 private:
  std::deque<Work> works_;
};

// Begins a work for each tensor before the first is waited for.
template <typename Begin, typename Finish>
void for_each(TensorList tensors, Begin&& begin, Finish&& finish) {
  std::vector<Target> targets;
  Works works;
  for (const Tensor& tensor : tensors) {
    Tensors flat{targets.emplace_back(tensor).flat()};
    if (tensor.numel() != 0)
      works.add(begin(flat));
  }
  works.wait();
  for (Target& target : targets) {
    finish(target.flat());
    target.finish();
  }
}

void all_reduce_(int64_t group, TensorList tensors, int64_t op) {
  Collective collective(group);
  require(!tensors.empty(), "gets no tensor");
  const Reducing reduces(collective, op, tensors[0]);
  c10d::AllreduceOptions options;
  options.reduceOp = reduces.op;
  for_each(
      tensors, [&](Tensors& flat) { return collective.engine().allreduce(flat, options); },
      [&](Tensor& flat) { reduces.finish(flat); });
}

void reduce_(int64_t group, TensorList tensors, int64_t op, int64_t root) {
  Collective collective(group);
  const Reducing reduces(collective, op, only(tensors));
  c10d::ReduceOptions options;
  options.reduceOp = reduces.op;
  options.rootRank = collective.check_rank(root);
  for_each(
      tensors, [&](Tensors& flat) { return collective.engine().reduce(flat, options); },
      [&](Tensor& flat) {
        if (collective.is_at(root))
          reduces.finish(flat);
      });
}

void broadcast_(int64_t group, TensorList tensors, int64_t root) {
  Collective collective(group);
  c10d::BroadcastOptions options;
  options.rootRank = collective.check_rank(root);
  for_each(
      tensors, [&](Tensors& flat) { return collective.engine().broadcast(flat, options); },
      [](Tensor&) {});
}

void all_gather(int64_t group, TensorList outputs, const Tensor& input) {
  Collective collective(group);
  const int64_t numel = collective.times_ranks(input.numel());
  Tensor from = flat_input(input);
  if (outputs.size() == 1) {
    check_same(outputs[0], input, numel);
    Target target(outputs[0]);
    collective.engine()._allgather_base(target.flat(), from)->wait();
    return target.finish();
  }
  collective.check_for_ranks(outputs);
  for (const Tensor& output : outputs)
    check_same(output, input, input.numel());
  Tensor all = new_flat(numel, input);
  collective.engine()._allgather_base(all, from)->wait();
  spread(all, outputs);
}

void reduce_scatter(int64_t group, TensorList output, TensorList inputs, int64_t op) {
  Collective collective(group);
  const Tensor& result = only(output);
  const int64_t numel = collective.times_ranks(result.numel());
  if (inputs.size() == 1) {
    check_same(inputs[0], result, numel);
  } else {
    collective.check_for_ranks(inputs);
    for (const Tensor& input : inputs)
      check_same(input, result, result.numel());
  }
  Tensor from = inputs.size() == 1 ? flat_input(inputs[0]) : joined(inputs);
  const Reducing reduces(collective, op, result);
  c10d::ReduceScatterOptions options;
  options.reduceOp = reduces.op;
  Target target(result);
  collective.engine()._reduce_scatter_base(target.flat(), from, options)->wait();
  reduces.finish(target.flat());
  target.finish();
}

// The root's tensors, one for each rank; no other rank has any.
void check_at_root(const Collective& collective, int64_t root, TensorList tensors,
                   const Tensor& own) {
  const int64_t wanted = collective.is_at(root) ? collective.size() : 0;
  require(static_cast<int64_t>(tensors.size()) == wanted, "gets ", tensors.size(),
          " tensors at a rank that needs ", wanted);
  for (const Tensor& tensor : tensors)
    check_same(tensor, own, own.numel());
}

void gather(int64_t group, TensorList outputs, const Tensor& input, int64_t root) {
  Collective collective(group);
  c10d::GatherOptions options;
  options.rootRank = collective.check_rank(root);
  check_at_root(collective, root, outputs, input);
  std::vector<Target> targets;
  std::vector<Tensors> to;
  if (!outputs.empty())
    to.emplace_back();
  for (const Tensor& output : outputs)
    to[0].push_back(targets.emplace_back(output).flat());
  Tensors from{flat_input(input)};
  collective.engine().gather(to, from, options)->wait();
  for (Target& target : targets)
    target.finish();
}

void scatter(int64_t group, TensorList output, TensorList inputs, int64_t root) {
  Collective collective(group);
  c10d::ScatterOptions options;
  options.rootRank = collective.check_rank(root);
  check_at_root(collective, root, inputs, only(output));
  std::vector<Tensors> from;
  if (!inputs.empty())
    from.emplace_back();
  for (const Tensor& input : inputs)
    from[0].push_back(flat_input(input));
  Target target(output[0]);
  Tensors to{target.flat()};
  collective.engine().scatter(to, from, options)->wait();
  target.finish();
}

void all_to_all(int64_t group, TensorList outputs, TensorList inputs, at::IntArrayRef output_sizes,
                at::IntArrayRef input_sizes) {
  Collective collective(group);
  require(!outputs.empty() && !inputs.empty(), "gets no tensor");
  std::vector<int64_t> to = collective.divide(outputs, output_sizes);
  std::vector<int64_t> from = collective.divide(inputs, input_sizes);
  for (const TensorList list : {outputs, inputs})
    for (const Tensor& tensor : list)
      check_same(tensor, inputs[0], tensor.numel());
  Tensor sent = joined(inputs);
  Tensor received = new_flat(std::accumulate(to.begin(), to.end(), int64_t{0}), sent);
  collective.engine().alltoall_base(received, sent, to, from)->wait();
  spread(received, outputs);
}

// Does not wait for the other rank, unless many sends are under way: two ranks that send to each
// other, and receive afterwards, would wait for ever.
void send(int64_t group, const Tensor& tensor, int64_t peer, int64_t tag) {
  Collective collective(group);
  require(!collective.is_at(collective.check_rank(peer)), "cannot send to its own rank");
  require(tag >= 0 && tag <= INT32_MAX, "has no tag ", tag);
  Sends& sends = Groups::current().sends();
  if (tensor.is_cpu())
    sends.make_room(tensor.nbytes());
  const c10::InferenceMode off(false);
  Tensors copy{new_flat(tensor.numel(), tensor)};
  copy[0].copy_(tensor.reshape({-1}));
  Work work = collective.engine().send(copy, static_cast<int>(peer), static_cast<int>(tag));
  if (tensor.is_cpu())
    return sends.add(&collective.group(), std::move(work), copy[0].nbytes());
  work->wait();  // orders the streams
}

void recv(int64_t group, TensorList tensor, int64_t peer, int64_t tag) {
  Collective collective(group);
  require(!collective.is_at(collective.check_rank(peer)), "cannot receive from its own rank");
  require(tag >= 0 && tag <= INT32_MAX, "has no tag ", tag);
  Target target(only(tensor));
  Tensors to{target.flat()};
  collective.engine().recv(to, static_cast<int>(peer), static_cast<int>(tag))->wait();
  target.finish();
}

void implement(c10::DispatchKey key) {
  auto& library =
      *new torch::Library(torch::Library::IMPL, marshal::kCollectives, key, __FILE__, __LINE__);
  library.impl("all_reduce_", all_reduce_);
  library.impl("reduce_", reduce_);
  library.impl("broadcast_", broadcast_);
  library.impl("all_gather", all_gather);
  library.impl("reduce_scatter", reduce_scatter);
  library.impl("gather", gather);
  library.impl("scatter", scatter);
  library.impl("all_to_all", all_to_all);
  library.impl("send", send);
  library.impl("recv", recv);
}

// Not for every device: a client in the same process has its own.
bool implement() {
  marshal::define_collectives();
  implement(c10::DispatchKey::CPU);
  implement(c10::DispatchKey::CUDA);
  return true;
}

}  // namespace

std::vector<c10::OperatorName> register_collectives() {
  [[maybe_unused]] static const bool kIsDone = implement();
  std::vector<c10::OperatorName> names;
  for (const std::string_view schema : marshal::kCollectiveSchemas)
    names.emplace_back(
        std::string(marshal::kCollectives) + "::" + std::string(schema.substr(0, schema.find('('))),
        "");
  return names;
}

}  // namespace torch_remote::server
