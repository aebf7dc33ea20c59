#include "redirect/policy.h"

namespace torch_remote::redirect {
namespace {

bool exists(Kind kind, const Situation& situation) {
  switch (kind) {
    case Kind::kCuda:
      return situation.cuda > 0;
    case Kind::kMps:
      return situation.mps;
    case Kind::kRemote:
      return situation.remote > 0;
    default:
      return false;
  }
}

// MPS has one device. CPU tensors carry no index, so their device has none either.
int first_index(Kind accelerator) {
  if (accelerator == Kind::kCpu)
    return kNoIndex;
  return accelerator == Kind::kMps ? 0 : kCurrent;
}

Decision use(Kind accelerator, Reason reason) {
  return {accelerator, first_index(accelerator), reason};
}

// CUDA's index names one of several devices. MPS has one device, and "mps:1" is what a program with
// read_as="mps" was told of the second.
bool names_one_of_several(const Request& request) {
  return request.kind == Kind::kCuda ? request.index != kNoIndex : request.index > 0;
}

// An accelerator that is not the one in use.
Decision replace(const Request& request, Kind accelerator, const Situation& situation) {
  if (accelerator != Kind::kRemote || !names_one_of_several(request))
    return use(accelerator, Reason::kNotHere);
  if (request.index < situation.remote)
    return {accelerator, request.index, Reason::kNotHere};
  return {accelerator, 0, Reason::kNoSuchIndex};
}

Decision as_asked(const Request& request) {
  return {request.kind, request.index, Reason::kAsAsked};
}

// The override does not touch CPU requests and requests without a device: they yield CPU already.
Decision decide_overridden(const Request& request, Kind accelerator) {
  const bool names_accelerator =
      request.kind == Kind::kCuda || request.kind == Kind::kMps || request.kind == accelerator;
  if (!names_accelerator || request.kind == Kind::kCpu)
    return as_asked(request);
  return use(Kind::kCpu, Reason::kOverride);
}

// Inside a scope the CPU stays, whatever the toggle says.
Decision toggle(Situation situation) {
  situation.override_by ^= kByToggle;
  const bool is_on = (situation.override_by & kByToggle) != 0;
  return decide_default(situation, is_on ? Reason::kToggledOn : Reason::kToggledOff);
}

}  // namespace

Kind choose_accelerator(const Situation& situation) {
  for (const Kind kind : situation.order) {
    if (exists(kind, situation))
      return kind;
  }
  return Kind::kCpu;
}

Decision decide_default(const Situation& situation, Reason reason) {
  return use(situation.is_overridden() ? Kind::kCpu : choose_accelerator(situation), reason);
}

Decision decide(const Request& request, const Situation& situation) {
  if (situation.policy == Policy::kOff || request.kind == Kind::kOther)
    return as_asked(request);
  const Kind accelerator = choose_accelerator(situation);
  if (request.kind == Kind::kToggle)
    return toggle(situation);
  if (situation.is_overridden())
    return decide_overridden(request, accelerator);
  if (request.kind == accelerator || request.kind == Kind::kRemote)
    return as_asked(request);
  if (request.kind == Kind::kCuda || request.kind == Kind::kMps)
    return replace(request, accelerator, situation);
  const Policy needed = request.kind == Kind::kNone ? Policy::kForeignDefault : Policy::kFull;
  if (situation.policy < needed || accelerator == Kind::kCpu)
    return as_asked(request);
  return use(accelerator, request.kind == Kind::kNone ? Reason::kNoDevice : Reason::kCpuAsked);
}

const char* to_text(Kind kind) {
  switch (kind) {
    case Kind::kNone:
      return "no device";
    case Kind::kCpu:
      return "cpu";
    case Kind::kCuda:
      return "cuda";
    case Kind::kMps:
      return "mps";
    case Kind::kRemote:
      return "remote";
    case Kind::kToggle:
      return "cpu:-1";
    case Kind::kOther:
      break;
  }
  return "another device";
}

std::string to_text(const Request& request) {
  std::string text = to_text(request.kind);
  if (request.index >= 0)
    text += ":" + std::to_string(request.index);
  return text;
}

bool is_evident(Reason reason) {
  return reason == Reason::kAsAsked || reason == Reason::kNoDevice || reason == Reason::kCpuAsked ||
         reason == Reason::kNotHere;
}

const char* to_text(Reason reason) {
  switch (reason) {
    case Reason::kAsAsked:
      return "as asked";
    case Reason::kNoDevice:
      return "no device was named";
    case Reason::kCpuAsked:
      return "cpu was named, and there is an accelerator";
    case Reason::kNotHere:
      return "it is not the accelerator in use";
    case Reason::kNoSuchIndex:
      return "there is no device of this index";
    case Reason::kOverride:
      return "the CPU override is on";
    case Reason::kToggledOn:
      return "cpu:-1 turned the CPU override on";
    case Reason::kToggledOff:
      return "cpu:-1 turned the CPU override off";
    case Reason::kGenerator:
      return "its generator is of that device";
    case Reason::kDrawnOnCpu:
      return "its generator is of the CPU: the numbers are drawn there and copied";
  }
  return "";
}

}  // namespace torch_remote::redirect
