// How threads are told what kernels warn of. A call does not wait, so the next wait tells, with the
// line of the call. Python code may run then, so no lock is held.
#include <typeinfo>

#include <c10/util/Exception.h>

#include "base/error.h"
#include "client/process/errors.h"
#include "client/process/threads.h"
#include "client/session/session.h"

namespace torch_remote::client {
namespace {

// PyTorch warns at the end of the operation that waits, at the line that waits. There it may raise.
void warn_at_wait(const ShownWarning& warning) {
  c10::Warning::warning_variant_t type = c10::UserWarning();
  if (warning.is_deprecation)
    type = c10::DeprecationWarning();
  // Python's handler adds no place to the text where there is none; c10's own, for a thread that
  // Python has not called, must have one.
  const c10::WarningHandler& handler = *c10::WarningUtils::get_warning_handler();
  const char* const nowhere = typeid(handler) == typeid(c10::WarningHandler) ? "" : nullptr;
  c10::warn(c10::Warning(type, c10::SourceLocation{nowhere, nowhere, 0}, warning.text, false));
}

bool can_show(Warnings& warnings) {
  return warnings.has_any() && python_hooks.warn != nullptr && !KeepGil::is_kept();
}

// True: a filter makes it an error.
bool show(const Warnings::Warning& warning, bool prints) {
  const SourceLine line = warning.line == 0 ? SourceLine() : line_of(warning.line);
  return python_hooks.warn(*warning.shown, line.file, line.number, prints);
}

void show_at_wait(Warnings& warnings, uint64_t thread) {
  while (const auto warning = warnings.take(thread)) {
    if (warning->line != 0 && !show(*warning, false))
      continue;
    warn_at_wait(*warning->shown);
    if (warning->line != 0)
      return;  // what follows an error is for the next wait
  }
}

}  // namespace

void Session::on_warning(wire::Reader& reader) {
  wire::Warning warning = wire::decode_warning(reader);
  if (warning.call > order_.submitted())
    throw ProtocolError("the server warns of a call that was not made");
  CallSite site = order_.site_of(warning.call).value_or(CallSite{});
  if (warning.program != 0)  // where it was recorded
    site.line =
        order_.program_sites().find(warning.program, warning.step).value_or(CallSite{}).line;
  warnings_.add(std::move(warning), site);
}

void show_warnings(Session& session) {
  if (can_show(session.warnings_)) [[unlikely]]
    show_at_wait(session.warnings_, current_thread());
}

void show_all_warnings(Session& session) {
  if (can_show(session.warnings_))
    show_at_wait(session.warnings_, 0);
}

bool print_warnings(Session& session) {
  bool is_error = false;
  if (can_show(session.warnings_))
    while (const auto warning = session.warnings_.take(0))
      is_error |= show(*warning, true);
  return is_error;
}

}  // namespace torch_remote::client
