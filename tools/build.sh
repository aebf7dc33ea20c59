#!/usr/bin/env bash
# build.sh release   everything, into build/release, importable from .venv
# build.sh install   the same without the tests, always with UNITY=ON, into build/install
# build.sh gpu       all but the C++ tests, with the system's Python and torch, into build/gpu
# build.sh fuzz      the fuzz targets, with .venv's torch; also fuzz-release
# build.sh tsan      the stress test under ThreadSanitizer, with .venv's torch
# build.sh core-clang    base, wire and transport with clang's -Wthread-safety
# build.sh PRESET    one of the torch-free presets
# UNITY=ON compiles each folder of src as one unit: quicker where nothing is compiled yet.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/steps.sh

jobs=${JOBS:-$(nproc)}
unity=${UNITY:-OFF}
target=$1
binary=build/$target
python=
goals=(all)

case $target in
  release)
    python=$PWD/.venv/bin/python
    configure=(cmake --preset release "-DTORCH_REMOTE_PYTHON=$python")
    ;;
  install)
    python=$PWD/.venv/bin/python
    configure=(cmake --preset install "-DTORCH_REMOTE_PYTHON=$python")
    goals=(torch_remote_installed)
    ;;
  gpu)
    for tool in cmake ninja g++ python3; do
      command -v $tool >/dev/null || fail "gpu-build installs nothing, and there is no $tool here."
    done
    binary=build/gpu/cmake
    python=$(python3 -c 'import sys; print(sys.executable)')
    # Not $CXX: a compiler that links its own C++ library statically puts a second one beside
    # libtorch's, and an image made for something else may name such a one.
    configure=(cmake -S . -B "$binary" -G Ninja -DCMAKE_BUILD_TYPE=Release
      "-DCMAKE_CXX_COMPILER=$(command -v g++)" "-DTORCH_REMOTE_PYTHON=$python")
    ;;
  fuzz*)
    configure=(cmake --preset "$target" -DTORCH_REMOTE_TORCH=ON
      "-DTORCH_REMOTE_PYTHON=$PWD/.venv/bin/python")
    goals=(fuzz_targets)
    ;;
  tsan)
    configure=(cmake --preset tsan "-DTORCH_REMOTE_PYTHON=$PWD/.venv/bin/python")
    goals=(stress_test)
    ;;
  core-clang)
    configure=(cmake --preset core-clang)
    goals=(torch_remote_base torch_remote_wire torch_remote_transport)
    ;;
  *) configure=(cmake --preset "$target") ;;
esac

[ "$target" = install ] && unity=ON
configure+=("-DTORCH_REMOTE_UNITY=$unity")

# ninja runs cmake again by itself, but does not know of a changed preset, a new torch or UNITY.
if [ ! -e "$binary/build.ninja" ] ||
  ! grep -qx "TORCH_REMOTE_UNITY:BOOL=$unity" "$binary/CMakeCache.txt" ||
  [ CMakePresets.json -nt "$binary/build.ninja" ] ||
  [ -n "$(find .venv -maxdepth 1 -name 'setup-*' -newer "$binary/build.ninja" 2>/dev/null)" ]; then
  step "[4/5] configure $target" "configure-$target" "${configure[@]}"
  touch "$binary/build.ninja"
fi
build_step "[5/5] compile $target" "compile-$target" cmake --build "$binary" -j "$jobs" \
  --target "${goals[@]}"

case $target in
  release | install) "$python" -I tools/link_package.py --built "$binary/src" --venv .venv ;;
  gpu) "$python" -I tools/link_package.py --built "$binary/src" --folder build/gpu ;;
esac
