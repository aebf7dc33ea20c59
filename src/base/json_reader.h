#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace torch_remote {

// The text is no JSON, or not the values that were asked for: "byte 17: a string is expected".
class JsonError : public std::runtime_error {
 public:
  explicit JsonError(const std::string& what) : std::runtime_error(what) {}

  JsonError(size_t at, const std::string& what);
};

// Reads one JSON text from its beginning to its end, by asking for the values that should be there.
// Strict, for the text may be a stranger's: it must be UTF-8, nothing is left out or added, and
// what is skipped is nested kMaxDepth deep at most. Every function throws JsonError.
class JsonReader {
 public:
  static constexpr int kMaxDepth = 32;

  explicit JsonReader(std::string_view text);

  // Calls `use(key)` for each member. It must read the value.
  template <typename Use>
  void object(Use&& use) {
    begin('{', "an object is expected");
    for (bool is_first = true; goes_on('}', is_first); is_first = false) {
      std::string key = string();
      begin(':', "':' is expected");
      use(std::move(key));
    }
  }

  // Calls `use()` for each element. It must read the element.
  template <typename Use>
  void array(Use&& use) {
    begin('[', "a list is expected");
    for (bool is_first = true; goes_on(']', is_first); is_first = false)
      use();
  }

  std::string string();
  // A number without sign, fraction and exponent, up to UINT64_MAX.
  uint64_t whole_number();

  // Any value.
  void skip() { skip(0); }

  // Call last: nothing but white space follows.
  void finish();

 private:
  void skip(int depth);
  void skip_number();
  void skip_digits();
  void skip_white();
  // The next character that is not white space; 0 at the end.
  char peek();
  void begin(char wanted, const char* otherwise);
  // Whether another element of a list or object follows. Reads the ',' before it, or the `end`.
  bool goes_on(char end, bool is_first);
  bool take(std::string_view word);
  void escape(std::string& text);
  uint32_t four_digits();
  [[noreturn]] void fail(const std::string& what) const;

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace torch_remote
