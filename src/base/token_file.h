#pragma once

#include <string>

namespace torch_remote {

// Replaces a leading "~", which no shell expands in the variables of a service or in os.environ.
std::string expand_home(const std::string& path);

struct TokenFile {
  std::string token;        // without the white space around it
  bool is_private = false;  // only its owner may read or write it
  bool is_trusted = false;  // its owner is this user or root; another could read and change it
};

// Throws std::runtime_error: "`setting`: reading the token file PATH: No such file or directory".
TokenFile read_token_file(const std::string& setting, const std::string& path);

}  // namespace torch_remote
