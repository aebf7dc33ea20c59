#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "base/hash.h"
#include "base/mutex.h"
#include "client/backend/allocator.h"
#include "client/call/dispatch.h"
#include "client/kernels/composite.h"
#include "client/memory/server_branch.h"
#include "client/process/context.h"

namespace torch_remote::client::kernels {
namespace {

// PyTorch's numbers for its attention backends.
enum Backend : int64_t { kMath = 0, kFlash = 1, kEfficient = 2, kCudnn = 3 };

struct Attention {
  const at::Tensor& query;
  const at::Tensor& key;
  const at::Tensor& value;
  std::optional<at::Tensor> mask;
  double dropout_p;
  bool is_causal;
  std::optional<double> scale;
  bool enable_gqa;

  bool needs_grad() const {
    return at::GradMode::is_enabled() &&
           (query.requires_grad() || key.requires_grad() || value.requires_grad());
  }
};

// The sizes in the question to the server. For a symbolic size, which stands for many, it is a
// common size with contiguous strides.
std::vector<int64_t> sizes_asked_about(const at::Tensor& tensor) {
  constexpr int64_t kCommon = 64;
  std::vector<int64_t> sizes;
  for (const c10::SymInt& size : tensor.sym_sizes())
    sizes.push_back(size.maybe_as_int().value_or(kCommon));
  return sizes;
}

std::vector<int64_t> strides_asked_about(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    return c10::TensorType::contiguousStridesOf(sizes_asked_about(tensor));
  return tensor.strides().vec();
}

void describe(wire::Writer& writer, const at::Tensor& tensor) {
  writer.u8(static_cast<uint8_t>(tensor.scalar_type()));
  writer.u8(static_cast<uint8_t>(tensor.dim()));
  writer.u8(tensor.requires_grad());
  for (const int64_t size : sizes_asked_about(tensor))
    writer.varint(static_cast<uint64_t>(size));
  for (const int64_t stride : strides_asked_about(tensor))
    writer.varint(static_cast<uint64_t>(stride));
}

std::string choice_key(const Attention& call) {
  wire::Writer writer;
  writer.u64(reinterpret_cast<uint64_t>(place_of(call.query).session));
  for (const at::Tensor* tensor : {&call.query, &call.key, &call.value})
    describe(writer, *tensor);
  writer.u8(call.mask.has_value());
  if (call.mask.has_value())
    describe(writer, *call.mask);
  writer.u8(static_cast<uint8_t>((call.dropout_p > 0) | call.is_causal << 1 | call.enable_gqa << 2 |
                                 at::GradMode::is_enabled() << 3));
  const ContextValues context = marshal::read_context();
  writer.raw(std::as_bytes(std::span(context)));
  const auto view = writer.view();
  return {reinterpret_cast<const char*>(view.data()), view.size()};
}

// The tensor in the question to the server. For a wrapped tensor it is a remote one of the same
// sizes (Note [Wrapped tensors]).
at::Tensor asked_about(const at::Tensor& tensor) {
  if (own_record(*tensor.unsafeGetTensorImpl()) != nullptr)
    return tensor;
  const c10::DeviceGuard guard(tensor.device());
  return at::detail::empty_strided_generic(
      sizes_asked_about(tensor), strides_asked_about(tensor), &RemoteAllocator::instance(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), tensor.scalar_type());
}

// Bypasses the dispatcher: its modes would record the question as part of what they trace.
int64_t ask_choice(const Attention& call) {
  static const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sdp_choice", "");
  std::optional<at::Tensor> mask = call.mask;
  if (mask.has_value())
    mask = asked_about(*mask);
  torch::jit::Stack stack = {asked_about(call.query),
                             asked_about(call.key),
                             asked_about(call.value),
                             mask,
                             call.dropout_p,
                             call.is_causal,
                             call.scale,
                             call.enable_gqa};
  dispatch(operation, &stack);
  return stack[0].toInt();
}

// The server's own choice, asked once for each kind of call.
int64_t remembered_choice(const Attention& call) {
  static auto* mutex = new Mutex;
  static auto* choices = new std::unordered_map<std::string, int64_t>;
  constexpr size_t kMost = 4096;
  const std::string key = choice_key(call);
  {
    MutexLock lock(*mutex);
    const auto found = choices->find(key);
    if (found != choices->end())
      return found->second;
  }
  const int64_t choice = ask_choice(call);
  MutexLock lock(*mutex);
  if (choices->size() >= kMost)
    choices->clear();
  choices->emplace(key, choice);
  return choice;
}

// PyTorch's function for a CPU, which looks at metadata only.
int64_t cpu_choice(const Attention& call) {
  return at::_ops::_fused_sdp_choice::redispatch(
      c10::DispatchKeySet(c10::DispatchKey::CPU), call.query, call.key, call.value, call.mask,
      call.dropout_p, call.is_causal, call.scale, call.enable_gqa);
}

void check(const Attention& call) {
  const auto& [query, key, value, mask, dropout_p, is_causal, scale, gqa] = call;
  TORCH_CHECK(
      query.dtype() == key.dtype() && query.dtype() == value.dtype(),
      "Expected query, key, and value to have the same dtype, but got query.dtype: ", query.dtype(),
      " key.dtype: ", key.dtype(), " and value.dtype: ", value.dtype(), " instead.");
  TORCH_CHECK(query.device() == key.device() && query.device() == value.device(),
              "Expected query, key, and value to have the same device type, but got query.device: ",
              query.device(), " key.device: ", key.device(), " and value.device: ", value.device(),
              " instead.");
  TORCH_CHECK(
      query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2,
      "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: ",
      query.dim(), " key.dim: ", key.dim(), " and value.dim: ", value.dim(), " instead.");
  if (!mask.has_value())
    return;
  TORCH_CHECK(
      mask->dtype() == at::kBool || mask->dtype() == at::kFloat || mask->dtype() == query.dtype(),
      "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
      "attn_mask.dtype: ",
      mask->dtype(), " and  query.dtype: ", query.dtype(), " instead.");
}

// The mask's value for a key to leave out: up to torch 2.11 finite for cuDNN (pytorch#177868).
double masked_value(const Attention& call, int64_t backend) {
  constexpr double kMostNegativeHalf = -65504;
  const bool is_finite =
      backend == kCudnn && server_of(call.query).torch_version.starts_with("2.11.");
  return is_finite ? kMostNegativeHalf : -std::numeric_limits<double>::infinity();
}

// Turns a bool mask into numbers to add, with the calls that PyTorch makes: True (takes part in
// attention) becomes 0.
std::optional<at::Tensor> additive(const Attention& call, int64_t backend) {
  if (!call.mask.has_value() || call.mask->scalar_type() != at::kBool)
    return call.mask;
  const at::TensorOptions options =
      at::TensorOptions().dtype(call.query.dtype()).device(call.mask->device());
  return at::where(*call.mask, 0.0, at::scalar_tensor(masked_value(call, backend), options));
}

at::Tensor math(const Attention& call) {
  return std::get<0>(at::_scaled_dot_product_attention_math(
      call.query, call.key, call.value, call.mask, call.dropout_p, call.is_causal, std::nullopt,
      call.scale, call.enable_gqa));
}

at::Tensor flash_on_cuda(const Attention& call) {
  constexpr int64_t kAlignment = 8;
  const int64_t width = call.query.sym_size(-1).guard_int(__FILE__, __LINE__);
  auto padded = [](const at::Tensor& tensor) {
    const int64_t rest = tensor.sym_size(-1).guard_int(__FILE__, __LINE__) % kAlignment;
    return rest == 0 ? tensor : at::pad(tensor, {0, kAlignment - rest});
  };
  const double scale = call.scale.value_or(1.0 / std::sqrt(static_cast<double>(width)));
  at::Tensor out = std::get<0>(at::_scaled_dot_product_flash_attention(
      padded(call.query), padded(call.key), padded(call.value), call.dropout_p, call.is_causal,
      false, scale));
  return out.sym_size(-1) == width ? out : out.slice(-1, 0, width);
}

// The kernel wants a mask expanded to all heads, with aligned rows.
at::Tensor mask_for_efficient(const Attention& call) {
  constexpr int64_t kAlignment = 16;
  const std::vector<c10::SymInt> sizes = {call.query.sym_size(0), call.query.sym_size(1),
                                          call.query.sym_size(2), call.key.sym_size(2)};
  const at::Tensor mask = call.mask->expand_symint(sizes);
  const c10::SymInt last = mask.sym_size(-1);
  if (last % kAlignment != 0) {
    const std::vector<c10::SymInt> padding = {0, kAlignment - last % kAlignment};
    return at::pad_symint(mask, padding).slice_symint(-1, 0, last);
  }
  for (const int64_t dim : {0, 1, 2})
    if (mask.sym_stride(dim) % kAlignment != 0)
      return mask.contiguous();
  return mask;
}

at::Tensor on_cuda(Attention& call, int64_t backend) {
  switch (backend) {
    case kFlash:
      return flash_on_cuda(call);
    case kEfficient:
      if (call.mask.has_value())
        call.mask = mask_for_efficient(call);
      return std::get<0>(at::_scaled_dot_product_efficient_attention(
          call.query, call.key, call.value, call.mask, call.needs_grad(), call.dropout_p,
          call.is_causal, call.scale));
    case kCudnn:
      return std::get<0>(at::_scaled_dot_product_cudnn_attention(
          call.query, call.key, call.value, call.mask, call.needs_grad(), call.dropout_p,
          call.is_causal, false, call.scale));
    default:
      return math(call);
  }
}

// Without a query row or a key the result is zeros, which depend on the inputs for autograd.
at::Tensor zeros_for_empty(const Attention& call) {
  std::vector<c10::SymInt> sizes = call.query.sym_sizes().vec();
  sizes.back() = call.value.sym_size(-1);
  const at::Tensor inputs = call.query.sum().add(call.key.sum()).add(call.value.sum());
  return at::zeros_symint(sizes, call.query.options()).add(inputs.mul(0));
}

bool is_empty_call(const Attention& call) {
  auto is_zero = [](const c10::SymInt& size) { return TORCH_GUARD_OR_FALSE(size.sym_eq(0)); };
  const auto sizes = call.query.sym_sizes();
  return is_zero(call.key.sym_size(-2)) || is_zero(call.value.sym_size(-1)) ||
         std::any_of(sizes.begin(), sizes.end() - 1, is_zero);
}

}  // namespace

int64_t attention_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  if (!is_on_cpu_server(query))
    return kMath;
  return cpu_choice({query, key, value, mask, dropout_p, is_causal, scale, enable_gqa});
}

at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout_p,
                                        bool is_causal, std::optional<double> scale,
                                        bool enable_gqa) {
  Attention call{query, key, value, mask, dropout_p, is_causal, scale, enable_gqa};
  check(call);
  if (is_empty_call(call))
    return zeros_for_empty(call);
  const bool cpu = is_on_cpu_server(query);
  const int64_t backend = cpu ? cpu_choice(call) : remembered_choice(call);
  TORCH_CHECK(backend >= 0, "No viable backend for scaled_dot_product_attention was found.");
  call.mask = additive(call, backend);
  if (!cpu)
    return on_cuda(call, backend);
  if (backend != kFlash)
    return math(call);
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p,
                                                                     is_causal, call.mask, scale));
}

}  // namespace torch_remote::client::kernels
