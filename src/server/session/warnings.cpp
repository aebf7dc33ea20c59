#include "server/session/warnings.h"

#include <algorithm>
#include <string_view>

#include "base/log.h"
#include "base/text.h"
#include "wire/limits.h"

namespace torch_remote::server {
namespace {

// The client's own PyTorch warns of the tensors that it makes. The weights of a recurrent layer are
// apart in its storages, which users cannot change.
constexpr std::string_view kNotForUsers[] = {
    "ComplexHalf support is experimental",
    "Sparse CSR tensor support is in beta state",
    "Sparse CSC tensor support is in beta state",
    "Sparse BSR tensor support is in beta state",
    "Sparse BSC tensor support is in beta state",
    "RNN module weights are not part of single contiguous chunk",
};

bool is_for_users(std::string_view text) {
  return std::ranges::none_of(kNotForUsers,
                              [text](std::string_view begin) { return text.starts_with(begin); });
}

// As PyTorch's bindings for Python say it.
std::string words_of(const c10::Warning& warning) {
  const c10::SourceLocation& place = warning.source_location();
  if (place.file == nullptr || warning.verbatim())
    return warning.msg();
  return c10::str(warning.msg(), " (Triggered internally at ", place.file, ":", place.line, ".)");
}

}  // namespace

Warnings::~Warnings() {
  if (left_out_ != 0)
    log(LogLevel::kInfo, "warnings of kernels were left out", {{"count", left_out_}});
}

void Warnings::process(const c10::Warning& warning) {
  if (!is_for_users(warning.msg()))
    return;
  if (replies_ == nullptr)
    return c10::WarningHandler::process(warning);
  const bool is_deprecation = std::holds_alternative<c10::DeprecationWarning>(warning.type());
  send(is_deprecation ? wire::WarningCategory::kDeprecation : wire::WarningCategory::kUser,
       words_of(warning));
}

void Warnings::send(wire::WarningCategory category, const std::string& text) {
  const std::string key =
      static_cast<char>(category) + std::string(cut_text(text, wire::kMaxWarningText));
  const auto known = numbers_.find(key);
  wire::Warning message = interpreter_.running();
  message.is_new = known == numbers_.end();
  if (!message.is_new) {
    message.number = known->second;
    return replies_->warning(message);
  }
  const bool is_last = numbers_.size() + 1 == wire::kMaxWarningTexts;
  if (numbers_.size() == wire::kMaxWarningTexts) {
    ++left_out_;
    return;
  }
  message.number = numbers_.size() + 1;
  message.category = is_last ? wire::WarningCategory::kUser : category;
  message.text = is_last ? "torch_remote: kernels of this session have warned in too many words; "
                           "the server leaves out every other warning from here on"
                         : text;
  left_out_ += is_last ? 1 : 0;
  numbers_.emplace(is_last ? std::string() : key, message.number);
  replies_->warning(message);
}

}  // namespace torch_remote::server
