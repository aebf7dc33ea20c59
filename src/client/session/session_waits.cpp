// How threads wait, what long waits print, and what is printed at exit.
#include <algorithm>
#include <cstdio>

#include <unistd.h>

#include "base/log.h"
#include "client/operators/operator.h"
#include "client/session/pending.h"
#include "client/session/progress.h"
#include "client/session/records.h"
#include "client/session/session.h"

namespace torch_remote::client {
namespace {

using Clock = std::chrono::steady_clock;

// How often a wait checks for Ctrl-C.
constexpr auto kSignalInterval = std::chrono::milliseconds(50);
constexpr auto kFirstNotice = std::chrono::seconds(1);
constexpr auto kBetweenNotices = std::chrono::seconds(5);

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
  bool was_told = false;
  bool is_ready = false;
  const auto is_over = [&] { return (is_ready = ready()) || is_lost(); };
  TransferProgress::update();
  while (!requests_.wait_for(is_over, kSignalInterval)) {
    look_for_interrupt();
    TransferProgress::update();
    if (Clock::now() - begin < kFirstNotice || TransferProgress::is_shown())
      continue;
    if (waiter == Waiter::kExit && !was_told)
      say_exit_wait();
    else
      say_wait(what);
    was_told = true;
  }
  if (is_ready)
    return;
  if (log_enabled(LogLevel::kDebug))
    log(LogLevel::kDebug, "wait ended by a lost session", {{"what", what}});
  raise_lost();
}

void Session::abandon(const RequestPtr& request) {
  if (requests_.abandon_answer(*request) && !request->failed)
    free_results(*request);
}

void Session::free_results(const Request& request) {
  if (request.first_name == 0)
    return;
  wire::Reader reader(request.body);
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
            stream_.queue_free(record);
          }
          free_fresh(result.items);
        }
      };
  free_fresh(wire::decode_results(reader));
}

void Session::wait_quietly(const RequestPtr& request, const char* what) {
  ++counters_.syncs;
  link_.flush();
  const TransferProgress progress(*request);
  wait_until([&] { return request->done.load(); }, what);
  confirm(std::max(request->call, request->after));
}

bool Session::wait_within(const RequestPtr& request, const char* what,
                          std::chrono::milliseconds time) {
  ++counters_.syncs;
  link_.flush();
  const TransferProgress progress(*request);
  const Clock::time_point end = Clock::now() + time;
  wait_until([&] { return request->done || Clock::now() >= end; }, what);
  if (!request->done)
    return false;
  confirm(request->call);
  return true;
}

void Session::wait(const RequestPtr& request, const char* what) {
  wait_quietly(request, what);
  if (request->failed)
    raise_failed(*request);
}

std::vector<std::byte> Session::query(wire::QueryKind kind, const std::string& what,
                                      const std::function<void(wire::Writer&)>& write_body) {
  const RequestPtr request = make_request({}, nullptr);
  submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
    const wire::Message framed(writer, wire::Tag::kQuery);
    encode_head(writer, wire::Query{request->id, kind});
    if (write_body)
      write_body(writer);
    return true;
  });
  wait(request, what.c_str());
  return std::move(request->body);
}

void Session::look_for_interrupt() {
  if (python_hooks.check_signals == nullptr)
    return;
  try {
    python_hooks.check_signals();
  } catch (...) {
    last_notice_ = Clock::time_point();  // the next wait prints after a second
    throw;
  }
}

// --- what is waited for

void Session::confirm(uint64_t call) {
  uint64_t known = confirmed_.load(std::memory_order_relaxed);
  while (known < call &&
         !confirmed_.compare_exchange_weak(known, call, std::memory_order_relaxed)) {
  }
}

uint64_t Session::calls_done() const {
  const uint64_t confirmed = confirmed_.load(std::memory_order_relaxed);
  const transport::Connection* const connection = link_.connection();
  return connection == nullptr ? confirmed
                               : std::max(confirmed, connection->in_flight().calls_applied);
}

uint64_t Session::calls_left() const {
  const uint64_t done = calls_done();
  return std::max(stream_.submitted(), done) - done;
}

std::string Session::describe_oldest_call() {
  const CallSite found = stream_.site_of(calls_done() + 1).value_or(CallSite{});
  const std::string name = operator_at(found.operation);
  const std::string line = name_line(found.line);
  return (name.empty() ? "a copy" : name) + (line.empty() ? "" : " at " + line);
}

std::string Session::describe_wait(const char* what) {
  if (!link_.is_open())
    return url() + " to answer";
  const uint64_t left = calls_left();
  if (link_.is_resuming())
    return "the connection to " + url() + ", " + counted(left) + " not confirmed";
  if (left > 1)
    return describe_oldest_call() + ", " + counted(left - 1) + " behind it";
  if (left == 1)
    return describe_oldest_call();
  const uint64_t bytes = bulk_bytes_.load(std::memory_order_relaxed);
  return bytes == 0 ? what : std::to_string((bytes >> 20) + 1) + " MiB of uploads";
}

// To a terminal only, and from one thread if several wait.
void Session::say_wait(const char* what) {
  const Clock::time_point now = Clock::now();
  Clock::time_point last = last_notice_.load(std::memory_order_relaxed);
  if (now - last < kBetweenNotices || isatty(STDERR_FILENO) == 0 ||
      !last_notice_.compare_exchange_strong(last, now))
    return;
  say("waiting for " + describe_wait(what));
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
  if (!is_lost())
    return left == 0 ? "" : calls + " not waited for, and may have failed\n";
  const Link::Ending ending = link_.ending();
  if (left == 0)
    return ending.kind == ErrorClass::kDeviceLost ? ending.cause + "\n" : "";
  return calls + " not confirmed: the session on " + url() + " is lost: " + ending.cause + "\n";
}

std::string Session::describe_known_failures() {
  std::vector<Failure> failures = faults_.untold();
  for (const auto& download : PendingDownloads::instance().of(*this)) {
    const auto is_same = [&](const Failure& failure) {
      return failure.error.call == download->error.call;
    };
    if (download->done && download->failed && !faults_.has_told(*download) &&
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

std::string Session::report_untold(bool waits) {
  if (!waits || is_loss_told_ || !has_sent_calls())
    return describe_known_failures();
  const auto request = make_request({}, nullptr);
  try {
    wait_until([this] { return link_.is_open(); }, "the handshake", Waiter::kExit);
    submit(0, [&](wire::Writer& writer, wire::NameState&, SignatureTable&) {
      const wire::Message framed(writer, wire::Tag::kQuery);
      encode_head(writer, wire::Query{request->id, wire::QueryKind::kBarrier});
      return true;
    });
    link_.flush();
    // Does not wait for a server that cannot be reached and has done everything.
    bool is_answered = false;
    const auto is_over = [&] {
      is_answered = request->done.load();
      return is_answered || (link_.is_resuming() && calls_left() == 0);
    };
    wait_until(is_over, "the last calls", Waiter::kExit);
    if (!is_answered)
      return describe_known_failures();
    for (const auto& download : PendingDownloads::instance().of(*this))
      wait_until([&] { return download->done.load(); }, "a download", Waiter::kExit);
  } catch (...) {  // the session is lost, or the user has pressed Ctrl-C
    return describe_known_failures() + describe_unconfirmed();
  }
  if (request->failed)
    return "the last calls may have failed:\n  " + describe(request->error, std::nullopt, 0) + "\n";
  return describe_known_failures();
}

// --- what the server says of itself

wire::Counters server_counters(Session& session) {
  const std::vector<std::byte> body = session.query(wire::QueryKind::kCounters, "counters");
  wire::Reader reader(body);
  return wire::decode_counters(reader);
}

wire::Context server_context(Session& session) {
  const std::vector<std::byte> body = session.query(wire::QueryKind::kContext, "context");
  wire::Reader reader(body);
  return wire::decode_context(reader);
}

}  // namespace torch_remote::client
