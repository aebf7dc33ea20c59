#include "server/operators/schema_file.h"

#include <cerrno>
#include <fstream>
#include <stdexcept>

#include "base/error.h"

namespace torch_remote::server {
namespace {

constexpr std::string_view kFirstLine = "# torch ";

}  // namespace

SchemaFile read_schema_file(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw std::invalid_argument(describe_errno("cannot read schemas from " + path, errno));
  std::string line;
  if (!std::getline(file, line) || !line.starts_with(kFirstLine)) {
    throw std::invalid_argument("cannot read schemas from " + path +
                                ": the first line is not \"# torch VERSION\"");
  }
  SchemaFile read;
  read.torch_version = line.substr(kFirstLine.size());
  while (std::getline(file, line))
    if (!line.empty())
      read.schemas.push_back(line);
  return read;
}

}  // namespace torch_remote::server
