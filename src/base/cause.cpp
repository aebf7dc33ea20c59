#include "base/cause.h"

namespace torch_remote {

std::string text_of(const std::exception_ptr& cause) {
  if (cause == nullptr)
    return {};
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace torch_remote
