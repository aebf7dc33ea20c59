#include "client/context.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>

#include "marshal/dtype.h"

namespace torch_remote::client {
namespace {

using wire::Setting;

template <typename T>
void put(ContextValues& values, Setting setting, T value) {
  values[static_cast<size_t>(setting)] = static_cast<int16_t>(value);
}

int16_t deterministic(const at::Context& context) {
  if (!context.deterministicAlgorithms())
    return 0;
  return context.deterministicAlgorithmsWarnOnly() ? 2 : 1;
}

}  // namespace

ContextValues read_context() {
  at::Context& context = at::globalContext();
  ContextValues values = unsent_context();  // what is not read is not sent
  put(values, Setting::kThreads, at::get_num_threads());
  put(values, Setting::kDefaultDtype,
      marshal::to_wire(c10::typeMetaToScalarType(c10::get_default_dtype()))
          .value_or(wire::Dtype::kFloat32));
  put(values, Setting::kDeterministic, deterministic(context));
  put(values, Setting::kFillUninitialized, context.deterministicFillUninitializedMemory());
  put(values, Setting::kMatmulPrecision, context.float32MatmulPrecision());
  put(values, Setting::kFp16Reduction, context.allowFP16ReductionCuBLAS());
  put(values, Setting::kBf16Reduction, context.allowBF16ReductionCuBLAS());
  put(values, Setting::kFp16Accumulation, context.allowFP16AccumulationCuBLAS());
  put(values, Setting::kCudnnEnabled, context.userEnabledCuDNN());
  put(values, Setting::kCudnnBenchmark, context.benchmarkCuDNN());
  put(values, Setting::kBenchmarkLimitCudnn, context.benchmarkLimitCuDNN());
  put(values, Setting::kCudnnDeterministic, context.deterministicCuDNN());
  put(values, Setting::kMkldnnEnabled, context.userEnabledMkldnn());
  put(values, Setting::kMkldnnDeterministic, context.deterministicMkldnn());
  put(values, Setting::kFlashSdp, context.userEnabledFlashSDP());
  put(values, Setting::kEfficientSdp, context.userEnabledMemEfficientSDP());
  put(values, Setting::kMathSdp, context.userEnabledMathSDP());
  put(values, Setting::kCudnnSdp, context.userEnabledCuDNNSDP());
  put(values, Setting::kOverrideableSdp, context.userEnabledOverrideableSDP());
  put(values, Setting::kMathSdpReduction, context.allowFP16BF16ReductionMathSDP());
  put(values, Setting::kLinalgBackend, context.linalgPreferredBackend());
  put(values, Setting::kCublasTf32,
      context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL));
  put(values, Setting::kCudnnTf32,
      context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV));
  put(values, Setting::kMatmulPrecisionCudnn,
      context.float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL));
  return values;
}

uint8_t read_environment() {
  const at::Context& context = at::globalContext();
  const auto dtype = marshal::to_wire(c10::typeMetaToScalarType(c10::get_default_dtype()));
  return static_cast<uint8_t>(static_cast<uint8_t>(dtype.value_or(wire::Dtype::kFloat32)) |
                              (context.deterministicAlgorithms() ? 32 : 0) |
                              (context.deterministicFillUninitializedMemory() ? 64 : 0));
}

wire::Context difference(const ContextValues& before, const ContextValues& now) {
  wire::Context context;
  for (size_t i = 1; i < now.size(); ++i) {
    if (before[i] != now[i])
      context.settings.push_back({static_cast<Setting>(i), now[i]});
  }
  return context;
}

}  // namespace torch_remote::client
