#pragma once

namespace torch_remote {

// Note [Traced calls]
//
// To find out what a library needs (docs/security.md), the filter of a traced process answers with
// SIGSYS where it would refuse a call, and the signal's handler prints the call and refuses it. It
// does the same for each file that is opened: the handler opens it by openat2(), which the filter
// allows there, and prints what Landlock refuses.

// Sets the handler. The filter's answer has the error of a refused call; 0: open the file.
void trace_refused_calls();

}  // namespace torch_remote
