#include "base/platform.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace torch_remote {
namespace {

bool is_readable(const Fd& descriptor, int timeout_ms) {
  pollfd polled{descriptor.get(), POLLIN, 0};
  return ::poll(&polled, 1, timeout_ms) == 1;
}

std::string read_line(const Fd& descriptor) {
  std::string line;
  for (char c = 0; ::read(descriptor.get(), &c, 1) == 1 && c != '\n';)
    line += c;
  return line;
}

int wait_for(pid_t pid) {
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status;
}

std::vector<Fd> only(Fd descriptor) {
  std::vector<Fd> list;
  list.push_back(std::move(descriptor));
  return list;
}

Child run_shell(const std::string& script, Fd inherited) {
  return spawn_server("/bin/sh", {"sh", "-c", script}, {{"TORCH_REMOTE_ADDED", "yes"}},
                      only(std::move(inherited)));
}

TEST(Platform, ThePeerOfAUnixSocketIsAProcessOfAUser) {
  const auto [a, b] = socket_pair();
  EXPECT_EQ(describe_peer(a),
            "pid " + std::to_string(::getpid()) + ", uid " + std::to_string(::geteuid()));
}

TEST(Platform, ThisProcessIsAnotherOneInAForkedChild) {
  EXPECT_EQ(this_process(), ::getpid());
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(this_process() == ::getpid() ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(this_process(), ::getpid());
}

TEST(Platform, DescriptorsAreCloseOnExec) {
  const auto [a, b] = socket_pair();
  const auto [in, out] = pipe_pair();
  for (const Fd* descriptor : {&a, &b, &in, &out})
    EXPECT_NE(::fcntl(descriptor->get(), F_GETFD) & FD_CLOEXEC, 0);
}

void fill(const Fd& pipe) {
  const int flags = ::fcntl(pipe.get(), F_GETFL);
  ::fcntl(pipe.get(), F_SETFL, flags | O_NONBLOCK);
  while (::write(pipe.get(), "x", 1) == 1) {
  }
  ::fcntl(pipe.get(), F_SETFL, flags);
}

TEST(WritePatiently, AFullPipeIsNotWaitedForLongerThanThat) {
  const auto [in, out] = pipe_pair();
  fill(out);
  EXPECT_FALSE(write_patiently(out.get(), "lost", std::chrono::milliseconds(1)));
}

TEST(WritePatiently, ALongTextArrivesWhole) {
  const auto [in, out] = pipe_pair();
  const std::string text(300'000, 'y');
  std::thread writer([&, &to = out] {
    EXPECT_TRUE(write_patiently(to.get(), text + "\n", std::chrono::seconds(60)));
  });
  EXPECT_EQ(read_line(in), text);
  writer.join();
}

TEST(NamedSocket, ANameIsTakenOnceAndGoesWithItsSocket) {
  const std::string name = "torch-remote-test-" + std::to_string(::getpid());
  Fd socket = named_socket(name);
  ASSERT_TRUE(socket);
  EXPECT_FALSE(named_socket(name));
  EXPECT_TRUE(socket_to(name));
  socket.reset();
  EXPECT_FALSE(socket_to(name));
}

TEST(NamedSocket, DescriptorsArePassedByName) {
  const std::string name = "torch-remote-test-" + std::to_string(::getpid());
  const Fd socket = named_socket(name);
  const Fd sender = socket_to(name);
  const auto [in, out] = pipe_pair();
  const std::array<std::byte, 2> sent{std::byte{1}, std::byte{2}};
  const std::array<int, 2> passed{in.get(), out.get()};
  const Fd says_nothing = socket_to(name);
  ASSERT_EQ(::send(socket_to(name).get(), sent.data(), 2, 0), 2);  // nothing passed: skipped
  ASSERT_EQ(pass_descriptors(sender, sent, passed), Passed::kSent);
  std::array<std::byte, 2> received{};
  const std::vector<Fd> taken = receive_descriptors(socket, received);
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(received, sent);
  ASSERT_EQ(::write(taken[1].get(), "through\n", 8), 8);
  EXPECT_EQ(read_line(in), "through");
}

// What the function gives in a process of another user.
template <typename Function>
int as_nobody(Function function) {
  const pid_t pid = ::fork();
  if (pid == 0)
    ::_exit(::setuid(65534) != 0 ? 99 : function());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WEXITSTATUS(status);
}

// Promise 3b.
TEST(NamedSocket, OtherUsersAreTurnedAwayByBothEnds) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  const std::string name = "torch-remote-test-" + std::to_string(::getpid());
  const Fd socket = named_socket(name);
  EXPECT_EQ(as_nobody([&] { return socket_to(name) ? 1 : 0; }), 0);

  // One who does not look whom he talks to, and then one of ours.
  const auto [in, out] = pipe_pair();
  const std::array<int, 1> passed{in.get()};
  const std::array<std::byte, 1> theirs{std::byte{1}};
  const std::array<std::byte, 1> ours{std::byte{2}};
  EXPECT_EQ(as_nobody([&] {
              const Fd stranger(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
              sockaddr_un address{};
              address.sun_family = AF_UNIX;
              name.copy(address.sun_path + 1, name.size());
              const auto size =
                  static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
              if (::connect(stranger.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
                return 1;
              return pass_descriptors(stranger, theirs, passed) == Passed::kSent ? 0 : 2;
            }),
            0);
  ASSERT_EQ(pass_descriptors(socket_to(name), ours, passed), Passed::kSent);
  std::array<std::byte, 1> received{};
  EXPECT_EQ(receive_descriptors(socket, received).size(), 1U);
  EXPECT_EQ(received, ours);
}

TEST(SpawnCommand, ItsStandardInputAndOutputAreTheSocket) {
  auto [ours, theirs] = socket_pair();
  Child child = spawn_command({"sh", "-c", "read line; echo \"$line too\""}, std::move(theirs));
  ASSERT_EQ(::write(ours.get(), "hello\n", 6), 6);
  EXPECT_EQ(read_line(ours), "hello too");
  EXPECT_EQ(wait_for_end(child, std::chrono::seconds(60)), 0);
  EXPECT_EQ(wait_for_end(child, std::chrono::seconds(60)), std::nullopt);
}

TEST(EndChild, OneThatStaysIsKilled) {
  auto [ours, theirs] = socket_pair();
  Child child = spawn_command({"sh", "-c", "exec sleep 600"}, std::move(theirs));
  const pid_t pid = child.pid;
  end_child(child, std::chrono::milliseconds(1));
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(SpawnServer, TheChildTalksOverTheInheritedDescriptor) {
  auto [ours, theirs] = socket_pair();
  const Child child =
      run_shell("read line <&3; echo \"$line $TORCH_REMOTE_ADDED\" >&3", std::move(theirs));
  ASSERT_EQ(::write(ours.get(), "hello\n", 6), 6);
  EXPECT_EQ(read_line(ours), "hello yes");
  EXPECT_EQ(wait_for(child.pid), 0);
}

TEST(SpawnServer, TheChildDoesNotGetADescriptorThatSomebodyLeftOpen) {
  auto [ours, theirs] = socket_pair();
  const Fd leaky(::fcntl(ours.get(), F_DUPFD, 20));  // without close-on-exec
  const Child child = run_shell("if [ -e /proc/self/fd/" + std::to_string(leaky.get()) +
                                    " ]; then echo open >&3; else echo closed >&3; fi",
                                std::move(theirs));
  EXPECT_EQ(read_line(ours), "closed");
  wait_for(child.pid);
}

TEST(SpawnServer, TheChildLeadsASessionOfItsOwn) {
  auto [ours, theirs] = socket_pair();
  const Child child = run_shell("read line <&3", std::move(theirs));
  EXPECT_EQ(::getsid(child.pid), child.pid);
  ours.reset();
  wait_for(child.pid);
}

TEST(SpawnServer, ItsPidfdTellsWhenItHasEnded) {
  auto [ours, theirs] = socket_pair();
  const Child child = run_shell("read line <&3", std::move(theirs));
  EXPECT_FALSE(is_readable(child.pidfd, 0));
  ours.reset();
  EXPECT_TRUE(is_readable(child.pidfd, 20'000));
  wait_for(child.pid);
}

TEST(SpawnServer, AProgramThatDoesNotExistIsAnErrorHere) {
  auto [ours, theirs] = socket_pair();
  EXPECT_THROW(spawn_server("/does/not/exist", {"x"}, {}, only(std::move(theirs))),
               std::system_error);
}

// Promise 12.
TEST(SpawnSession, ItsStandardOutputAndErrorAreThePipeThatItIsGiven) {
  auto [reader, writer] = pipe_pair();
  const Child child = spawn_session("/bin/sh", {"sh", "-c", "echo one; echo two >&2"},
                                    {"PATH=/usr/bin:/bin"}, {}, writer);
  writer.reset();
  EXPECT_EQ(wait_for(child.pid), 0);
  EXPECT_EQ(read_line(reader), "one");
  EXPECT_EQ(read_line(reader), "two");
}

// What `action` returns in a process of its own.
template <typename Action>
int in_a_child(const Action& action) {
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(action());
  return wait_for(child);
}

// Promise 14.
TEST(Platform, WhoGivesUpCapabilitiesHasNone) {
  const int left = in_a_child([] {
    give_up_capabilities();
    std::ifstream status("/proc/thread-self/status");
    int sets = 0;
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("Cap") && line.find_first_of("123456789abcdef", 7) != std::string::npos)
        sets += line.starts_with("CapBnd") && ::geteuid() != 0 ? 0 : 1;
    return sets;
  });
  EXPECT_EQ(left, 0);
}

// Promise 14a.
TEST(Platform, TheDescriptorLimitIsRaisedToTheMostAndLoweredForEver) {
  const auto limit = [] {
    rlimit now{};
    ::getrlimit(RLIMIT_NOFILE, &now);
    return now;
  };
  EXPECT_EQ(in_a_child([&] {
              rlimit low = limit();
              low.rlim_cur = low.rlim_max / 2;
              ::setrlimit(RLIMIT_NOFILE, &low);
              raise_descriptor_limit();
              return limit().rlim_cur == low.rlim_max ? 0 : 1;
            }),
            0);
  EXPECT_EQ(in_a_child([&] {
              const rlim_t before = limit().rlim_max;
              lower_descriptor_limit();
              return limit().rlim_max <= 1024 && limit().rlim_max * 2 <= before ? 0 : 1;
            }),
            0);
}

// The kernel counts the descriptors that are on their way for each user.
// Promise 14a.
TEST(Platform, DescriptorsThatCannotBeSentNowMayBeSentLater) {
  auto [sender, receiver] = message_pair();
  const std::array<std::byte, 8> message{};
  const std::array passed{STDERR_FILENO};
  Passed last = Passed::kSent;
  for (int i = 0; i < 100'000 && last == Passed::kSent; ++i)
    last = pass_descriptors(sender, message, passed);
  EXPECT_EQ(last, Passed::kFull);
  std::array<std::byte, 8> received{};
  EXPECT_EQ(take_descriptors(receiver, received).size(), 1U);
  EXPECT_EQ(pass_descriptors(sender, message, passed), Passed::kSent);
  receiver.reset();
  EXPECT_EQ(pass_descriptors(sender, message, passed), Passed::kGone);
}

TEST(Platform, AProcessCanBeWatched) {
  EXPECT_FALSE(is_readable(watch_parent(::getpid()), 0));
  EXPECT_THROW(watch_parent(999'999'999), std::system_error);
}

TEST(Platform, RandomBytesDiffer) {
  std::array<std::byte, 32> a{};
  std::array<std::byte, 32> b{};
  random_bytes(a);
  random_bytes(b);
  EXPECT_NE(a, b);
}

TEST(Platform, TheProcessHasAHostAndAMemory) {
  EXPECT_FALSE(hostname().empty());
  EXPECT_GT(current_rss_bytes(), 100'000U);
}

TEST(Platform, AThreadThatComputesRunsAndOneThatWaitsDoesNot) {
  std::atomic<bool> is_over{false};
  std::thread computing([&] {
    while (!is_over) {
    }
  });
  EXPECT_TRUE(other_threads_run());
  is_over = true;
  computing.join();

  auto [in, out] = pipe_pair();
  std::thread waiting([&, &waited_for = in] { is_readable(waited_for, 60'000); });
  while (other_threads_run()) {  // until it waits; never ends where this is wrong
  }
  out.reset();
  waiting.join();
}

TEST(Fd, MovingHandsTheDescriptorOver) {
  auto [in, out] = pipe_pair();
  const int number = out.get();
  Fd moved(std::move(out));
  EXPECT_EQ(moved.get(), number);
  moved = Fd();
  EXPECT_FALSE(moved);
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

}  // namespace
}  // namespace torch_remote
