#include "wire/limits.h"

#include <string>

#include "base/error.h"

namespace torch_remote::wire {

void refuse_over_limit(std::string_view what, uint64_t value, uint64_t limit) {
  throw ProtocolError(std::string(what) + ": " + std::to_string(value) + " is over the limit of " +
                      std::to_string(limit));
}

}  // namespace torch_remote::wire
