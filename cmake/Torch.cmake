# Finds torch by asking Python, once for each build folder (not find_package(Torch): with a CUDA
# wheel that wants a CUDA toolkit). Defines
#
#   torch_remote_torch         c10, torch_cpu, torch and their headers
#   torch_remote_torch_cuda    torch_cuda and c10_cuda where the wheel has them, else nothing
#   torch_remote_torch_python  torch_python, pybind11 and Python's headers
#   TORCH_REMOTE_PYTHON_COMMAND, TORCH_REMOTE_TORCH_{VERSION,LIB_DIR,INCLUDE_DIR}, TORCH_REMOTE_EXT_SUFFIX
#   TORCH_REMOTE_TORCH_IS_BESIDE  torch is in the folder in which pip installs torch_remote
#
# A build for another system (cmake/macos-zig.cmake) sets TORCH_REMOTE_TORCH_HOME, the folder "torch"
# of an unpacked wheel for that system, and TORCH_REMOTE_EXT_SUFFIX, how that system's Python names
# extension modules. Python's headers are then those of the Python that is asked.
#
# Python runs with -I: inside pip's isolated build PYTHONPATH hides the environment that torch is
# installed in, and -I does not look at PYTHONPATH. Nothing is imported: torch takes seconds.
set(TORCH_REMOTE_TORCH_HOME "" CACHE PATH "Folder of a torch for another system; empty: Python's own")
set(_torch_question [=[
import importlib.util, json, pathlib, re, sys, sysconfig
def home(name):
    if sys.argv[1]:
        return pathlib.Path(sys.argv[1]).parent / name
    spec = importlib.util.find_spec(name)
    return pathlib.Path(spec.origin).parent if spec and spec.origin else None
torch, torchgen = home("torch"), home("torchgen")
answer = {"found": torch is not None}
if torch:
    config = torch / "share/cmake/Torch/TorchConfig.cmake"
    abi = re.search(r"_GLIBCXX_USE_CXX11_ABI=(\d)", config.read_text() if config.exists() else "")
    version = re.search(r"__version__ = '([^']+)'", (torch / "version.py").read_text())
    answer |= {
        "home": str(torch),
        "version": version.group(1),
        "cxx11_abi": abi.group(1) if abi else "1",
        "cuda": (torch / "lib/libtorch_cuda.so").exists() and (torch / "lib/libc10_cuda.so").exists(),
        "yaml": str(torchgen / "packaged/ATen/native/native_functions.yaml") if torchgen else "",
        "python_include": sysconfig.get_path("include"),
        "ext_suffix": sysconfig.get_config_var("EXT_SUFFIX"),
        "beside": torch.parent == pathlib.Path(sysconfig.get_path("platlib")),
    }
print(json.dumps(answer))
]=])

if(TORCH_REMOTE_PYTHON)
  set(TORCH_REMOTE_PYTHON_COMMAND ${TORCH_REMOTE_PYTHON})
elseif(Python_EXECUTABLE)  # scikit-build-core sets it
  set(TORCH_REMOTE_PYTHON_COMMAND ${Python_EXECUTABLE})
else()
  find_program(TORCH_REMOTE_PYTHON3 python3 REQUIRED)
  set(TORCH_REMOTE_PYTHON_COMMAND ${TORCH_REMOTE_PYTHON3})
endif()

# The answer is kept until another Python is named, another torch is installed in this one, or the
# question changes.
string(MD5 _torch_question_hash "${_torch_question}")
set(_torch_asked "${TORCH_REMOTE_PYTHON_COMMAND} ${TORCH_REMOTE_TORCH_HOME} ${_torch_question_hash}")
set(_torch_stamp "${_torch_asked}")
if(TORCH_REMOTE_TORCH_ANSWER)
  string(JSON _torch_home GET "${TORCH_REMOTE_TORCH_ANSWER}" home)
  file(TIMESTAMP "${_torch_home}/version.py" _torch_time)
  string(APPEND _torch_stamp " ${_torch_time}")
endif()
if(NOT TORCH_REMOTE_TORCH_ANSWER OR NOT _torch_stamp STREQUAL "${TORCH_REMOTE_TORCH_STAMP}")
  execute_process(COMMAND ${TORCH_REMOTE_PYTHON_COMMAND} -I -c "${_torch_question}"
                          "${TORCH_REMOTE_TORCH_HOME}"
                  OUTPUT_VARIABLE _torch_answer ERROR_VARIABLE _torch_error
                  RESULT_VARIABLE _torch_result)
  if(NOT _torch_result EQUAL 0)
    message(FATAL_ERROR "Asking ${TORCH_REMOTE_PYTHON_COMMAND} where torch is failed: ${_torch_error}")
  endif()
  string(STRIP "${_torch_answer}" _torch_answer)
  string(JSON _torch_found GET "${_torch_answer}" found)
  if(NOT _torch_found)
    message(FATAL_ERROR "${TORCH_REMOTE_PYTHON_COMMAND} has no torch: run `pip install torch==2.13.0` in that environment first.")
  endif()
  string(JSON _torch_home GET "${_torch_answer}" home)
  file(TIMESTAMP "${_torch_home}/version.py" _torch_time)
  set(TORCH_REMOTE_TORCH_ANSWER "${_torch_answer}" CACHE INTERNAL "What Python said about torch")
  set(TORCH_REMOTE_TORCH_STAMP "${_torch_asked} ${_torch_time}" CACHE INTERNAL "")
endif()

foreach(_key home version cxx11_abi cuda yaml python_include ext_suffix beside)
  string(JSON _torch_${_key} GET "${TORCH_REMOTE_TORCH_ANSWER}" ${_key})
endforeach()
set(TORCH_REMOTE_TORCH_VERSION ${_torch_version})
set(TORCH_REMOTE_TORCH_LIB_DIR ${_torch_home}/lib)
set(TORCH_REMOTE_TORCH_INCLUDE_DIR ${_torch_home}/include)
set(TORCH_REMOTE_TORCH_IS_BESIDE ${_torch_beside})
if(NOT TORCH_REMOTE_EXT_SUFFIX)
  set(TORCH_REMOTE_EXT_SUFFIX ${_torch_ext_suffix})
endif()
message(STATUS "torch ${_torch_version} in ${_torch_home} (CUDA: ${_torch_cuda})")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _torch_minor "${_torch_version}")
if(_torch_minor VERSION_LESS 2.11)
  message(FATAL_ERROR "torch ${_torch_version} is too old: torch-remote needs 2.11 to 2.13.")
elseif(_torch_minor VERSION_GREATER 2.13)
  message(WARNING "torch ${_torch_version} has not been tried: torch-remote is written for 2.11 to 2.13.")
endif()

# Messages of torch's macros name the header; without this they would name it where it was built.
add_compile_options(-fmacro-prefix-map=${TORCH_REMOTE_TORCH_INCLUDE_DIR}/=)

add_library(torch_remote_torch INTERFACE)
target_include_directories(torch_remote_torch SYSTEM INTERFACE
  ${_torch_home}/include ${_torch_home}/include/torch/csrc/api/include)
target_compile_definitions(torch_remote_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${_torch_cxx11_abi})
set(_suffix ${CMAKE_SHARED_LIBRARY_SUFFIX})
target_link_libraries(torch_remote_torch INTERFACE
  ${TORCH_REMOTE_TORCH_LIB_DIR}/libtorch${_suffix} ${TORCH_REMOTE_TORCH_LIB_DIR}/libtorch_cpu${_suffix}
  ${TORCH_REMOTE_TORCH_LIB_DIR}/libc10${_suffix})
# The wheel's libraries find CUDA's by their own rpath when they run; the linker need not see them.
if(NOT APPLE)
  target_link_options(torch_remote_torch INTERFACE -Wl,--allow-shlib-undefined)
endif()

# Nobody names a symbol of these: they are linked for the CUDA kernels that they register.
add_library(torch_remote_torch_cuda INTERFACE)
set(TORCH_REMOTE_TORCH_HAS_CUDA ${_torch_cuda})
if(_torch_cuda)
  target_link_libraries(torch_remote_torch_cuda INTERFACE
    -Wl,--push-state,--no-as-needed
    ${TORCH_REMOTE_TORCH_LIB_DIR}/libtorch_cuda.so ${TORCH_REMOTE_TORCH_LIB_DIR}/libc10_cuda.so
    -Wl,--pop-state)
endif()

add_library(torch_remote_torch_python INTERFACE)
target_include_directories(torch_remote_torch_python SYSTEM INTERFACE ${_torch_python_include})
target_link_libraries(torch_remote_torch_python INTERFACE
  torch_remote_torch ${TORCH_REMOTE_TORCH_LIB_DIR}/libtorch_python${_suffix})
# The Python that loads an extension module has Python's own names; on Linux every module may want
# names from the program that loads it.
if(APPLE)
  target_link_options(torch_remote_torch_python INTERFACE LINKER:-undefined,dynamic_lookup)
endif()
