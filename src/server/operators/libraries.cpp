#include "server/operators/libraries.h"

#include <filesystem>
#include <stdexcept>
#include <unordered_set>

#include <dlfcn.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include "base/log.h"

namespace torch_remote::server {
namespace {

// A file of that name in the current folder comes before the loader's search path.
std::string place_of(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? std::filesystem::absolute(path).string() : path;
}

void load(const std::string& path) {
  try {
    if (::dlopen(place_of(path).c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr)
      return;
  } catch (const std::exception& error) {  // thrown while it registers its operators
    throw std::invalid_argument("cannot load the library " + path + ": " + error.what());
  }
  throw std::invalid_argument("cannot load the library " + path + ": " + ::dlerror());
}

}  // namespace

std::vector<c10::OperatorName> load_libraries(const std::vector<std::string>& paths) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::unordered_set<c10::OperatorName> before;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames())
    if (dispatcher.findSchema(name))
      before.insert(name);
  for (const std::string& path : paths)
    load(path);
  std::vector<c10::OperatorName> added;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames())
    if (!before.contains(name) && dispatcher.findSchema(name))
      added.push_back(name);
  if (!paths.empty())
    log(LogLevel::kInfo, "libraries loaded",
        {{"libraries", paths.size()}, {"operators", added.size()}});
  return added;
}

}  // namespace torch_remote::server
