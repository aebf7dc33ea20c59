// How threads wait, what long waits print, and what is printed at exit.
#include <algorithm>
#include <cstdio>

#include <unistd.h>

#include <ATen/record_function.h>

#include "base/log.h"
#include "client/operators/operator.h"
#include "client/process/records.h"
#include "client/process/waits_by_line.h"
#include "client/session/pending.h"
#include "client/session/progress.h"
#include "client/session/session.h"
#include "client/session/submission.h"

namespace torch_remote::client {
namespace {

// How often a wait checks for Ctrl-C.
constexpr auto kSignalInterval = std::chrono::milliseconds(50);
constexpr auto kFirstNotice = std::chrono::seconds(1);
constexpr auto kBetweenNotices = std::chrono::seconds(5);
// A server that does not answer the first handshake: for one that listens already, and for one that
// is being started, which takes seconds.
constexpr auto kSilence = std::chrono::seconds(2);
constexpr auto kSilenceAtStart = std::chrono::seconds(10);

std::string counted(uint64_t calls) {
  return std::to_string(calls) + (calls == 1 ? " call" : " calls");
}

void say(const std::string& text) {
  std::fputs(("torch_remote: " + text + "\n").c_str(), stderr);
}

}  // namespace

void Session::wait_until(const std::function<bool()>& ready, const char* what, Waiter waiter) {
  if (requests_.wait_for(ready, {}))
    return;
  WithoutGil without_gil;
  const Clock::time_point begin = Clock::now();
  const uint64_t all = calls_left();
  bool was_shown = false;
  bool is_ready = false;
  const auto is_over = [&] { return (is_ready = ready()) || link_.is_lost(); };
  TransferProgress::update();
  while (!requests_.wait_for(is_over, kSignalInterval)) {
    look_for_interrupt(what, all);
    TransferProgress::update();
    if (Clock::now() - begin < kFirstNotice || TransferProgress::is_shown())
      continue;
    if (waiter == Waiter::kExit && !was_shown)
      say_exit_wait();
    else
      say_wait(what, all, Clock::now() - begin);
    was_shown = true;
  }
  if (is_ready)
    return;
  if (log_enabled(LogLevel::kDebug))
    log(LogLevel::kDebug, "wait ended by a lost session", {{"what", what}});
  raise_lost();
}

void Session::abandon(const RequestPtr& request) {
  if (request->names != 0 && requests_.abandon_answer(*request) && !request->failed)
    free_results(*request);
}

void Session::free_results(const Request& request) {
  uint64_t name = request.first_name;
  const std::function<void(const std::vector<wire::Result>&)> free_fresh =
      [&](const auto& results) {
        for (const wire::Result& result : results) {
          if (result.kind == wire::ResultKind::kFresh) {
            StorageRecord* const record =
                RecordPool::instance().make(name++, this, request.device, result.nbytes);
            record->announced = true;
            record->address = 0;
            RecordPool::instance().note_dead();
            order_.queue_free(record, link_.is_lost());
          }
          free_fresh(result.items);
        }
      };
  free_fresh(request.results);
}

bool Session::wait_quietly(const RequestPtr& request, const char* what,
                           std::optional<std::chrono::milliseconds> time) {
  RECORD_FUNCTION("torch_remote::wait", {});  // a row of torch.profiler
  const LineWait line_wait;
  ++counters_.syncs;
  link_.flush();
  const TransferProgress progress(*request);
  const Clock::time_point end = time ? Clock::now() + *time : Clock::time_point::max();
  try {
    wait_until([&] { return request->done || Clock::now() >= end; }, what);
    show_warnings(*this);
  } catch (...) {
    abandon(request);
    throw;
  }
  return request->done;
}

void Session::wait(const RequestPtr& request, const char* what) {
  wait_quietly(request, what);
  if (request->failed)
    raise_failed(*request);
}

std::vector<std::byte> Session::query(wire::QueryKind kind, const std::string& what,
                                      const std::function<void(wire::Writer&)>& write_fields) {
  const RequestPtr request = make_request({}, nullptr);
  {
    Submission at(*this);
    wire::encode_query(at.writer(), {request->id, kind}, [&] {
      if (write_fields)
        write_fields(at.writer());
    });
  }
  wait(request, what.c_str());
  return std::move(request->body);
}

void Session::look_for_interrupt(const char* what, uint64_t all) {
  if (python_hooks.check_signals == nullptr)
    return;
  try {
    python_hooks.check_signals();
  } catch (...) {
    last_notice_ = Clock::time_point();  // the next wait prints after a second
    if (python_hooks.name_interrupt != nullptr)
      python_hooks.name_interrupt("while waiting for " + describe_wait(what, all) +
                                  "; what was sent goes on (torch_remote.cancel() drops it)");
    throw;
  }
}

// --- what is waited for

uint64_t calls_done(Session& session) {
  const uint64_t confirmed = session.requests().confirmed();
  const transport::Connection* const connection = session.link().connection();
  return connection == nullptr ? confirmed
                               : std::max({confirmed, connection->in_flight().calls_applied,
                                           session.progress_.load(std::memory_order_relaxed)});
}

uint64_t Session::calls_left() {
  const uint64_t done = calls_done(*this);
  return std::max(order_.submitted(), done) - done;
}

std::string Session::describe_oldest_call() {
  const CallSite found = order_.site_of(calls_done(*this) + 1).value_or(CallSite{});
  const std::string name = found.operation == kRunSite ? "a graph" : operator_at(found.operation);
  const std::string line = name_line(found.line);
  return (name.empty() ? "a copy" : name) + (line.empty() ? "" : " at " + line);
}

std::string Session::describe_wait(const char* what, uint64_t all) {
  if (!link_.is_open())
    return url() + " to answer";
  const uint64_t left = calls_left();
  if (link_.is_resuming())
    return "the connection to " + url() + ", " + counted(left) + " not confirmed";
  if (left != 0)
    return describe_oldest_call() + ", " + std::to_string(left) + " of " +
           counted(std::max(all, left)) + " left";
  const uint64_t bytes = bulk_bytes_.load(std::memory_order_relaxed);
  return bytes == 0 ? what : std::to_string((bytes >> 20) + 1) + " MiB of uploads";
}

// From one thread if several wait.
void Session::say_wait(const char* what, uint64_t all, Clock::duration waited) {
  const bool is_silent =
      !link_.is_open() && waited >= (link_.endpoint().has_listener ? kSilence : kSilenceAtStart);
  if (!is_silent && !is_in_notebook && isatty(STDERR_FILENO) == 0)
    return;
  const Clock::time_point now = Clock::now();
  Clock::time_point last = last_notice_.load(std::memory_order_relaxed);
  if (now - last < kBetweenNotices || !last_notice_.compare_exchange_strong(last, now))
    return;
  say("waiting for " + describe_wait(what, all));
}

// --- the exit

void Session::say_exit_wait() {
  const uint64_t left = calls_left();
  last_notice_ = Clock::now();
  say("waiting for " + (left == 0 ? url() : counted(left)) + " to finish (Ctrl-C ends the wait)");
}

std::string Session::describe_unconfirmed() {
  const uint64_t left = calls_left();
  const std::string calls = counted(left) + (left == 1 ? " was" : " were");
  if (!link_.is_lost())
    return left == 0 ? "" : calls + " not waited for, and may have failed\n";
  const Link::Ending end = link_.ending();
  if (left == 0)
    return end.kind == ErrorClass::kDeviceLost ? end.cause + "\n" : "";
  return calls + " not confirmed: the session on " + url() + " is lost: " + end.cause + "\n";
}

std::string Session::describe_known_failures() {
  std::vector<Failure> failures = faults_.unreported();
  for (const auto& download : PendingDownloads::instance().of(*this)) {
    const auto is_same = [&](const Failure& failure) {
      return failure.error.call == download->error.call;
    };
    if (download->done && download->failed && !faults_.was_reported(*download) &&
        std::ranges::none_of(failures, is_same))
      failures.push_back({download->error, std::nullopt});
  }
  if (failures.empty())
    return {};
  std::string text = failures.size() == 1
                         ? "1 remote call failed and its error was never raised:\n  "
                         : std::to_string(failures.size()) +
                               " remote calls failed and their errors were never raised:\n  ";
  text += describe(failures.front().error, failures.front().site, 0) + "\n";
  if (failures.size() > 1)
    text += "  and " + std::to_string(failures.size() - 1) + " more\n";
  return text;
}

bool Session::wait_at_exit(const std::function<bool()>& ready, const char* what,
                           Clock::time_point end) {
  bool is_ready = false;
  try {
    wait_until([&] { return (is_ready = ready()) || Clock::now() >= end; }, what, Waiter::kExit);
  } catch (...) {  // the session is lost, or the user has pressed Ctrl-C
  }
  return is_ready;
}

std::string Session::describe_unreported(std::chrono::milliseconds patience) {
  if (link_.was_loss_raised() || order_.submitted() == 0)
    return describe_known_failures();
  if (patience.count() == 0)
    return describe_known_failures() + (link_.is_lost() ? describe_unconfirmed() : "");
  const Clock::time_point end = Clock::now() + patience;
  const RequestPtr barrier = make_request({}, nullptr);
  bool is_done =
      wait_at_exit([this] { return link_.is_open(); }, "the handshake", end) && !link_.is_lost();
  if (is_done) {
    Submission at(*this, IfLost::kWrite);
    wire::encode_query(at.writer(), {barrier->id, wire::QueryKind::kBarrier}, [] {});
  }
  link_.flush();
  // Does not wait for a server that cannot be reached and has done everything.
  const auto is_over = [&] { return barrier->done || (link_.is_resuming() && calls_left() == 0); };
  is_done = is_done && wait_at_exit(is_over, "the last calls", end);
  if (is_done && !barrier->done)
    return describe_known_failures();
  for (const auto& download : PendingDownloads::instance().of(*this))
    is_done = is_done && wait_at_exit([&] { return download->done.load(); }, "a download", end);
  if (!is_done)
    return describe_known_failures() + describe_unconfirmed();
  if (barrier->failed)
    return "the last calls may have failed:\n  " + describe(barrier->error, std::nullopt, 0) + "\n";
  return describe_known_failures();
}

// --- what the server says of itself

wire::Counters server_counters(Session& session) {
  const std::vector<std::byte> body = session.query(wire::QueryKind::kCounters, "counters");
  return decode_answer(session, body, wire::decode_counters);
}

wire::Context server_context(Session& session) {
  const std::vector<std::byte> body = session.query(wire::QueryKind::kContext, "context");
  return decode_answer(session, body, wire::decode_context);
}

}  // namespace torch_remote::client
