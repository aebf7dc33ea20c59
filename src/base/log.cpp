#include "base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>

#include <unistd.h>

#include "base/mutex.h"
#include "base/platform.h"
#include "base/text.h"

namespace torch_remote {
namespace {

constexpr std::string_view kLevelNames[] = {"debug", "info", "warning", "error"};

std::string_view level_name(LogLevel level) {
  return kLevelNames[static_cast<size_t>(level)];
}

LogLevel level_from_environment() {
  const char* const wanted = std::getenv("TORCH_REMOTE_LOG");  // NOLINT(concurrency-mt-unsafe)
  if (wanted == nullptr || *wanted == '\0')
    return LogLevel::kWarning;
  for (size_t i = 0; i < std::size(kLevelNames); ++i)
    if (kLevelNames[i] == wanted)
      return static_cast<LogLevel>(i);
  std::fprintf(stderr,
               "torch-remote: TORCH_REMOTE_LOG: '%s' is not debug, info, warning or error\n",
               wanted);
  return LogLevel::kWarning;
}

// The local time as in 2026-03-01T12:00:00.123+01:00.
std::string time_now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto whole = std::chrono::system_clock::from_time_t(seconds);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now - whole);
  std::tm local{};
  localtime_r(&seconds, &local);
  char day[32];
  char zone[8];  // +0100
  char text[64];
  std::strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &local);
  std::strftime(zone, sizeof(zone), "%z", &local);
  std::snprintf(text, sizeof(text), "%s.%03d%.3s:%.2s", day, static_cast<int>(milliseconds.count()),
                zone, zone + 3);
  return text;
}

// Writes lines to standard error, one at a time. While it is full because nobody reads it, a line
// is dropped after 100 ms and later ones at once, so that the server does not hang. Thread-safe.
class StandardError {
 public:
  void write(const std::string& line) { write_within(patience_.load(), time_now() + ' ' + line); }

  void write_now(const std::string& line) { write_within(std::chrono::milliseconds(0), line); }

  void never_wait() noexcept { patience_.store(std::chrono::milliseconds(0)); }

 private:
  void write_within(std::chrono::milliseconds patience, const std::string& line) {
    MutexLock lock(mutex_);
    std::string text =
        dropped_ == 0 ? "" : "\n(" + std::to_string(dropped_) + " lines were lost)\n";
    text += line + '\n';
    const bool is_read = dropped_ == 0;
    if (write_patiently(STDERR_FILENO, text, is_read ? patience : patience * 0))
      dropped_ = 0;
    else
      ++dropped_;
  }

  std::atomic<std::chrono::milliseconds> patience_{std::chrono::milliseconds(100)};
  Mutex mutex_;
  uint64_t dropped_ GUARDED_BY(mutex_) = 0;
};

// Created on first use and never destroyed, because threads may log during exit.
class Log {
 public:
  static Log& instance() {
    static Log* const log = new Log;
    return *log;
  }

  bool enabled(LogLevel level) const noexcept {
    return level >= level_.load(std::memory_order_relaxed);
  }

  void set_level(LogLevel level) noexcept { level_.store(level, std::memory_order_relaxed); }

  void set_name(std::string_view name) {
    MutexLock lock(mutex_);
    name_ = name;
  }

  std::string name() {
    MutexLock lock(mutex_);
    return name_;
  }

  StandardError& standard_error() { return standard_error_; }

 private:
  Log() : level_(level_from_environment()) {}

  std::atomic<LogLevel> level_;
  StandardError standard_error_;
  Mutex mutex_;
  std::string name_ GUARDED_BY(mutex_);
};

// With \ before what ends a value; what cannot be shown is escaped after that.
void append_quoted(std::string& line, std::string_view text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '"' || c == '\\')
      quoted += '\\';
    quoted += c;
  }
  line += escaped(quoted);
}

bool needs_quotes(std::string_view value) {
  return value.empty() || value.find_first_of(" \"\\=") != std::string_view::npos ||
         needs_escapes(value);
}

void append_value(std::string& line, std::string_view value) {
  if (!needs_quotes(value)) {
    line += value;
    return;
  }
  line += '"';
  append_quoted(line, value);
  line += '"';
}

}  // namespace

std::string format_log_line(LogLevel level, std::string_view name, std::string_view event,
                            std::initializer_list<LogField> fields) {
  std::string line(level_name(level));
  if (!name.empty()) {
    line += " [";
    line += name;
    line += ']';
  }
  line += ' ';
  append_quoted(line, event);
  for (const LogField& field : fields) {
    line += ' ';
    line += field.key;
    line += '=';
    append_value(line, field.value);
  }
  return line;
}

bool log_enabled(LogLevel level) noexcept {
  return Log::instance().enabled(level);
}

void log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (!log_enabled(level))
    return;
  Log& log = Log::instance();
  log.standard_error().write(format_log_line(level, log.name(), event, fields));
}

void pass_on_log_line(const std::string& line) {
  Log::instance().standard_error().write_now(line);
}

void never_wait_for_log() noexcept {
  Log::instance().standard_error().never_wait();
}

void set_log_name(std::string_view name) {
  Log::instance().set_name(name);
}

void set_log_level(LogLevel level) noexcept {
  Log::instance().set_level(level);
}

}  // namespace torch_remote
