// AddressSanitizer's options for a libtorch without instrumentation and for huge allocations.

extern "C" const char* __asan_default_options() {  // NOLINT: the runtime's name
  // A storage may have 2^48 bytes: running out of memory is a valid answer.
  return "allocator_may_return_null=1:max_allocation_size_mb=64:"
         // An input frees little, and what it frees is looked for within that input.
         "quarantine_size_mb=16:"
         // The dispatcher, its schemas and its caches live until the process ends.
         "detect_leaks=0";
}
