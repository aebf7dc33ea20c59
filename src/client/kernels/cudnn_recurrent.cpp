#include "client/kernels/cudnn_recurrent.h"

#include <array>

#include <ATen/ops/_cudnn_init_dropout_state.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>

#include "base/mutex.h"
#include "client/backend/generator.h"
#include "client/machines/machines.h"
#include "client/memory/server_branch.h"

namespace torch_remote::client::kernels {
namespace {

// Note [cuDNN's dropout state]
//
// cuDNN keeps the random state of a recurrent network's dropout in a buffer, which it changes in
// place. PyTorch has one buffer for each device. It seeds the buffer from the device's default
// generator at the first use, and again at the first use after that generator was seeded. PyTorch
// reads the drawn seed, so this waits, as on CUDA. We do the same and keep the tensor here.
struct DropoutState {
  Session* session = nullptr;
  at::Tensor buffer;
};

struct DropoutStates {
  Mutex mutex;
  std::array<DropoutState, kMaxDevices> states GUARDED_BY(mutex);
};

DropoutStates& dropout_states() {
  static auto* all = new DropoutStates;
  return *all;
}

at::Tensor new_dropout_state(const at::Tensor& input, double dropout) {
  const auto seed = at::empty({}, input.options().dtype(at::kLong)).random_().item<int64_t>();
  return at::_cudnn_init_dropout_state(dropout, true, seed, input.options().dtype(at::kByte));
}

at::Tensor dropout_state(const at::Tensor& input, const CudnnRecurrent& network) {
  DropoutStates& all = dropout_states();
  const auto index = static_cast<size_t>(input.device().index());
  Session* session = place_of(input).session;
  at::Tensor buffer;
  {
    MutexLock lock(all.mutex);
    if (all.states[index].session == session)
      buffer = all.states[index].buffer;
  }
  if (!network.train || network.dropout <= 0)
    return buffer;
  const bool was_seeded = take_default_reseeded(input.device().index());
  if (buffer.defined() && !was_seeded)
    return buffer;
  DropoutState made{session, new_dropout_state(input, network.dropout)};
  buffer = made.buffer;
  MutexLock lock(all.mutex);
  std::swap(all.states[index], made);
  return buffer;
}

Three run(const CudnnRecurrent& network, const at::Tensor& input, bool batch_first,
          at::IntArrayRef batch_sizes) {
  const auto& [mode, hx, cx, params, has_biases, num_layers, dropout, train, bidirectional] =
      network;
  TORCH_CHECK(hx.is_contiguous(), "rnn: hx is not contiguous");
  TORCH_CHECK(!cx.defined() || cx.is_contiguous(), "rnn: cx is not contiguous");
  const bool has_projections = cx.defined() && cx.sym_size(2) != hx.sym_size(2);
  const c10::SymInt hidden_size = has_projections ? cx.sym_size(2) : hx.sym_size(2);
  const c10::SymInt projection_size = has_projections ? hx.sym_size(2) : 0;
  const int64_t each = (has_biases ? 4 : 2) + (has_projections ? 1 : 0);
  // The weights are separate tensors here: cuDNN's kernel copies them to one buffer each time.
  auto result = at::_cudnn_rnn_symint(
      input, params, each, std::nullopt, hx, cx, static_cast<int64_t>(mode), hidden_size,
      projection_size, num_layers, batch_first, dropout, train, bidirectional,
      c10::fromIntArrayRefSlow(batch_sizes), dropout_state(input, network));
  return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
}

}  // namespace

bool uses_cudnn_rnn(const at::Tensor& input) {
  if (!accepts_cudnn(input))
    return false;
  switch (input.scalar_type()) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
      return true;
    case at::kBFloat16: {
      constexpr uint64_t kFirstWithBFloat16 = 91300;
      constexpr uint32_t kAmpere = 8;
      const wire::Welcome& server = server_of(input);
      const auto& device = server.devices.at(place_of(input).device);
      return server.cudnn >= kFirstWithBFloat16 && device.major >= kAmpere;
    }
    default:
      return false;
  }
}

Three cudnn_rnn(const CudnnRecurrent& network, const at::Tensor& input, bool batch_first) {
  return run(network, input, batch_first, {});
}

Three cudnn_rnn(const CudnnRecurrent& network, const at::Tensor& data,
                const at::Tensor& batch_sizes) {
  TORCH_CHECK(batch_sizes.dim() == 1, "batch_sizes tensor should be 1D");
  TORCH_CHECK(batch_sizes.device().is_cpu(), "batch_sizes tensor should be on CPU, but got ",
              batch_sizes.device());
  const at::Tensor sizes = batch_sizes.contiguous();
  return run(network, data, false,
             {sizes.const_data_ptr<int64_t>(), static_cast<size_t>(sizes.numel())});
}

}  // namespace torch_remote::client::kernels
