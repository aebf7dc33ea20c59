#!/usr/bin/env bash
# wheel.sh [PYTHON [BUILD [FOLDER]]]   makes a wheel for the torch of PYTHON in FOLDER
# It compiles in BUILD what is not compiled there. Else: .venv/bin/python build/install dist
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/steps.sh

python=${1:-.venv/bin/python}
binary=${2:-build/install}
folder=${3:-dist}
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
# scikit-build-core would take the ninja of the virtual environment, and a ninja of another version
# compiles everything again.
log=wheel-${binary//\//-}
step "wheel into $folder" "$log" "$python" -m pip wheel . --no-build-isolation --no-deps \
  --wheel-dir "$folder" --config-settings "build-dir=$binary" \
  --config-settings build.targets=torch_remote_installed \
  --config-settings "cmake.define.CMAKE_MAKE_PROGRAM=$(command -v ninja)"
sed -n 's/.*filename=\([^ ]*\).*/\1/p' "build/$log.log"
