#!/usr/bin/env bash
# macos.sh   compiles and links the client, TorchDevice and the bindings for macOS on arm64, below
#            build/macos, on a machine with Linux. Nothing of it is run, and nothing is for use: the
#            modules contain a C++ library of their own. TESTING.md says what this proves.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/steps.sh

ZIG="ziglang==0.17.0"  # clang 22
TORCH="torch==2.13.0"
TARGET="aarch64-macos.14.0"
jobs=${JOBS:-$(nproc)}
folder=$PWD/build/macos
python=$folder/venv/bin/python
export ZIG_GLOBAL_CACHE_DIR=$folder/zig-cache ZIG_LOCAL_CACHE_DIR=$folder/zig-cache

make_venv() {
  python3 -m venv --clear "$folder/venv" && "$python" -m pip install "$ZIG"
}

# The wheel for the same version of Python, because this machine's headers of Python are used. They
# fit: both systems have the same sizes of int, long and pointers.
unpack_torch() {
  rm -rf "$folder/wheel"
  "$python" -m pip download --no-deps --only-binary=:all: --platform macosx_14_0_arm64 \
    --python-version "$("$python" -c 'import platform; print(platform.python_version())')" \
    --dest "$folder/wheel" "$TORCH" &&
    "$python" -m zipfile -e "$folder"/wheel/*.whl "$folder/wheel"
}

# cmake wants one path for each program. Zig's linker wants two of cmake's options in another form:
# -bundle crashes it, so a module is linked as a library, with the same contents; and the file of
# -force_load must be an argument for the linker too.
write_programs() {
  local zig
  zig=$("$python" -c 'import ziglang; print(ziglang.__path__[0])')/zig
  mkdir -p "$folder/bin"
  cat >"$folder/bin/c++" <<END
#!/usr/bin/env bash
arguments=() last=
for each; do
  [ "\$last" != -force_load ] || arguments+=(-Xlinker)
  [ "\$each" != -bundle ] || each=-dynamiclib
  arguments+=("\$each") last=\$each
done
exec "$zig" c++ -target $TARGET "\${arguments[@]}"
END
  printf '#!/bin/sh\nexec "%s" ar "$@"\n' "$zig" >"$folder/bin/ar"
  printf '#!/bin/sh\nexec "%s" ranlib "$@"\n' "$zig" >"$folder/bin/ranlib"
  chmod +x "$folder"/bin/*
}

# write_stub NAME: a text file that tells the linker which names this library of OpenSSL has. They
# are taken from this machine's library: OpenSSL has the same functions on both systems.
write_stub() {
  local library names
  library=$(pkg-config --variable=libdir "lib$1")/lib$1.so
  names=$(nm -D --defined-only "$library" | awk '$2 == "T" { sub(/@.*/, "", $3); print "_" $3 }')
  [ -n "$names" ] || fail "$library has no names of functions."
  cat >"$folder/openssl/lib$1.tbd" <<END
--- !tapi-tbd
tbd-version: 4
targets: [ arm64-macos ]
install-name: '@rpath/lib$1.3.dylib'
current-version: 3
exports:
  - targets: [ arm64-macos ]
    symbols: [ $(echo "$names" | sort -u | paste -sd, -) ]
...
END
}

# Only the headers of OpenSSL are taken from this machine, not those of its C library beside them.
# Those that depend on the processor are for 64 bits, which is true of arm64 too.
copy_openssl() {
  local include
  include=$(pkg-config --variable=includedir libssl)
  rm -rf "$folder/openssl"
  mkdir -p "$folder/openssl/include"
  cp -rL "$include/openssl" "$folder/openssl/include"
  if [ -d "$include/$(g++ -print-multiarch)/openssl" ]; then
    cp -rL "$include/$(g++ -print-multiarch)/openssl" "$folder/openssl/include"
  fi
  write_stub crypto
  write_stub ssl
}

mkdir -p "$folder"
stamp=$folder/setup-$(echo "$ZIG $TORCH $TARGET $(command -v python3)" | sha256sum | cut -c1-12)
if [ ! -e "$stamp" ]; then
  step "[1/5] $ZIG in build/macos" macos-venv make_venv
  step "[2/5] $TORCH for macOS (the longest download)" macos-torch unpack_torch
  write_programs
  copy_openssl
  rm -f "$folder"/setup-*
  touch "$stamp"
fi
suffix=$("$python" -c 'import sys; print(".cpython-%d%d-darwin.so" % sys.version_info[:2])')
step "[3/5] configure macos" macos-configure cmake -S . -B "$folder/cmake" -G Ninja \
  --toolchain cmake/macos-zig.cmake "-DTORCH_REMOTE_ZIG_BIN=$folder/bin" \
  -DCMAKE_BUILD_TYPE=Release -DTORCH_REMOTE_WERROR=ON -DTORCH_REMOTE_CCACHE= \
  "-DTORCH_REMOTE_PYTHON=$python" "-DTORCH_REMOTE_TORCH_HOME=$folder/wheel/torch" \
  "-DTORCH_REMOTE_EXT_SUFFIX=$suffix" "-DOPENSSL_INCLUDE_DIR=$folder/openssl/include" \
  "-DOPENSSL_CRYPTO_LIBRARY=$folder/openssl/libcrypto.tbd" \
  "-DOPENSSL_SSL_LIBRARY=$folder/openssl/libssl.tbd"
build_step "[4/5] compile and link macos" macos-compile \
  cmake --build "$folder/cmake" -j "$jobs" --target all
step "[5/5] check the modules" macos-check "$python" -I tools/check_mach_o.py \
  "$folder"/cmake/src/_C*.so "$folder"/cmake/src/TorchDevice/_C*.so
tail -n 2 build/macos-check.log
