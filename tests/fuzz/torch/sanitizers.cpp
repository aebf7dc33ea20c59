// How AddressSanitizer goes with a libtorch that is not instrumented, and with messages that ask for any amount of memory.

extern "C" const char* __asan_default_options() {  // NOLINT: the runtime's name
  // A storage may have 2^48 bytes: to be out of memory is an answer, and comes soon.
  return "allocator_may_return_null=1:max_allocation_size_mb=64:"
         // An input frees little, and what it frees is looked for within that input.
         "quarantine_size_mb=16:"
         // The dispatcher, its schemas and its caches live until the process ends.
         "detect_leaks=0";
}
