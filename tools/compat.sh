#!/usr/bin/env bash
# compat.sh VERSION   builds a wheel for another torch and runs the smoke test with it, in an
#                     environment and a build folder of its own below build/compat
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/steps.sh

version=${1:-}
[ -n "$version" ] || fail "Say which torch: make compat TORCH=2.12.0"
folder=build/compat/$version
python=$PWD/$folder/venv/bin/python

if ! "$python" -I -c 'import torch, scikit_build_core' 2>/dev/null; then
  step "[1/4] virtual environment in $folder" "compat-$version-venv" \
    python3 -m venv --clear "$folder/venv"
  step "[2/4] torch==$version (the longest download)" "compat-$version-torch" \
    "$python" -m pip install "torch==$version" scikit-build-core
fi
echo "[3/4] build in $folder/cmake (minutes)"
rm -f "$folder"/torch_remote-*.whl
tools/wheel.sh "$python" "$folder/cmake" "$folder"
step "[4/4] smoke test" "compat-$version-smoke" \
  "$python" -m pip install --no-index --no-deps --force-reinstall "$folder"/torch_remote-*.whl
(cd "$folder" && "$python" "$OLDPWD/tests/wheel/smoke.py")
