# TORCH_REMOTE_SANITIZE is passed to -fsanitize as it stands: "address,undefined" or "thread".
if(TORCH_REMOTE_SANITIZE)
  add_compile_options(-fsanitize=${TORCH_REMOTE_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TORCH_REMOTE_SANITIZE})
endif()

# The libraries are instrumented too: a fuzzer that sees no branches in the decoder finds nothing.
if(TORCH_REMOTE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "The fuzz targets need clang: use `cmake --preset fuzz`.")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
