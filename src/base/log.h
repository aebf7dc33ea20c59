#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

// Lines on stderr, one per event:
//
//   line := time level ["[" name "]"] event (key "=" value)*
//
//   2026-03-01T12:00:00.123+00:00 warning [session-7] connection lost peer=unix:///tmp/s frames=12
//
// The level comes from TORCH_REMOTE_LOG (debug, info, warning or error; warning when unset).
// Never log payloads or tokens. All functions are thread-safe.
namespace torch_remote {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// One key=value of a line. Values with spaces, quotes or control characters are quoted and escaped,
// so that text from the peer cannot look like a line of ours.
struct LogField {
  LogField(std::string_view field_key, std::string_view text) : key(field_key), value(text) {}

  LogField(std::string_view field_key, const char* text) : key(field_key), value(text) {}

  template <typename Number>

  requires std::integral<Number> || std::floating_point<Number> LogField(std::string_view field_key,
                                                                         Number number)
      : key(field_key), value(std::to_string(number)) {}

  std::string_view key;
  std::string value;
};

// One relaxed load. Ask before building fields that are costly.
bool log_enabled(LogLevel level) noexcept;
void log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

// Writes a line that another process has written, as it is. Does not wait: where standard error is
// full, the line is lost, and a later line says how many were.
void pass_on_log_line(const std::string& line);
// From now on lines of log() are lost at once where standard error is full.
void never_wait_for_log() noexcept;

// Appears in each line from now on, e.g. the id of a session.
void set_log_name(std::string_view name);
void set_log_level(LogLevel level) noexcept;

// A line as log() writes it, without the time.
std::string format_log_line(LogLevel level, std::string_view name, std::string_view event,
                            std::initializer_list<LogField> fields);

}  // namespace torch_remote
