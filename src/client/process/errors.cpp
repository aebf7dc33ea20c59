#include "client/process/errors.h"

#include <cstdlib>
#include <stdexcept>

namespace torch_remote::client {

PythonHooks python_hooks;

std::atomic<bool> is_in_notebook{false};

void raise(ErrorClass kind, const std::string& text, const Session& session) {
  if (python_hooks.raise != nullptr)
    python_hooks.raise(kind, text, session);
  throw std::runtime_error(text);
}

void raise_remote(const wire::Error& error, const std::string& text, RaisedAs as) {
  if (python_hooks.raise_remote != nullptr)
    python_hooks.raise_remote(error, text, as);
  throw std::runtime_error(text);
}

thread_local int KeepGil::depth_ = 0;

}  // namespace torch_remote::client
