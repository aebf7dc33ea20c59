#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/call_filter.h"
#include "base/call_list.h"
#include "base/error.h"

namespace torch_remote {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;  // not filtered
#endif

// Libraries try calls beyond this number, which are newer than the list, and do without them.
constexpr uint32_t kNewestCall = 450;
constexpr uint32_t kClone3 = 435;  // its flags are in memory, where no filter sees them
constexpr uint32_t kOpenat2 = 437;
constexpr uint32_t kIoUringSetup = 425;

constexpr uint32_t kNamespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                 CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

constexpr uint32_t kTmpFile = 020000000;  // of O_TMPFILE
constexpr uint32_t kMakes = O_CREAT | O_TRUNC | kTmpFile;

// The second byte of an ioctl() is its family: those of terminals and sockets can do harm through
// the descriptors that a session has (TIOCSTI types into the terminal of its log).
constexpr uint32_t kPassRights = 83;  // SO_PASSRIGHTS
constexpr uint32_t kFamily = 0xff00;
constexpr uint32_t kTerminals = 0x5400;
constexpr uint32_t kSockets = 0x8900;

static_assert(std::endian::native == std::endian::little, "of the halves of an argument");

constexpr uint32_t low_half(uint32_t argument) {
  return static_cast<uint32_t>(offsetof(seccomp_data, args) + argument * sizeof(uint64_t));
}

// clang-format off
constexpr auto kStoringCalls = std::to_array<int>({
    SYS_openat, SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_linkat, SYS_ftruncate, SYS_utimensat,
    SYS_sendmsg, SYS_flock,
#ifdef SYS_renameat
    SYS_renameat,
#endif
#ifdef __x86_64__
    SYS_open, SYS_mkdir, SYS_unlink, SYS_rename, SYS_link,
#endif
});
// clang-format on

using Program = std::vector<sock_filter>;

// Builds the filter that the kernel runs for each system call. Instructions that look at an
// argument of a call always end with the answer to it: allowed or refused.
class Builder {
 public:
  explicit Builder(bool is_traced) : is_traced_(is_traced) {
    load(offsetof(seccomp_data, arch));
    unless_equal(kArchitecture, {refusal(EPERM)});
    load(offsetof(seccomp_data, nr));
  }

  void allow(uint32_t call) { if_equal(call, {answer(SECCOMP_RET_ALLOW)}); }

  void allow_all(std::span<const int> calls) {
    for (const int call : calls)
      allow(static_cast<uint32_t>(call));
  }

  void refuse(uint32_t call, uint32_t error) { if_equal(call, {refusal(error)}); }

  void allow_values(uint32_t call, uint32_t argument, std::initializer_list<uint32_t> values) {
    Builder block(argument, *this);
    for (const uint32_t value : values)
      block.allow(value);
    block.add(refusal(EPERM));
    if_equal(call, block.program_);
  }

  // Memory that RLIMIT_DATA counts, and files.
  void allow_counted_mmap() {
    Builder block(3, *this);
    block.keep(MAP_SHARED | MAP_ANONYMOUS | MAP_GROWSDOWN);
    for (const int counted : {0, MAP_SHARED, MAP_ANONYMOUS})
      block.allow(static_cast<uint32_t>(counted));
    block.add(refusal(ENOMEM));
    if_equal(SYS_mmap, block.program_);
  }

  // Allowed where the argument has, of the bits `mask`, exactly `wanted`.
  void allow_bits(uint32_t call, uint32_t argument, uint32_t mask, uint32_t wanted,
                  sock_filter allowed = answer(SECCOMP_RET_ALLOW)) {
    Builder block(argument, *this);
    block.keep(mask);
    block.if_equal(wanted, {allowed});
    block.add(refusal(EPERM));
    if_equal(call, block.program_);
  }

  void allow_null(uint32_t call, uint32_t argument) {
    Builder block(argument, *this);
    block.unless_equal(0, {refusal(EPERM)});
    block.load(low_half(argument) + sizeof(uint32_t));
    block.allow(0);
    block.add(refusal(EPERM));
    if_equal(call, block.program_);
  }

  void allow_ioctl(bool of_devices) {
    Builder block(1, *this);
    for (const int harmless : {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX})
      block.allow(static_cast<uint32_t>(harmless));
    block.keep(kFamily);
    block.refuse(kTerminals, EPERM);
    block.refuse(kSockets, EPERM);
    block.add(of_devices ? answer(SECCOMP_RET_ALLOW) : refusal(EPERM));
    if_equal(SYS_ioctl, block.program_);
  }

  // Not whether a socket takes descriptors: take_no_descriptors().
  void allow_setsockopt() {
    Builder name(2, *this);
    name.refuse(kPassRights, EPERM);
    name.add(answer(SECCOMP_RET_ALLOW));
    Builder block(1, *this);
    block.if_equal(SOL_SOCKET, name.program_);
    block.add(answer(SECCOMP_RET_ALLOW));
    if_equal(SYS_setsockopt, block.program_);
  }

  // TCP, and the kernel's lists of this machine's addresses, which libraries read to choose one.
  // Not Unix sockets: services of the machine listen there.
  void allow_tcp_sockets() {
    Builder block(0, *this);
    Builder tcp(1, *this);
    tcp.keep(~static_cast<uint32_t>(SOCK_NONBLOCK | SOCK_CLOEXEC));
    tcp.unless_equal(SOCK_STREAM, {refusal(EPERM)});
    tcp.load(low_half(2));
    tcp.allow(0);
    tcp.allow(IPPROTO_TCP);
    tcp.add(refusal(EPERM));
    for (const uint32_t family : {uint32_t{AF_INET}, uint32_t{AF_INET6}})
      block.if_equal(family, tcp.program_);
    block.unless_equal(AF_NETLINK, {refusal(EPERM)});
    block.load(low_half(2));
    block.allow(NETLINK_ROUTE);
    block.add(refusal(EPERM));
    if_equal(SYS_socket, block.program_);
  }

  // Not F_SETOWN and F_SETSIG, by which the kernel sends signals to others, nor O_ASYNC, by which a
  // terminal does. Nor F_SETPIPE_SZ: the kernel limits the memory of pipes for each user. Locks of
  // parts of files are kernel memory that no limit counts; a driver may want them.
  void allow_fcntl(bool with_locks) {
    Builder flags(2, *this);
    flags.keep(O_ASYNC);
    flags.allow(0);
    flags.add(refusal(EPERM));
    Builder block(1, *this);
    block.if_equal(F_SETFL, flags.program_);
    for (const int harmless : {F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ,
                               F_ADD_SEALS, F_GET_SEALS})
      block.allow(static_cast<uint32_t>(harmless));
    if (with_locks)
      for (const int lock : {F_GETLK, F_SETLK, F_SETLKW})
        block.allow(static_cast<uint32_t>(lock));
    block.add(refusal(EPERM));
    if_equal(SYS_fcntl, block.program_);
  }

  // For a traced process the handler opens the file: Note [Traced calls] in base/call_filter.h.
  sock_filter opened() const { return answer(is_traced_ ? SECCOMP_RET_TRAP : SECCOMP_RET_ALLOW); }

  void open_files_so(uint32_t call) { if_equal(call, {opened()}); }

  Program refuse_the_rest() {
    program_.push_back(BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kNewestCall, 0, 1));
    add(refusal(ENOSYS));
    add(refusal(EPERM));
    return std::move(program_);
  }

  Program allow_the_rest() {
    add(answer(SECCOMP_RET_ALLOW));
    return std::move(program_);
  }

 private:
  // A block of `whole`, which begins with an argument.
  Builder(uint32_t argument, const Builder& whole) : is_traced_(whole.is_traced_) {
    load(low_half(argument));
  }

  static sock_filter answer(uint32_t what) { return BPF_STMT(BPF_RET | BPF_K, what); }

  // ENOSYS is no news, and glibc tries clone3() with all signals blocked.
  sock_filter refusal(uint32_t error) const {
    const bool is_news = is_traced_ && error != ENOSYS;
    return answer((is_news ? SECCOMP_RET_TRAP : SECCOMP_RET_ERRNO) | error);
  }

  void add(sock_filter step) { program_.push_back(step); }

  void load(uint32_t offset) { add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)); }

  void keep(uint32_t mask) { add(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask)); }

  void if_equal(uint32_t value, const Program& block) {
    check_internal(block.size() < 256, "a jump of the filter is short");
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, static_cast<uint8_t>(block.size())));
    program_.insert(program_.end(), block.begin(), block.end());
  }

  void unless_equal(uint32_t value, const Program& block) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, static_cast<uint8_t>(block.size()), 0));
    program_.insert(program_.end(), block.begin(), block.end());
  }

  Program program_;
  bool is_traced_;
};

// Without an address sendto() is send().
void allow_connections(Builder& builder, const CallNeeds& needs) {
  builder.allow_setsockopt();
  if (needs.opens_devices || needs.opens_connections || needs.accepts_connections)
    for (const int call : {SYS_accept, SYS_accept4})
      builder.allow(static_cast<uint32_t>(call));
  if (needs.opens_devices)
    for (const int call : {SYS_sendmsg, SYS_sendmmsg})
      builder.allow(static_cast<uint32_t>(call));
  if (!needs.opens_connections)
    return builder.allow_null(SYS_sendto, 4);
  builder.allow_tcp_sockets();
  for (const int call : {SYS_bind, SYS_listen, SYS_connect, SYS_sendto})
    builder.allow(static_cast<uint32_t>(call));
}

void allow_some_arguments(Builder& builder, const CallNeeds& needs) {
  const auto self = static_cast<uint32_t>(::getpid());
  for (const int call : {SYS_kill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo})
    builder.allow_values(static_cast<uint32_t>(call), 0, {self});
  builder.allow_bits(SYS_clone, 0, CLONE_THREAD | kNamespaces, CLONE_THREAD);
  builder.allow_values(SYS_prctl, 0,
                       {PR_SET_NAME, PR_GET_NAME, PR_SET_TIMERSLACK, PR_GET_TIMERSLACK,
                        PR_GET_DUMPABLE, PR_CAPBSET_READ, PR_GET_NO_NEW_PRIVS, PR_SET_THP_DISABLE,
                        PR_GET_THP_DISABLE, 0x53564d41 /* PR_SET_VMA: names memory */});
  builder.allow_fcntl(needs.opens_devices);
  builder.allow_null(SYS_prlimit64, 2);  // asks, and changes nothing
  builder.allow_ioctl(needs.opens_devices);
  if (needs.stores_files)
    builder.allow_all(kStoringCalls);
  const uint32_t refused = kMakes | O_WRONLY | (needs.opens_devices ? 0 : O_RDWR);
  builder.allow_bits(SYS_openat, 2, refused, 0, builder.opened());
#ifdef SYS_open
  builder.allow_bits(SYS_open, 1, refused, 0, builder.opened());
#endif
  if (needs.opens_devices) {
    builder.allow(SYS_ftruncate);  // the size of the driver's memory files
    builder.allow(SYS_flock);      // the driver locks its caches of code
    builder.allow_all(kTimerCalls);
  }
  if (needs.opens_devices || needs.opens_connections)
    builder.allow_all(kWatchingCalls);
  if (needs.is_traced)
    builder.allow(kOpenat2);
  allow_connections(builder, needs);
}

Program make_program(const CallNeeds& needs) {
  Builder builder(needs.is_traced);
  if (needs.limits_memory) {
    builder.allow_counted_mmap();
    builder.refuse(SYS_memfd_create, ENOSYS);
  }
  builder.allow_all(kAllowedCalls);
  allow_some_arguments(builder, needs);
  for (const uint32_t tried : {kClone3, kOpenat2, kIoUringSetup})
    builder.refuse(tried, ENOSYS);
  return builder.refuse_the_rest();
}

long seccomp(unsigned operation, unsigned flags, const void* arguments) noexcept {
  return ::syscall(SYS_seccomp, operation, flags, arguments);
}

// For all threads.
void install(Program program) {
  const sock_fprog described{static_cast<uint16_t>(program.size()), program.data()};
  // Without SPEC_ALLOW older kernels slow the whole process down, against attacks by code of the
  // same process: not what is feared here.
  const long failed =
      seccomp(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW,
              &described);
  if (failed != 0)
    throw_system_errno("seccomp", failed > 0 ? EBUSY : errno);  // > 0: a thread has another filter
}

}  // namespace

bool can_filter_calls() noexcept {
  const uint32_t action = SECCOMP_RET_ERRNO;
  return kArchitecture != 0 && seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

void install_call_filter(const CallNeeds& needs) {
  if (needs.is_traced)
    trace_refused_calls();
  install(make_program(needs));
}

void trace_opened_files() {
  Builder builder(true);
  builder.open_files_so(SYS_openat);
#ifdef SYS_open
  builder.open_files_so(SYS_open);
#endif
  trace_refused_calls();
  install(builder.allow_the_rest());
}

}  // namespace torch_remote
