#include "client/process/keep_gil.h"

namespace torch_remote::client {

thread_local int KeepGil::depth_ = 0;

}  // namespace torch_remote::client
