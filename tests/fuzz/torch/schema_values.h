#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "draw.h"
#include "wire/signature.h"
#include "wire/slots.h"

// Draws signatures and slots for operators of the installed torch: mostly valid ones, sometimes
// with a wrong or hostile part.
namespace torch_remote::fuzz {

// Every operator that the dispatcher has, those that no client may call among them, sorted by name.
const std::vector<c10::OperatorHandle>& all_operators();

// How a signature is named; what it says beside that is drawn.
struct Naming {
  uint64_t index = 0;
  uint32_t number = 0;         // the client's, for the operator
  bool is_introduced = false;  // before this signature
};

// A SIGNATURE without its tag.
void draw_signature(Draw& draw, const c10::OperatorHandle& operation, const Naming& naming,
                    wire::Writer& writer);

// Draws what follows the index in a call. `next_name` chooses old or new storages.
void draw_slots(Draw& draw, const wire::Signature& signature, wire::Writer& writer,
                wire::NameState& names, const std::function<uint64_t(bool is_new)>& next_name);

}  // namespace torch_remote::fuzz
