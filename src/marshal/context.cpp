#include "marshal/context.h"

#include <cstring>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "marshal/dtype.h"

namespace torch_remote::marshal {
namespace {

using at::Context;
using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;
using wire::Setting;

// Note [Members of at::Context]
//
// These private members are read and written directly, because their getters and setters do more:
// getters resolve inherited values, replace "default" by a choice, or raise when the old and the
// new precision interface disagree; setters change other members too. An explicit instantiation may
// name a private member, so this stops compiling when torch renames one.
template <typename Tag, auto member>
struct Reveal {
  friend auto& reveal(Tag, Context& context) { return context.*member; }
};

struct PrecisionTable {};

struct MatmulPrecision {};

struct CudnnTf32 {};

struct Blas {};

auto& reveal(PrecisionTable, Context& context);
auto& reveal(MatmulPrecision, Context& context);
auto& reveal(CudnnTf32, Context& context);
auto& reveal(Blas, Context& context);

template struct Reveal<PrecisionTable, &Context::fp32_precision>;
template struct Reveal<MatmulPrecision, &Context::float32_matmul_precision>;
template struct Reveal<CudnnTf32, &Context::allow_tf32_cudnn>;
template struct Reveal<Blas, &Context::blas_preferred_backend>;

template <bool (Context::*get)() const, void (Context::*set)(bool)>
constexpr SettingAccess flag(Setting setting, const char* name) {
  return {setting,
          name,
          0,
          1,
          [](Context& context) { return int32_t{(context.*get)()}; },
          [](Context& context, int32_t value) { (context.*set)(value != 0); }};
}

// 0: reduced precision and split-k, 1: split-k only, 2: neither.
template <at::CuBLASReductionOption (Context::*get)() const, void (Context::*set)(bool, bool)>
constexpr SettingAccess reduction(Setting setting, const char* name) {
  return {setting,
          name,
          0,
          2,
          [](Context& context) { return static_cast<int32_t>((context.*get)()); },
          [](Context& context, int32_t value) { (context.*set)(value == 0, value != 2); }};
}

// The table has all its keys from the start, so its entries never move.
template <Float32Backend backend, Float32Op operation>
Float32Precision& precision_entry(Context& context) {
  static Float32Precision& entry = reveal(PrecisionTable{}, context).at({backend, operation});
  return entry;
}

constexpr int32_t kTorchDefault = 4;

// What torch 2.13 starts with; 2.11 has no such value and starts with TF32.
template <typename Precision>
constexpr Precision torch_default() {
  if constexpr (requires { Precision::DEFAULT; })
    return Precision::DEFAULT;
  else
    return Precision::TF32;
}

template <Float32Backend backend, Float32Op operation>
void write_precision(Context& context, int32_t value) {
  static_assert(static_cast<int>(Float32Precision::BF16) == 3);
  if (value < kTorchDefault)
    return context.setFloat32Precision(backend, operation, static_cast<Float32Precision>(value));
  precision_entry<backend, operation>(context) = torch_default<Float32Precision>();
}

template <Float32Backend backend, Float32Op operation>
constexpr SettingAccess precision(Setting setting, const char* name) {
  return {setting,
          name,
          0,
          kTorchDefault,
          [](Context& context) {
            return static_cast<int32_t>(precision_entry<backend, operation>(context));
          },
          write_precision<backend, operation>};
}

// --- settings that are not simple flags

int32_t read_threads(Context& /*context*/) {
  return at::get_num_threads();
}

void write_threads(Context& /*context*/, int32_t value) {
  at::set_num_threads(value);
}

int32_t read_default_dtype(Context& /*context*/) {
  return static_cast<int32_t>(
      to_wire(c10::typeMetaToScalarType(c10::get_default_dtype())).value_or(wire::Dtype::kFloat32));
}

void write_default_dtype(Context& /*context*/, int32_t value) {
  const at::ScalarType dtype = from_wire(static_cast<wire::Dtype>(value));
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
}

int32_t read_deterministic(Context& context) {
  if (!context.deterministicAlgorithms())
    return 0;
  return context.deterministicAlgorithmsWarnOnly() ? 2 : 1;
}

void write_deterministic(Context& context, int32_t value) {
  context.setDeterministicAlgorithms(value != 0, value == 2);
}

int32_t read_matmul_precision(Context& context) {
  return static_cast<int32_t>(reveal(MatmulPrecision{}, context));
}

void write_matmul_precision(Context& context, int32_t value) {
  reveal(MatmulPrecision{}, context) = static_cast<at::Float32MatmulPrecision>(value);
}

int32_t read_cudnn_tf32(Context& context) {
  return int32_t{reveal(CudnnTf32{}, context)};
}

void write_cudnn_tf32(Context& context, int32_t value) {
  reveal(CudnnTf32{}, context) = value != 0;
}

int32_t read_linalg_backend(Context& context) {
  return static_cast<int32_t>(context.linalgPreferredBackend());
}

void write_linalg_backend(Context& context, int32_t value) {
  context.setLinalgPreferredBackend(static_cast<at::LinalgBackend>(value));
}

int32_t read_blas_backend(Context& context) {
  return static_cast<int32_t>(reveal(Blas{}, context));
}

void write_blas_backend(Context& context, int32_t value) {
  context.setBlasPreferredBackend(static_cast<at::BlasBackend>(value));
}

int32_t read_benchmark_limit(Context& context) {
  return context.benchmarkLimitCuDNN();
}

void write_benchmark_limit(Context& context, int32_t value) {
  context.setBenchmarkLimitCuDNN(value);
}

constexpr int kSdpDigitBits = 3;
constexpr int32_t kMostSdpOrder = 044444;

int32_t read_sdp_order(Context& context) {
  int32_t packed = 0;
  int shift = 0;
  for (const at::SDPBackend backend : context.sDPPriorityOrder()) {
    packed |= static_cast<int32_t>(backend) << shift;
    shift += kSdpDigitBits;
  }
  return packed;
}

void write_sdp_order(Context& context, int32_t value) {
  std::vector<int64_t> order;
  uint32_t seen = 0;
  for (int i = 0; i < at::num_sdp_backends; ++i) {
    order.push_back((value >> (i * kSdpDigitBits)) & 7);
    seen |= 1U << order.back();
  }
  if (seen != (1U << at::num_sdp_backends) - 1)
    throw std::invalid_argument("not a valid order of the attention backends");
  context.setSDPPriorityOrder(order);
}

// torch 2.11 does not have this setting.
template <typename Any>
int32_t read_depthwise(Any& context) {
  if constexpr (requires { context.cudnnDepthwiseKernel(); })
    return static_cast<int32_t>(context.cudnnDepthwiseKernel());
  else
    return 0;
}

template <typename Any>
void write_depthwise(Any& context, int32_t value) {
  if constexpr (requires { context.cudnnDepthwiseKernel(); })
    context.setCuDNNDepthwiseKernel(static_cast<decltype(context.cudnnDepthwiseKernel())>(value));
  else
    throw std::invalid_argument("this torch has no choice of cuDNN's depthwise kernel");
}

int32_t read_sm_carveout(Context& context) {
  return context._SMCarveout_EXPERIMENTAL().value_or(-1);
}

void write_sm_carveout(Context& context, int32_t value) {
  context._setSMCarveout_EXPERIMENTAL(value < 0 ? std::nullopt : std::optional<int32_t>(value));
}

// PyTorch can only set it. It is a bit of the processor's control word, per thread.
bool flushes_denormal() {
#if defined(__SSE__)
  return (_mm_getcsr() & _MM_FLUSH_ZERO_MASK) == _MM_FLUSH_ZERO_ON;
#elif defined(__aarch64__)
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return (control >> 24 & 1) != 0;
#else
  return false;
#endif
}

int32_t read_flush_denormal(Context& /*context*/) {
  return int32_t{flushes_denormal()};
}

void write_flush_denormal(Context& /*context*/, int32_t value) {
  if (!Context::setFlushDenormal(value != 0))
    throw std::invalid_argument("this processor does not flush denormal numbers");
}

// --- the table

constexpr auto kCuda = Float32Backend::CUDA;
constexpr auto kMkldnn = Float32Backend::MKLDNN;
constexpr int32_t kMaxThreads = 1024;

constexpr std::array<SettingAccess, wire::kMaxSetting> kTable = {{
    {Setting::kThreads, "threads", 1, kMaxThreads, read_threads, write_threads},
    {Setting::kDefaultDtype, "default_dtype", 0, wire::kDtypeCount - 1, read_default_dtype,
     write_default_dtype},
    {Setting::kDeterministic, "deterministic", 0, 2, read_deterministic, write_deterministic},
    flag<&Context::deterministicFillUninitializedMemory,
         &Context::setDeterministicFillUninitializedMemory>(Setting::kFillUninitialized,
                                                            "fill_uninitialized"),
    precision<kCuda, Float32Op::MATMUL>(Setting::kCudaMatmulPrecision, "cuda_matmul_precision"),
    precision<kCuda, Float32Op::CONV>(Setting::kCudaConvPrecision, "cuda_conv_precision"),
    reduction<&Context::allowFP16ReductionCuBLAS, &Context::setAllowFP16ReductionCuBLAS>(
        Setting::kFp16Reduction, "fp16_reduction"),
    reduction<&Context::allowBF16ReductionCuBLAS, &Context::setAllowBF16ReductionCuBLAS>(
        Setting::kBf16Reduction, "bf16_reduction"),
    flag<&Context::userEnabledCuDNN, &Context::setUserEnabledCuDNN>(Setting::kCudnnEnabled,
                                                                    "cudnn_enabled"),
    flag<&Context::benchmarkCuDNN, &Context::setBenchmarkCuDNN>(Setting::kCudnnBenchmark,
                                                                "cudnn_benchmark"),
    flag<&Context::deterministicCuDNN, &Context::setDeterministicCuDNN>(
        Setting::kCudnnDeterministic, "cudnn_deterministic"),
    flag<&Context::userEnabledMkldnn, &Context::setUserEnabledMkldnn>(Setting::kMkldnnEnabled,
                                                                      "mkldnn_enabled"),
    flag<&Context::userEnabledFlashSDP, &Context::setSDPUseFlash>(Setting::kFlashSdp, "flash_sdp"),
    flag<&Context::userEnabledMemEfficientSDP, &Context::setSDPUseMemEfficient>(
        Setting::kEfficientSdp, "efficient_sdp"),
    flag<&Context::userEnabledMathSDP, &Context::setSDPUseMath>(Setting::kMathSdp, "math_sdp"),
    flag<&Context::userEnabledCuDNNSDP, &Context::setSDPUseCuDNN>(Setting::kCudnnSdp, "cudnn_sdp"),
    flag<&Context::userEnabledOverrideableSDP, &Context::setSDPUseOverrideable>(
        Setting::kOverrideableSdp, "overrideable_sdp"),
    {Setting::kMatmulPrecision, "matmul_precision", 0, 2, read_matmul_precision,
     write_matmul_precision},
    {Setting::kLinalgBackend, "linalg_backend", 0, 2, read_linalg_backend, write_linalg_backend},
    {Setting::kBlasBackend, "blas_backend", 0, 3, read_blas_backend, write_blas_backend},
    flag<&Context::allowFP16AccumulationCuBLAS, &Context::setAllowFP16AccumulationCuBLAS>(
        Setting::kFp16Accumulation, "fp16_accumulation"),
    flag<&Context::deterministicMkldnn, &Context::setDeterministicMkldnn>(
        Setting::kMkldnnDeterministic, "mkldnn_deterministic"),
    flag<&Context::allowFP16BF16ReductionMathSDP, &Context::setAllowFP16BF16ReductionMathSDP>(
        Setting::kMathSdpReduction, "math_sdp_reduction"),
    precision<kMkldnn, Float32Op::MATMUL>(Setting::kMkldnnMatmulPrecision,
                                          "mkldnn_matmul_precision"),
    {Setting::kCudnnBenchmarkLimit, "cudnn_benchmark_limit", 0, 1 << 20, read_benchmark_limit,
     write_benchmark_limit},
    precision<kCuda, Float32Op::RNN>(Setting::kCudaRnnPrecision, "cuda_rnn_precision"),
    precision<kCuda, Float32Op::ALL>(Setting::kCudaPrecision, "cuda_precision"),
    precision<kMkldnn, Float32Op::CONV>(Setting::kMkldnnConvPrecision, "mkldnn_conv_precision"),
    precision<kMkldnn, Float32Op::RNN>(Setting::kMkldnnRnnPrecision, "mkldnn_rnn_precision"),
    precision<kMkldnn, Float32Op::ALL>(Setting::kMkldnnPrecision, "mkldnn_precision"),
    precision<Float32Backend::GENERIC, Float32Op::ALL>(Setting::kPrecision, "precision"),
    {Setting::kCudnnTf32, "cudnn_tf32", 0, 1, read_cudnn_tf32, write_cudnn_tf32},
    {Setting::kSdpOrder, "sdp_order", 0, kMostSdpOrder, read_sdp_order, write_sdp_order},
    flag<&Context::userEnabledNNPACK, &Context::setUserEnabledNNPACK>(Setting::kNnpackEnabled,
                                                                      "nnpack_enabled"),
    {Setting::kCudnnDepthwise, "cudnn_depthwise", 0, 2, read_depthwise<Context>,
     write_depthwise<Context>},
    flag<&Context::allowFP16ReductionCPU, &Context::setAllowFP16ReductionCPU>(
        Setting::kFp16ReductionCpu, "fp16_reduction_cpu"),
    {Setting::kSmCarveout, "sm_carveout", -1, 1 << 16, read_sm_carveout, write_sm_carveout},
    {Setting::kFlushDenormal, "flush_denormal", 0, 1, read_flush_denormal, write_flush_denormal},
}};

constexpr bool is_in_order() {
  for (size_t i = 0; i < kTable.size(); ++i)
    if (static_cast<size_t>(kTable[i].setting) != i + 1)
      return false;
  return true;
}

static_assert(is_in_order());

// The addresses that update() reads. They never change.
struct Watched {
  const std::byte* end = reinterpret_cast<const std::byte*>(&at::globalContext() + 1);
  std::array<const Float32Precision*, 9> precisions{};

  Watched() {
    auto& table = reveal(PrecisionTable{}, at::globalContext());
    TORCH_CHECK(table.size() == precisions.size(),
                "this PyTorch has an unexpected number of float32 precision settings");
    size_t next = 0;
    for (const auto& entry : table)
      precisions[next++] = &entry.second;
  }
};

}  // namespace

std::span<const SettingAccess> setting_table() {
  return kTable;
}

ThreadSettings read_thread_settings() {
  return {at::get_num_threads(), int32_t{flushes_denormal()}};
}

ContextValues read_context() {
  Context& context = at::globalContext();
  ContextValues values{};
  for (const SettingAccess& access : kTable)
    values[static_cast<size_t>(access.setting)] = access.read(context);
  return values;
}

bool ContextFingerprint::update(ThreadSettings thread) {
  static const Watched watched;
  const std::byte* from = watched.end - kFlagBytes;
  uint64_t difference = 0;
  for (size_t i = 0; i < flags_.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, from + i * sizeof(word), sizeof(word));
    difference |= word ^ flags_[i];
  }
  uint64_t precisions = 0;
  for (const Float32Precision* precision : watched.precisions)
    precisions = precisions << 3 | static_cast<uint64_t>(*precision);
  const uint64_t others = static_cast<uint64_t>(thread.threads) << 32 |
                          static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 1 |
                          static_cast<uint64_t>(thread.flush_denormal);
  difference |= (precisions ^ precisions_) | (others ^ others_);
  if (difference == 0)
    return false;
  std::memcpy(flags_.data(), from, kFlagBytes);
  precisions_ = precisions;
  others_ = others;
  return true;
}

}  // namespace torch_remote::marshal
