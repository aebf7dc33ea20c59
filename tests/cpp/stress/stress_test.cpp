// Many threads on one session, with the server in this process. `make test` checks that each gets
// the CPU's numbers; `make tsan-torch` looks for races in client and server.
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceType.h>

#include "base/mutex.h"
#include "client/machines/machines.h"
#include "client/process/errors.h"
#include "client/register.h"
#include "local_server.h"

namespace torch_remote::stress {
namespace {

constexpr int kThreads = 8;
#ifdef __SANITIZE_THREAD__
constexpr int kRounds = 300;
#else
constexpr int kRounds = 25;
#endif
constexpr std::chrono::seconds kPatience{30};

struct Interrupted : std::exception {};

std::atomic<uint64_t> signal_checks{0};
std::atomic<uint64_t> interrupts{0};
thread_local bool may_be_interrupted = false;

// A user who presses Ctrl-C again and again.
void interrupt_often() {
  if (!may_be_interrupted || signal_checks.fetch_add(1) % 8 != 0)
    return;
  may_be_interrupted = false;
  ++interrupts;
  throw Interrupted();
}

// Repeats an action that was interrupted; an action is interrupted at most once.
template <typename Action>
auto persist(Action&& action) {
  may_be_interrupted = true;
  try {
    auto result = action();
    may_be_interrupted = false;
    return result;
  } catch (const Interrupted&) {
    return action();
  }
}

at::Tensor upload(const at::Tensor& tensor) {
  return persist([&] { return tensor.to(c10::Device(c10::kPrivateUse1, 0)); });
}

at::Tensor download(const at::Tensor& tensor) {
  return persist([&] { return tensor.cpu(); });
}

// Two steps of training: what is done on the device and on the CPU alike.
at::Tensor train(const at::Tensor& inputs, at::Tensor weights) {
  for (int step = 0; step < 2; ++step) {
    weights = weights.detach().requires_grad_();
    inputs.mm(weights).relu().sum().backward();
    const at::NoGradGuard no_grad;
    weights = weights.sub(weights.grad(), 0.125);
  }
  return weights;
}

// Tensors that one thread makes, another uses and a third frees.
class Exchange {
 public:
  at::Tensor swap(at::Tensor tensor, size_t place) {
    MutexLock lock(mutex_);
    std::swap(tensor, places_[place % places_.size()]);
    return tensor;
  }

  void clear() {
    MutexLock lock(mutex_);
    for (at::Tensor& tensor : places_)
      tensor.reset();
  }

 private:
  Mutex mutex_;
  std::array<at::Tensor, 5> places_ GUARDED_BY(mutex_);
};

class Stress : public ::testing::Test {
 protected:
  Stress() {
    at::set_num_threads(1);
    c10::register_privateuse1_backend("remote");  // or autograd looks for another accelerator
    client::register_backend();
    client::python_hooks.check_signals = &interrupt_often;
    machine_ = client::Machines::instance().connect(server_.url());
  }

  ~Stress() override {
    exchange_.clear();
    client::Machines::instance().stop(machine_);
    client::python_hooks.check_signals = nullptr;
  }

  client::Session& session() {
    return *client::Machines::instance().sessions().at(static_cast<size_t>(machine_));
  }

  bool wait_until_all_is_freed();
  void work(int thread);
  void train_and_compare(int number);
  void copy_and_compare(int number);
  void pass_on(int number);
  void fail_and_go_on(int number);

  LocalServer server_;
  int machine_ = 0;
  Exchange exchange_;
  std::atomic<int> differences_{0};
  std::atomic<int> failures_{0};
};

// Autograd's threads may hold the last tensors for a moment.
bool Stress::wait_until_all_is_freed() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (server_counters(session()).storages != 0) {
    if (std::chrono::steady_clock::now() > deadline)
      return false;
    session().query(wire::QueryKind::kBarrier, "synchronize");  // frees ride with what is sent
  }
  return true;
}

void Stress::train_and_compare(int number) {
  const at::Tensor inputs = at::arange(48, at::kFloat).reshape({6, 8}).sub(number);
  const at::Tensor weights = at::arange(64, at::kFloat).reshape({8, 8}).cos();
  const at::Tensor there = download(train(upload(inputs), upload(weights)));
  differences_ += !there.equal(train(inputs, weights));
}

// Inline, in a chunk, and in chunks that the client waits for.
void Stress::copy_and_compare(int number) {
  for (const int64_t count : {64, 9000, 300000}) {
    const at::Tensor here = at::arange(count, at::kFloat).add(number);
    const at::Tensor there = upload(here);
    there.slice(0, 1).add_(1);
    here.slice(0, 1).add_(1);
    differences_ += !download(there).equal(here);
  }
}

void Stress::pass_on(int number) {
  const at::Tensor mine = upload(at::full({16}, static_cast<double>(number)));
  const at::Tensor other = exchange_.swap(mine.mul(2), static_cast<size_t>(number));
  if (!other.defined())
    return;
  const at::Tensor values = download(other);
  differences_ += !values.equal(values.select(0, 0).expand({16}));
}

// The first time the error is raised at the read of the result, later at the call.
void Stress::fail_and_go_on(int number) {
  const at::Tensor table = upload(at::arange(4, at::kFloat));
  const at::Tensor indices = upload(at::full({2}, 9, at::kLong));
  try {
    download(table.index_select(0, indices).add(number));
  } catch (const std::exception&) {
    ++failures_;
  }
  differences_ += !download(table.add(number)).equal(at::arange(4, at::kFloat).add(number));
}

void Stress::work(int thread) {
  for (int round = 0; round < kRounds; ++round) {
    const int number = thread * kRounds + round;
    train_and_compare(number);
    pass_on(number);
    if (number % 4 == 0)
      copy_and_compare(number);
    if (number % 5 == 0)
      fail_and_go_on(number);
    if (number % 6 == 0)
      upload(at::zeros({64})).normal_();
    if (number % 7 == 0)
      persist([&] { return server_counters(session()).calls; });
  }
}

TEST_F(Stress, ManyThreadsForwardBackwardCopyFreeFailAndAreInterrupted) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([this, i] { work(i); });
  for (std::thread& thread : threads)
    thread.join();

  EXPECT_EQ(differences_, 0);
  EXPECT_EQ(failures_, kThreads * kRounds / 5);
  EXPECT_GT(interrupts, 0);
  EXPECT_EQ(server_counters(session()).mispredicted, 0);
  exchange_.clear();
  EXPECT_TRUE(wait_until_all_is_freed());
}

// Whatever they were doing: nobody waits for an answer that will not come.
TEST_F(Stress, ThreadsThatUseASessionThatEndsAreAllToldSo) {
  std::atomic<int> working{0};
  std::atomic<int> told{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      try {
        for (int number = i;; ++number) {
          train_and_compare(number);
          pass_on(number);
          working += number == i;
        }
      } catch (const std::exception&) {
        ++told;
      }
    });
  }
  while (working + told < kThreads)
    std::this_thread::yield();
  server_.stop();
  for (std::thread& thread : threads)
    thread.join();

  EXPECT_EQ(told, kThreads);
  EXPECT_EQ(differences_, 0);
  EXPECT_TRUE(session().link().is_lost());
}

}  // namespace
}  // namespace torch_remote::stress

#ifdef __SANITIZE_THREAD__
// libtorch is not instrumented, so TSan does not see what its atomics order: ignore memory that
// libtorch copies or frees. All of our code is checked, also where libtorch calls it.
extern "C" __attribute__((visibility("default"))) const char*
__tsan_default_options() {  // NOLINT: the runtime's name
  return "ignore_noninstrumented_modules=1:history_size=4:"
         // Sessions and their threads are never destroyed (client/machines/machines.h).
         "report_thread_leaks=0";
}
#endif
