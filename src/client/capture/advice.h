#pragma once

#include <atomic>
#include <string>
#include <utility>

namespace torch_remote::client {

// What TorchDevice adds to an error; may be empty. Thread-safe.
class Advice {
 public:
  void set(std::string text) {
    if (get() != text)
      text_ = new std::string(std::move(text));
  }

  std::string get() const {
    const std::string* const text = text_;
    return text == nullptr ? std::string() : *text;
  }

 private:
  std::atomic<const std::string*> text_{nullptr};  // never freed: another thread may be reading it
};

// For the error that names a device of the CPU among remote ones.
Advice& mixing_advice();

}  // namespace torch_remote::client
