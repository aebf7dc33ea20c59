#pragma once

#include <string>
#include <vector>

namespace torch_remote::server {

// The operators of one version of torch as text: a line "# torch 2.11.0", then one schema a line
// (tools/record_schemas.py).
struct SchemaFile {
  std::string torch_version;
  std::vector<std::string> schemas;
};

// Throws std::invalid_argument with a message for the user.
SchemaFile read_schema_file(const std::string& path);

}  // namespace torch_remote::server
