#include "client/call/files.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/parts.h"

namespace py = pybind11;

namespace torch_remote::bindings {
namespace {

using client::RemoteFile;

std::vector<std::pair<std::string, uint64_t>> list_files(int index) {
  const py::gil_scoped_release no_gil;
  std::vector<std::pair<std::string, uint64_t>> files;
  const auto place = client::Machines::instance().place(static_cast<c10::DeviceIndex>(index));
  for (wire::ListedFile& file : client::list_files(place))
    files.emplace_back(std::move(file.name), file.length);
  return files;
}

std::unique_ptr<RemoteFile> open_file(int index, const std::string& name, int form) {
  const py::gil_scoped_release no_gil;
  const auto device = static_cast<c10::DeviceIndex>(index);
  return std::make_unique<RemoteFile>(client::Machines::instance().place(device), device, name,
                                      static_cast<wire::FileForm>(form));
}

// {name: tensor}, of those that are wanted; nothing waits for the tensors' bytes.
py::dict load(const RemoteFile& file, const std::optional<std::vector<std::string>>& wanted) {
  std::vector<wire::FileTensor> tensors;
  {
    const py::gil_scoped_release no_gil;
    tensors = file.tensors();
  }
  std::set<std::string_view> names;
  if (wanted)
    names.insert(wanted->begin(), wanted->end());
  py::dict loaded;
  for (const wire::FileTensor& tensor : tensors)
    if (!wanted || names.contains(tensor.name))
      loaded[py::str(tensor.name)] = file.read(tensor.spec, tensor.begin);
  return loaded;
}

// [(name of a file, [names of tensors that it has])]
std::vector<std::pair<std::string, std::vector<std::string>>> shards(const RemoteFile& file) {
  const py::gil_scoped_release no_gil;
  std::vector<std::pair<std::string, std::vector<std::string>>> all;
  for (const std::string& shard : file.shards())
    all.emplace_back(shard, std::vector<std::string>());
  for (wire::IndexEntry& entry : file.index_entries())
    all[entry.shard].second.push_back(std::move(entry.name));
  return all;
}

at::Tensor read_elements(const RemoteFile& file, const py::object& dtype, uint64_t begin,
                         uint64_t count) {
  TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()), "a torch.dtype is expected");
  return file.read_elements(reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type, begin, count);
}

}  // namespace

void define_files(py::module_& module) {
  py::class_<RemoteFile>(module, "RemoteFile")
      .def_property_readonly("length", &RemoteFile::length)
      .def("load", torch::wrap_pybind_function(load))
      .def("shards", torch::wrap_pybind_function(shards))
      .def("read", torch::wrap_pybind_function(read_elements));
  module.def("list_files", torch::wrap_pybind_function(list_files));
  module.def("open_file", torch::wrap_pybind_function(open_file));
}

}  // namespace torch_remote::bindings
