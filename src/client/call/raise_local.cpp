#include "client/call/raise_local.h"

#include <c10/util/Exception.h>

namespace torch_remote::client {

void raise_as_local(const wire::Error& error) {
  switch (error.kind) {
    case wire::ErrorKind::kIndex:
      TORCH_CHECK_INDEX(false, error.message);
    case wire::ErrorKind::kValue:
      TORCH_CHECK_VALUE(false, error.message);
    case wire::ErrorKind::kType:
      TORCH_CHECK_TYPE(false, error.message);
    case wire::ErrorKind::kNotImplemented:
      TORCH_CHECK_NOT_IMPLEMENTED(false, error.message);
    case wire::ErrorKind::kLinalg:
      TORCH_CHECK_LINALG(false, error.message);
    case wire::ErrorKind::kOutOfMemory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.message);
    case wire::ErrorKind::kAccelerator:
      throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 0,
                                  error.message);
    default:
      TORCH_CHECK(false, error.message);
  }
}

}  // namespace torch_remote::client
