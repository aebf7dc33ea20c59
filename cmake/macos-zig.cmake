# Compiles for macOS on arm64 with the clang, the headers and the linker of the PyPI package ziglang.
# tools/macos.sh (`make macos`) uses this; it makes the three programs in TORCH_REMOTE_ZIG_BIN.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_ARCHITECTURES "" CACHE STRING "")  # the compiler's -target has it

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TORCH_REMOTE_ZIG_BIN)
set(CMAKE_CXX_COMPILER ${TORCH_REMOTE_ZIG_BIN}/c++)
set(CMAKE_AR           ${TORCH_REMOTE_ZIG_BIN}/ar)
set(CMAKE_RANLIB       ${TORCH_REMOTE_ZIG_BIN}/ranlib)
set(CMAKE_INSTALL_NAME_TOOL true)  # nothing is installed

# Programs are those of this machine. Headers and libraries of this machine are not for macOS.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
