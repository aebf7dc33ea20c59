#include "server/executor/errors.h"

#include <new>
#include <string_view>

#include <c10/util/Exception.h>

#include "base/error.h"
#include "base/text.h"
#include "server/device/out_of_memory.h"
#include "server/executor/storage_table.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

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
