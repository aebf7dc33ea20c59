# Two sets: everything for the torch-free layers, and for the torch layers the same without the
# checks that torch's macros and inlined templates set off in our own lines.
add_library(torch_remote_warnings_torch INTERFACE)
target_compile_options(torch_remote_warnings_torch INTERFACE
  -Wall -Wextra -Wpedantic -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align
  -Wimplicit-fallthrough
  $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wthread-safety>
  # Torch's registration macros use __COUNTER__, which clang 22 calls an extension.
  $<$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,22>>:-Wno-c2y-extensions>
  $<$<BOOL:${TORCH_REMOTE_WERROR}>:-Werror>)

add_library(torch_remote_warnings INTERFACE)
target_link_libraries(torch_remote_warnings INTERFACE torch_remote_warnings_torch)
target_compile_options(torch_remote_warnings INTERFACE -Wshadow -Wconversion -Wsign-conversion)
if(NOT TORCH_REMOTE_SANITIZE)
  # g++ guesses this one from inlined code, and guesses wrong in instrumented code.
  target_compile_options(torch_remote_warnings INTERFACE -Wnull-dereference)
endif()
