#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include <c10/util/Exception.h>

#include "server/bytes/reply.h"
#include "server/handlers/interpreter.h"
#include "wire/warning.h"

namespace torch_remote::server {

// What PyTorch warns of on the executor thread. Kernels warn while a call runs, so the client gets
// the number of that call with the text (WARNING), or the server's standard error gets the text
// alone. Confined to the executor thread.
class Warnings : public c10::WarningHandler {
 public:
  // `replies` may be null: for a client that does not take warnings.
  Warnings(Replies* replies, const Interpreter& interpreter)
      : replies_(replies), interpreter_(interpreter) {}

  ~Warnings() override;

  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;

  void process(const c10::Warning& warning) override;

 private:
  // Sends what is warned of, with a text that may be new.
  void send(wire::WarningCategory category, const std::string& text);

  Replies* const replies_;
  const Interpreter& interpreter_;
  std::unordered_map<std::string, uint64_t> numbers_;  // of the texts that were sent
  uint64_t left_out_ = 0;                              // beyond kMaxWarningTexts
};

}  // namespace torch_remote::server
