#include "server/listener/session_program.h"

#include <algorithm>

#include <unistd.h>

#include "server/listener/session_variables.h"

namespace torch_remote::server {

bool is_for_sessions(std::string_view name) {
  return std::ranges::find(kSessionVariables, name) != kSessionVariables.end();
}

std::vector<std::string> session_environment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (is_for_sessions(text.substr(0, text.find('='))))
      kept.emplace_back(text);
  }
  return kept;
}

SessionProgram session_program(const ServeOptions& options) {
  const auto milliseconds = [](std::chrono::milliseconds time) {
    return std::to_string(time.count()) + "ms";
  };
  std::vector<std::string> arguments{"torch-remote-server", "serve", kExecutedOption};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty())
      arguments.insert(arguments.end(), {name, value});
  };
  add("--device", options.device);
  add("--devices", std::to_string(options.simulated_devices));
  add("--lease", milliseconds(options.lease));
  add("--idle-timeout", milliseconds(options.limits.idle));
  add("--max-lifetime", milliseconds(options.limits.age));
  if (options.max_memory != UINT64_MAX)
    add("--max-memory", std::to_string(options.max_memory) + "B");
  add("--sandbox", to_text(options.sandbox));
  if (options.has_peers)
    arguments.push_back(options.peer_networks.empty() ? "--peers"
                                                      : "--peers=" + options.peer_networks);
  add("--schemas", options.schema_path);
  if (!options.cache.folder.empty()) {
    add("--cache", options.cache.folder);
    add("--cache-size", std::to_string(options.cache.limit) + "B");
  }
  for (const std::string& folder : options.files)
    add("--files", folder);
  add("--cert", options.tls_files.cert);
  add("--key", options.tls_files.key);
  add("--client-ca", options.tls_files.client_ca);
  if (options.parent_pid != 0)
    add("--parent-pid", std::to_string(options.parent_pid));
  for (const std::string& library : options.libraries)
    add("--library", library);
  return {"/proc/self/exe", std::move(arguments)};
}

}  // namespace torch_remote::server
