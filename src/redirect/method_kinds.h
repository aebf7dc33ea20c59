#pragma once

#include "redirect/method.h"

namespace torch_remote::redirect {

// factory    makes a tensor; no device means the accelerator
// converter  the same, but follows a tensor among its first two arguments: torch.tensor, as_tensor
// follower   follows its tensor unless a device is named: *_like, new_*
// draw       draws numbers for a tensor: torch.multinomial
// draw_in_place  the same: Tensor.normal_
// to         the first argument or `device=` may be a device
// cuda, cpu, pin_memory, is_pinned, numpy, record_stream, type    methods of Tensor
// autocast   the first argument or `device_type=` may be the name of a type of devices
// autocast_flag  the same, and without a name CUDA is meant
// pack       the second argument, `lengths`, must be a tensor of the CPU
// parse_to   the function that Module.to calls first
//
// Null for another name.
Body find_body(const char* kind);

}  // namespace torch_remote::redirect
