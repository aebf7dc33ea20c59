#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "client/machines/machines.h"
#include "wire/files.h"

namespace torch_remote::client {

// The files that the server of a device lets its clients read, in the order of their names. Waits.
std::vector<wire::ListedFile> list_files(DevicePlace place);

// A file of the server's that is open there: Note [Files of the server] in wire/files.h.
// Thread-safe: nothing changes after construction.
class RemoteFile {
 public:
  // Waits. `index`: of the device at that place, which has the tensors. Raises if the server cannot
  // or will not open it.
  RemoteFile(DevicePlace place, c10::DeviceIndex index, const std::string& name,
             wire::FileForm form);
  ~RemoteFile();
  RemoteFile(const RemoteFile&) = delete;
  RemoteFile& operator=(const RemoteFile&) = delete;

  // Bytes.
  uint64_t length() const { return opened_.length; }

  const std::vector<std::string>& shards() const { return opened_.shards; }

  // What is in it, by its form. Wait.
  std::vector<wire::FileTensor> tensors() const;
  std::vector<wire::IndexEntry> index_entries() const;

  // A new tensor, which the server fills from byte `begin` of the file on. Does not wait. The part
  // must be inside the file.
  at::Tensor read(const wire::TensorSpec& spec, uint64_t begin) const;

  // The same for elements begin … begin + count of a file that has nothing else.
  at::Tensor read_elements(at::ScalarType dtype, uint64_t begin, uint64_t count) const;

 private:
  template <typename Entry>
  std::vector<Entry> entries(std::vector<Entry> (*decode)(wire::Reader&)) const;

  const c10::DeviceIndex index_;
  Session& session_;
  const uint64_t number_;
  const wire::OpenedFile opened_;
};

}  // namespace torch_remote::client
