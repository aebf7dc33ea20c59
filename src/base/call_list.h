#pragma once

#include <array>

#include <sys/syscall.h>

// The system calls that a confined process may make whatever their arguments are. Those that move
// data or wait come first, for kernels that do not keep the filter's answers (before 5.11).
// call_filter_linux.cpp has those that are allowed with some arguments only.
namespace torch_remote {

// Not formatted by the tool, which would give each a line of its own.
// clang-format off
inline constexpr auto kAllowedCalls = std::to_array<int>({
    // Calls of every operator and message.
    SYS_futex, SYS_read, SYS_write, SYS_recvmsg, SYS_recvfrom, SYS_readv, SYS_writev, SYS_ppoll,
    SYS_clock_gettime, SYS_sched_yield, SYS_madvise,
    SYS_mmap, SYS_munmap, SYS_clock_nanosleep, SYS_nanosleep,
    // Memory of this process.
    SYS_brk, SYS_mprotect, SYS_mremap, SYS_msync, SYS_mincore, SYS_mlock, SYS_mlock2, SYS_munlock,
    SYS_mlockall, SYS_munlockall, SYS_mbind, SYS_get_mempolicy, SYS_set_mempolicy, SYS_membarrier,
    SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect, SYS_memfd_create,
    // Descriptors that are open, and facts about files.
    SYS_close, SYS_lseek, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_preadv2,
    SYS_pwritev2,
    SYS_fstat, SYS_newfstatat, SYS_statx, SYS_statfs, SYS_fstatfs, SYS_faccessat,
    SYS_readlinkat, SYS_getcwd, SYS_getdents64, SYS_dup, SYS_dup3, SYS_pipe2, SYS_fsync,
    SYS_fdatasync, SYS_fadvise64, SYS_pselect6, SYS_eventfd2, SYS_timerfd_create,
    SYS_timerfd_settime, SYS_timerfd_gettime,
    // Sockets that are open.
    SYS_recvmmsg, SYS_shutdown, SYS_getsockname, SYS_getpeername, SYS_getsockopt,
    // Threads and the process itself. sched_setaffinity() can name a thread of another process of
    // the same user; no filter can tell those from the own ones, which OpenMP names.
    SYS_exit, SYS_exit_group, SYS_set_robust_list, SYS_get_robust_list, SYS_set_tid_address,
    SYS_gettid, SYS_getpid, SYS_getppid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid,
    SYS_getresuid, SYS_getresgid, SYS_getgroups, SYS_getpgid, SYS_getsid, SYS_sched_getaffinity,
    SYS_sched_setaffinity, SYS_sched_getparam, SYS_sched_getscheduler, SYS_sched_getattr,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval,
    SYS_getpriority, SYS_getcpu, SYS_getrusage, SYS_getrlimit, SYS_times, SYS_sysinfo, SYS_uname,
    SYS_capget, SYS_wait4, SYS_waitid, SYS_pidfd_open, SYS_restart_syscall,
    // Signals that it gets, and clocks.
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait, SYS_sigaltstack, SYS_setitimer, SYS_getitimer, SYS_clock_getres,
    SYS_gettimeofday, SYS_getrandom,
    // Newer ones, by the numbers that they have everywhere: older headers do not name them.
    436,  // close_range
    439,  // faccessat2
    449,  // futex_waitv
    450,  // set_mempolicy_home_node
#ifdef SYS_rseq
    SYS_rseq,
#endif
#ifdef __x86_64__  // the older forms of some of these; arch_prctl() asks for registers of AMX
    SYS_poll, SYS_select, SYS_stat, SYS_lstat, SYS_access, SYS_readlink,
    SYS_getdents, SYS_dup2, SYS_pipe, SYS_eventfd, SYS_getpgrp, SYS_pause,
    SYS_alarm, SYS_time, SYS_arch_prctl,
#endif
});

// epoll: for drivers and the engines of process groups. The kernel limits how many descriptors each
// user watches, so a session could use them up for others.
inline constexpr auto kWatchingCalls = std::to_array<int>({
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait,
    441,  // epoll_pwait2
#ifdef __x86_64__
    SYS_epoll_create, SYS_epoll_wait,
#endif
});

// For drivers. Timers count among the signals that the kernel holds for each user.
inline constexpr auto kTimerCalls = std::to_array<int>({
    SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,
});
// clang-format on

}  // namespace torch_remote
