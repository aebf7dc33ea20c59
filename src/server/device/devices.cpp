#include "server/device/devices.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <thread>

#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/error.h"
#include "server/device/cuda_properties.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

constexpr std::string_view kOneCuda = "cuda:";

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "CPU";
}

uint64_t host_memory() {
  const auto pages = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES));
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGE_SIZE));
}

unsigned cuda_devices() {
  if (!at::globalContext().hasCUDA())
    return 0;
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  return static_cast<unsigned>(at::detail::getCUDAHooks().deviceCount());
}

[[noreturn]] void refuse_name(const std::string& wanted) {
  throw std::invalid_argument("--device " + wanted + ": use auto, cpu, cuda or cuda:n");
}

// The n of "cuda:n"; nothing where it is more than any machine has.
std::optional<uint8_t> cuda_index(const std::string& wanted) {
  uint8_t index = 0;  // its range exceeds that of c10::DeviceIndex
  const char* const end = wanted.data() + wanted.size();
  const auto [rest, error] = std::from_chars(wanted.data() + kOneCuda.size(), end, index);
  if (rest != end || error == std::errc::invalid_argument)
    refuse_name(wanted);
  return error == std::errc() ? std::optional(index) : std::nullopt;
}

Devices one_cuda(const std::string& wanted) {
  const std::optional<uint8_t> index = cuda_index(wanted);
  const unsigned count = cuda_devices();
  if (!index || *index >= count) {
    throw std::invalid_argument("--device " + wanted + ": this machine has " +
                                (count == 0 ? "no" : std::to_string(count)) + " CUDA device" +
                                (count > 1 ? "s" : ""));
  }
  return {c10::DeviceType::CUDA, 1, static_cast<c10::DeviceIndex>(*index)};
}

bool ask_mkldnn(const char* question) {
  const auto operation = c10::Dispatcher::singleton().findSchema({question, ""});
  if (!operation)
    return false;
  torch::jit::Stack stack;
  operation->callBoxed(stack);
  return !stack.empty() && stack[0].isBool() && stack[0].toBool();
}

}  // namespace

Devices::Devices(c10::DeviceType type, unsigned count, c10::DeviceIndex first)
    : type_(type), count_(count), first_(first) {}

void check_device_name(const std::string& wanted) {
  if (wanted.starts_with(kOneCuda))
    static_cast<void>(cuda_index(wanted));
  else if (wanted != "auto" && wanted != "cpu" && wanted != "cuda")
    refuse_name(wanted);
}

Devices Devices::choose(const std::string& wanted, unsigned simulated) {
  check_device_name(wanted);
  if (wanted.starts_with(kOneCuda))
    return one_cuda(wanted);
  const unsigned cuda = wanted == "cpu" ? 0 : cuda_devices();
  if (cuda > 0)
    return {c10::DeviceType::CUDA, std::min<unsigned>(cuda, wire::kMaxDevices)};
  if (wanted == "cuda")
    throw std::invalid_argument("--device cuda: this machine has no CUDA device");
  return {c10::DeviceType::CPU, simulated};
}

c10::Device Devices::device(uint8_t index) const {
  if (index >= count_)
    throw ProtocolError("the server has no device " + std::to_string(index));
  if (!is_cuda())
    return {type_};
  return {type_, static_cast<c10::DeviceIndex>(first_ + index)};
}

uint8_t Devices::index_of(c10::Device device) const {
  return is_cuda() && device.is_cuda() ? static_cast<uint8_t>(device.index() - first_) : 0;
}

void Devices::synchronize(uint8_t index) const {
  if (!is_cuda())
    return;
  c10::impl::VirtualGuardImpl(type_).synchronizeDevice(device(index).index());
}

std::vector<wire::DeviceProperties> Devices::properties() const {
  std::vector<wire::DeviceProperties> all(count_);
  for (unsigned i = 0; i < count_; ++i) {
    wire::DeviceProperties& one = all[i];
    if (is_cuda()) {
      one.kind = wire::DeviceKind::kCuda;
      describe_cuda_device(first_ + static_cast<int>(i), one);
    } else {
      one.name = processor_name();
      one.total_memory = host_memory();
      one.multi_processors = std::thread::hardware_concurrency();
    }
  }
  return all;
}

void describe_libraries(wire::Welcome& welcome) {
  welcome.mkldnn = at::globalContext().hasMKLDNN();
  welcome.mkldnn_bf16 = welcome.mkldnn && ask_mkldnn("mkldnn::_is_mkldnn_bf16_supported");
  welcome.mkldnn_fp16 = welcome.mkldnn && ask_mkldnn("mkldnn::_is_mkldnn_fp16_supported");
  const bool has_cudnn = at::globalContext().hasCuDNN();
  welcome.cudnn = has_cudnn ? static_cast<uint64_t>(at::globalContext().versionCuDNN()) : 0;
}

}  // namespace torch_remote::server
