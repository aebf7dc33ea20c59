#pragma once

#include <string>

namespace torch_remote {

// The path that "~" or "~/x" means, for where no shell has looked: a variable of a service, os.environ. Others as they are.
std::string expand_home(const std::string& path);

struct TokenFile {
  std::string token;     // without the white space around it
  bool is_ours = false;  // nobody but its owner may read or write it
};

// Throws std::runtime_error: "`setting`: reading the token file PATH: No such file or directory".
TokenFile read_token_file(const std::string& setting, const std::string& path);

}  // namespace torch_remote
