#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/session/serve.h"

namespace torch_remote::server {

// What a listener executes for each session.
struct SessionProgram {
  std::string path;
  std::vector<std::string> arguments;  // begins with the program's name
};

// The option that makes the program a session of a listener.
inline constexpr const char* kExecutedOption = "--executed-session";

// This program, also when its file has been replaced since, with the arguments for these options.
// The token is not among them.
SessionProgram session_program(const ServeOptions& options);

// The part of our environment that a session needs: what libtorch, CUDA, OpenMP, the C library and
// our log read. Everything else, such as the credentials of a cloud, is kept from it.
std::vector<std::string> session_environment();
// Whether a variable is part of it.
bool is_for_sessions(std::string_view name);

}  // namespace torch_remote::server
