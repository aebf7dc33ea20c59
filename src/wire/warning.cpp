#include "wire/warning.h"

#include "base/error.h"
#include "base/text.h"
#include "wire/limits.h"
#include "wire/messages.h"

namespace torch_remote::wire {

void encode(Writer& writer, const Warning& warning) {
  const Message framed(writer, Tag::kWarning);
  writer.varint(warning.call);
  writer.varint(warning.program);
  writer.varint(warning.step);
  writer.varint(warning.number);
  if (!warning.is_new)
    return;
  writer.u8(static_cast<uint8_t>(warning.category));
  writer.text(cut_text(warning.text, kMaxWarningText));
}

Warning decode_warning(Reader& reader) {
  Warning warning;
  warning.call = reader.varint();
  warning.program = reader.varint();
  warning.step = reader.count(kMaxProgramSteps, "step of a program");
  warning.number = reader.name();
  check_limit("texts of warnings", warning.number, kMaxWarningTexts);
  warning.is_new = !reader.empty();
  if (!warning.is_new)
    return warning;
  const uint8_t category = reader.u8();
  if (category > static_cast<uint8_t>(WarningCategory::kDeprecation))
    throw ProtocolError("no warning category " + std::to_string(category));
  warning.category = static_cast<WarningCategory>(category);
  warning.text = reader.readable_text(kMaxWarningText, "text of a warning");
  return warning;
}

}  // namespace torch_remote::wire
