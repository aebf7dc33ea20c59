#include "redirect/host_allocator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "redirect/ref.h"

namespace torch_remote::redirect {
namespace {

PyObject* shortage_handler = nullptr;

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}

  ~Gil() { PyGILState_Release(state_); }

  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

thread_local bool is_asking = false;

// What the handler says; empty where it cannot be asked: a thread inside a parallel loop might wait
// for the GIL of the thread that waits for the loop.
std::string ask_handler(const std::string& text, int attempt) {
  if (is_asking || at::in_parallel_region() || Py_IsInitialized() == 0)
    return {};
  const Gil gil;
  if (shortage_handler == nullptr || PyErr_Occurred() != nullptr)
    return {};
  is_asking = true;
  const Ref answer =
      Ref::steal(PyObject_CallFunction(shortage_handler, "si", text.c_str(), attempt));
  is_asking = false;
  const char* const said = answer ? PyUnicode_AsUTF8(answer.get()) : nullptr;
  if (said == nullptr)
    PyErr_WriteUnraisable(shortage_handler);
  return said == nullptr ? std::string() : std::string(said);
}

// Whether the allocator failed for lack of memory, and not for an argument. Torch has no class of
// errors for that on the CPU.
bool is_shortage(const std::string& text) {
  constexpr std::array<std::string_view, 3> kTexts = {"can't allocate memory", "not enough memory",
                                                      "out of memory"};
  return std::any_of(kTexts.begin(), kTexts.end(),
                     [&](std::string_view each) { return text.find(each) != std::string::npos; });
}

// Memory that is counted while a limit is set.
struct Counted {
  c10::DataPtr memory;
  int64_t bytes = 0;
};

std::atomic<int64_t> counted_bytes{0};  // allocated while a limit was set, and not freed yet
std::atomic<int64_t> allowed_bytes{0};  // 0: no limit
std::atomic<int64_t> bytes_before{0};

void free_counted(void* context) {
  const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
  counted_bytes.fetch_sub(counted->bytes, std::memory_order_relaxed);
}

// Thread-safe. Lives for ever: storages point to it.
class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(c10::Allocator& original) : original_(original) {}

  c10::DataPtr allocate(size_t bytes) override {
    try {
      return allocate_once(bytes);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      if (!is_shortage(text))
        throw;
      return allocate_again(bytes, text);
    }
  }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return original_.is_simple_data_ptr(data);
  }

  // Memory that is counted has another deleter: raw_allocate() refuses it.
  c10::DeleterFnPtr raw_deleter() const override { return original_.raw_deleter(); }

  void copy_data(void* dest, const void* src, size_t count) const override {
    original_.copy_data(dest, src, count);
  }

  c10::Allocator& original() const { return original_; }

 private:
  c10::DataPtr allocate_once(size_t bytes) {
    const int64_t allowed = allowed_bytes.load(std::memory_order_relaxed);
    return allowed == 0 ? original_.allocate(bytes) : allocate_counted(bytes, allowed);
  }

  c10::DataPtr allocate_counted(size_t bytes, int64_t allowed) {
    const auto size = static_cast<int64_t>(bytes);
    const int64_t others = counted_bytes.fetch_add(size, std::memory_order_relaxed) +
                           bytes_before.load(std::memory_order_relaxed);
    try {
      TORCH_CHECK(size <= allowed - others, "CPU out of memory. Tried to allocate ", bytes,
                  " bytes. set_per_process_memory_fraction() allows ", allowed,
                  " bytes, and this process has ", others);
      auto counted = std::make_unique<Counted>(Counted{original_.allocate(bytes), size});
      void* const data = counted->memory.get();
      return {data, counted.release(), &free_counted, c10::Device(c10::DeviceType::CPU)};
    } catch (...) {
      counted_bytes.fetch_sub(size, std::memory_order_relaxed);
      throw;
    }
  }

  c10::DataPtr allocate_again(size_t bytes, const std::string& first_error) {
    ask_handler(first_error, 0);
    try {
      return allocate_once(bytes);
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      const std::string said = ask_handler(text, 1);
      TORCH_CHECK_WITH(OutOfMemoryError, false, said.empty() ? text : said);
    }
  }

  c10::Allocator& original_;
};

HostAllocator* installed = nullptr;

}  // namespace

void install_host_allocator(PyObject* on_shortage) {
  Ref::steal(std::exchange(shortage_handler, Ref::share(on_shortage).release()));
  if (installed != nullptr)
    return;
  installed = new HostAllocator(*c10::GetCPUAllocator());
  c10::SetCPUAllocator(installed);
}

void remove_host_allocator() {
  Ref::steal(std::exchange(shortage_handler, nullptr));
  set_host_limit(0, 0);
  // Another allocator may have been set since: it stays, and may use ours.
  if (installed == nullptr || c10::GetCPUAllocator() != installed)
    return;
  c10::SetCPUAllocator(&installed->original());
  installed = nullptr;
}

void set_host_limit(uint64_t allowed, uint64_t before) {
  bytes_before.store(static_cast<int64_t>(before) - counted_bytes.load(std::memory_order_relaxed),
                     std::memory_order_relaxed);
  allowed_bytes.store(static_cast<int64_t>(allowed), std::memory_order_relaxed);
}

}  // namespace torch_remote::redirect
