#include "server/executor/failures.h"

#include <new>
#include <string_view>

#include <c10/util/Exception.h>

#include "base/error.h"
#include "base/text.h"
#include "server/device/out_of_memory.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

constexpr size_t kMostText = 2048;

uint64_t memory_of(const wire::Error& failure) {
  constexpr uint64_t kOverhead = 64;  // of shared ownership, and of the allocator
  return sizeof(failure) + kOverhead + failure.operator_name.capacity() +
         failure.message.capacity() + failure.results.capacity() * sizeof(failure.results[0]);
}

using wire::ErrorKind;

// PyTorch's CPU allocator has no exception type for this.
bool is_out_of_host_memory(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  return text.find("DefaultCPUAllocator: can't allocate memory") != text.npos ||
         text.find("DefaultCPUAllocator: not enough memory") != text.npos;
}

ErrorKind kind_of(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr)
    return ErrorKind::kOutOfMemory;
  if (dynamic_cast<const c10::IndexError*>(&error) != nullptr)
    return ErrorKind::kIndex;
  if (dynamic_cast<const c10::ValueError*>(&error) != nullptr)
    return ErrorKind::kValue;
  if (dynamic_cast<const c10::TypeError*>(&error) != nullptr)
    return ErrorKind::kType;
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr)
    return ErrorKind::kNotImplemented;
  if (dynamic_cast<const c10::LinAlgError*>(&error) != nullptr)
    return ErrorKind::kLinalg;
  if (dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr)
    return ErrorKind::kAccelerator;
  if (is_out_of_host_memory(error))
    return ErrorKind::kOutOfMemory;
  return ErrorKind::kRuntime;
}

// CUDA's error codes after which the process must be restarted: uncorrectable memory error, illegal
// address, timeout, destroyed context, assert, and other ways in which a kernel dies.
bool is_lasting(int32_t code) {
  return code == 214 || code == 700 || code == 702 || code == 709 || code == 710 ||
         (code >= 714 && code <= 719);
}

bool ends_device(const c10::Error& error) {
  const auto* const fault = dynamic_cast<const c10::AcceleratorError*>(&error);
  return fault != nullptr && is_lasting(fault->get_error_code());
}

}  // namespace

void StoppedThreads::set_current(uint64_t thread) {
  current_ = thread;
  const auto found = stopped_.find(thread);
  cause_ = found == stopped_.end() ? nullptr : found->second;
}

void StoppedThreads::go_on(uint64_t thread) {
  stopped_.erase(thread);
  if (thread == current_)
    cause_ = nullptr;
}

Cause StoppedThreads::stop(wire::Error failure, uint64_t since) {
  wire::check_limit("stopped threads of a session", stopped_.size() + 1, wire::kMaxStoppedThreads);
  // Kept as long as something is missing because of it.
  failure.message = std::string(cut_text(failure.message, kMostText));
  failure.thread = current_;
  failure.since = since;
  cause_ = keep(std::move(failure));
  stopped_[current_] = cause_;
  replies_.error(0, *cause_);
  return cause_;
}

Cause StoppedThreads::keep(wire::Error failure) {
  const uint64_t bytes = memory_of(failure);
  wire::check_limit("bytes of failed calls", kept_->load() + bytes, kMaxFailureBytes);
  const Cause kept(new wire::Error(std::move(failure)),
                   [bytes, kept = kept_, counted = counted_](const wire::Error* error) {
                     delete error;
                     *kept -= bytes;
                     *counted -= bytes;
                   });
  *kept_ += bytes;
  *counted_ += bytes;
  return kept;
}

wire::Error describe_failure(std::exception_ptr cause, const std::string& operation) {
  wire::Error failure;
  failure.operator_name = operation;
  try {
    std::rethrow_exception(std::move(cause));
  } catch (const ProtocolError&) {
    throw;
  } catch (const ConnectionError&) {
    throw;
  } catch (const Refused& error) {
    failure.kind = ErrorKind::kRefused;
    failure.message = error.what();
  } catch (const c10::Error& error) {
    failure.kind = kind_of(error);
    failure.message = error.what_without_backtrace();
    if (const auto* const limit = dynamic_cast<const LimitReached*>(&error)) {
      failure.wanted = limit->wanted();
      failure.free = limit->free();
    }
    if (ends_device(error))
      throw DeviceLost(std::move(failure));
  } catch (const std::bad_alloc&) {
    failure.kind = ErrorKind::kOutOfMemory;
    failure.message = "the server has no more host memory";
  } catch (const std::exception& error) {
    failure.message = error.what();
  } catch (...) {
    failure.message = "an exception of an unknown type";
  }
  // Cut, because it may be kept for long.
  failure.message.resize(cut_text(failure.message, wire::kMaxErrorText).size());
  return failure;
}

wire::Error describe_any_failure(std::exception_ptr cause, const std::string& operation) {
  wire::Error failure;
  failure.operator_name = operation;
  try {
    return describe_failure(std::move(cause), operation);
  } catch (DeviceLost& lost) {
    failure = std::move(lost.error);
  } catch (const std::exception& error) {
    failure.message = cut_text(error.what(), wire::kMaxErrorText);
  }
  return failure;
}

}  // namespace torch_remote::server
