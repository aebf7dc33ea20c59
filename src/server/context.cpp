#include "server/context.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>

#include "base/log.h"
#include "marshal/dtype.h"

namespace torch_remote::server {
namespace {

using Apply = void (*)(at::Context& context, int64_t value);

constexpr int64_t kMaxThreads = 1024;

template <void (at::Context::*set)(bool)>
void set_flag(at::Context& context, int64_t value) {
  (context.*set)(value != 0);
}

// 0: reduced precision and split-k, 1: split-k only, 2: neither.
template <void (at::Context::*set)(bool, bool)>
void set_reduction(at::Context& context, int64_t value) {
  (context.*set)(value == 0, value != 2);
}

// 0 none, 1 ieee, 2 tf32, 3 bf16. Anything else means what PyTorch does unasked, and is left alone.
template <at::Float32Backend backend, at::Float32Op operation>
void set_precision(at::Context& context, int64_t value) {
  static constexpr std::array<at::Float32Precision, 4> kAll = {
      at::Float32Precision::NONE, at::Float32Precision::IEEE, at::Float32Precision::TF32,
      at::Float32Precision::BF16};
  if (value < 0 || value >= static_cast<int64_t>(kAll.size()))
    return;
  context.setFloat32Precision(backend, operation, kAll[static_cast<size_t>(value)]);
}

void set_threads(at::Context& /*context*/, int64_t value) {
  const int64_t threads = std::clamp<int64_t>(value, 1, kMaxThreads);
  if (at::get_num_threads() != threads)
    at::set_num_threads(static_cast<int>(threads));
}

void set_default_dtype(at::Context& /*context*/, int64_t value) {
  if (value < 0 || value >= wire::kDtypeCount)
    throw std::invalid_argument("no such dtype");
  const at::ScalarType dtype = marshal::from_wire(static_cast<wire::Dtype>(value));
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
}

void set_deterministic(at::Context& context, int64_t value) {
  context.setDeterministicAlgorithms(value != 0, value == 2);
}

void set_matmul_precision(at::Context& context, int64_t value) {
  static constexpr std::array<const char*, 3> kNames = {"highest", "high", "medium"};
  if (value < 0 || value >= static_cast<int64_t>(kNames.size())) {
    throw std::invalid_argument("no such matmul precision");
  }
  context.setFloat32MatmulPrecision(kNames[static_cast<size_t>(value)]);
}

void set_linalg_backend(at::Context& context, int64_t value) {
  if (value < 0 || value > 2)
    throw std::invalid_argument("no such linear algebra backend");
  context.setLinalgPreferredBackend(static_cast<at::LinalgBackend>(value));
}

void set_blas_backend(at::Context& context, int64_t value) {
  if (value < 0 || value > 3)
    throw std::invalid_argument("no such BLAS backend");
  context.setBlasPreferredBackend(static_cast<at::BlasBackend>(value));
}

void set_benchmark_limit(at::Context& context, int64_t value) {
  context.setBenchmarkLimitCuDNN(static_cast<int>(std::clamp<int64_t>(value, 0, 1 << 20)));
}

Apply find_setter(wire::Setting setting) {
  using at::Context;
  using wire::Setting;
  switch (setting) {
    case Setting::kThreads:
      return set_threads;
    case Setting::kDefaultDtype:
      return set_default_dtype;
    case Setting::kDeterministic:
      return set_deterministic;
    case Setting::kFillUninitialized:
      return set_flag<&Context::setDeterministicFillUninitializedMemory>;
    case Setting::kCublasTf32:
      return set_precision<at::Float32Backend::CUDA, at::Float32Op::MATMUL>;
    case Setting::kCudnnTf32:
      return set_precision<at::Float32Backend::CUDA, at::Float32Op::CONV>;
    case Setting::kFp16Reduction:
      return set_reduction<&Context::setAllowFP16ReductionCuBLAS>;
    case Setting::kBf16Reduction:
      return set_reduction<&Context::setAllowBF16ReductionCuBLAS>;
    case Setting::kCudnnEnabled:
      return set_flag<&Context::setUserEnabledCuDNN>;
    case Setting::kCudnnBenchmark:
      return set_flag<&Context::setBenchmarkCuDNN>;
    case Setting::kCudnnDeterministic:
      return set_flag<&Context::setDeterministicCuDNN>;
    case Setting::kMkldnnEnabled:
      return set_flag<&Context::setUserEnabledMkldnn>;
    case Setting::kFlashSdp:
      return set_flag<&Context::setSDPUseFlash>;
    case Setting::kEfficientSdp:
      return set_flag<&Context::setSDPUseMemEfficient>;
    case Setting::kMathSdp:
      return set_flag<&Context::setSDPUseMath>;
    case Setting::kCudnnSdp:
      return set_flag<&Context::setSDPUseCuDNN>;
    case Setting::kOverrideableSdp:
      return set_flag<&Context::setSDPUseOverrideable>;
    case Setting::kMatmulPrecision:
      return set_matmul_precision;
    case Setting::kLinalgBackend:
      return set_linalg_backend;
    case Setting::kBlasBackend:
      return set_blas_backend;
    case Setting::kFp16Accumulation:
      return set_flag<&Context::setAllowFP16AccumulationCuBLAS>;
    case Setting::kMkldnnDeterministic:
      return set_flag<&Context::setDeterministicMkldnn>;
    case Setting::kMathSdpReduction:
      return set_flag<&Context::setAllowFP16BF16ReductionMathSDP>;
    case Setting::kMatmulPrecisionCudnn:
      return set_precision<at::Float32Backend::MKLDNN, at::Float32Op::MATMUL>;
    case Setting::kBenchmarkLimitCudnn:
      return set_benchmark_limit;
  }
  throw std::invalid_argument("no such setting");
}

void apply(const wire::SettingValue& setting) {
  try {
    find_setter(setting.setting)(at::globalContext(), setting.value);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "a setting is not available here",
        {{"setting", static_cast<int>(setting.setting)},
         {"value", setting.value},
         {"reason", std::string_view(error.what()).substr(0, 200)}});
  }
}

}  // namespace

void apply_context(const wire::Context& context) {
  // The matmul precision also sets those of the backends, which may have been set otherwise since.
  for (const wire::SettingValue& setting : context.settings) {
    if (setting.setting == wire::Setting::kMatmulPrecision)
      apply(setting);
  }
  for (const wire::SettingValue& setting : context.settings) {
    if (setting.setting != wire::Setting::kMatmulPrecision)
      apply(setting);
  }
}

}  // namespace torch_remote::server
