#!/usr/bin/env bash
# What has to be on the machine, in parts, each fast when it is done already:
#   setup.sh system   Debian packages to build and test
#   setup.sh checks   Debian packages for `make lint`, `make fuzz` and clang's checks
#   setup.sh programs a browser, and an sshd in build/programs: without them their tests are skipped
#   setup.sh providers the SDKs of providers, in an environment of their own in build/providers
#   setup.sh python   the virtual environment .venv with torch and the tools
#   setup.sh libraries  build/libraries-venv: what .venv has, and libraries of others
#   setup.sh transformers  build/transformers/venv: what .venv has, and what those tests need
#   setup.sh pytorch  build/pytorch/venv: the same for PyTorch's own tests
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/steps.sh

SYSTEM="g++ cmake ninja-build ccache pkg-config libssl-dev libcli11-dev
  libgloo-dev libgtest-dev libgmock-dev openssl"
CHECKS="clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev"
PROGRAMS="chromium fonts-dejavu-core openssh-client"
# Unpacked and not installed: an installed openssh-server would be started and listen.
UNPACKED="openssh-server libwrap0"
TORCH="torch==2.13.0"
PACKAGES="numpy expecttest pytest pytest-timeout pytest-xdist==3.8.0 hypothesis"
PACKAGES="$PACKAGES scikit-build-core ninja ruff mypy"
# For the conformance suite of real models; DETR's loss needs scipy and pillow. No torchvision: with
# a CPU torch it breaks transformers.
PACKAGES="$PACKAGES transformers==5.22.2 scipy pillow"
# For the test that its batch-size finder works; without it the test is skipped.
PACKAGES="$PACKAGES accelerate==1.15.0"
# For the test of what torch.onnx makes of a traced module.
PACKAGES="$PACKAGES onnx"

# For make test-libraries, beside transformers and accelerate of .venv: docs/libraries.md.
LIBRARIES="lightning==2.6.6 torchmetrics==1.9.0 datasets==5.2.0 sentence-transformers==6.2.0"
# In a folder of their own, which tests/libraries/test_vision.py adds to its path: this torchvision
# is built for CUDA, and where it can be imported it breaks transformers and torchmetrics.
VISION="timm==1.0.30 torchvision==0.28.0"

# For make test-transformers: the version that it was run with, and what the version's tests import.
TRANSFORMERS="transformers==5.15.1 tokenizers<=0.23.0 pytest<9 pytest-timeout pytest-xdist
  parameterized httpx typer-slim datasets==5.2.0"

# For make test-pytorch: PyTorch's conftest.py does not load in a later pytest.
PYTORCH_TESTS="pytest==7.3.2 expecttest==0.3.0 pytest-timeout pytest-xdist==3.8.0 hypothesis scipy"

# For tests/providers.
PROVIDERS="modal==1.6.3 ray==2.60.0"
# For tools/alone.sh.
NETWORK="iproute2"

# The packages that Debian's Python lacks to make a virtual environment and compile an extension.
python_packages() {
  [ "$(command -v python3 || echo /usr/bin/python3)" = /usr/bin/python3 ] || return 0
  python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  python3 -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null ||
    echo python3-dev
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

apt_install() {
  apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

install_missing() {
  local missing=""
  if ! command -v dpkg-query >/dev/null; then
    echo "This is not Debian: install these packages under their names here: $*" >&2
    return 0
  fi
  for package in "$@"; do
    is_installed "$package" || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    fail "Packages are missing; install them as root and try again: apt-get install$missing"
  fi
  # shellcheck disable=SC2086
  step "[1/5] system packages:$missing" setup-system apt_install $missing
}

unpack() {
  local folder=build/programs
  [ ! -x $folder/usr/sbin/sshd ] || return 0
  mkdir -p $folder/packages
  # On a machine that has everything else, the lists of packages may not be there yet.
  (cd $folder/packages && { apt-get download "$@" ||
    { apt-get update && apt-get download "$@"; }; }) ||
    return
  for package in $folder/packages/*.deb; do dpkg -x "$package" $folder; done
}

make_venv() {
  local stamp
  # Made anew when the list, or the Python, is another one.
  stamp=.venv/setup-$(echo "$TORCH $PACKAGES $(command -v python3)" | sha256sum | cut -c1-12)
  [ ! -e "$stamp" ] || return 0
  command -v python3 >/dev/null || fail "python3 is missing: install Python 3.10 or newer first."
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "Python 3.10 or newer is needed, but this is $(python3 --version)."
  step "[2/5] virtual environment .venv" setup-venv python3 -m venv .venv
  step "[3/5] $TORCH and the tools (the longest download)" setup-torch \
    .venv/bin/python -m pip install "$TORCH" $PACKAGES
  rm -f .venv/setup-*
  touch "$stamp"
}

# make_venv_on_top FOLDER: an environment that also sees what .venv has, where it lacks it itself.
make_venv_on_top() {
  local base site
  python3 -m venv --clear "$1" || return
  base=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # addsitedir() also reads the .pth files there: one of them has torch_remote.
  echo "import site; site.addsitedir('$base')" >"$site/base.pth"
}

make_libraries_venv() {
  local folder=build/libraries-venv stamp
  stamp=$(echo "$TORCH $LIBRARIES $VISION $(command -v python3)" | sha256sum | cut -c1-12)
  stamp=$folder/setup-$stamp
  [ ! -e "$stamp" ] || return 0
  step "[1/3] virtual environment $folder" setup-libraries-venv make_venv_on_top $folder
  echo "$TORCH" >$folder/constraints.txt
  # shellcheck disable=SC2086
  step "[2/3] $LIBRARIES" setup-libraries \
    $folder/bin/python -m pip install -c $folder/constraints.txt $LIBRARIES
  # shellcheck disable=SC2086
  step "[3/3] $VISION" setup-vision \
    $folder/bin/python -m pip install --no-deps --target $folder/vision $VISION
  touch "$stamp"
}

# make_suite_venv NAME PACKAGES: build/NAME/venv, in which a suite of others runs.
make_suite_venv() {
  local folder=build/$1/venv stamp
  stamp=$folder/setup-$(echo "$2 $(command -v python3)" | sha256sum | cut -c1-12)
  [ ! -e "$stamp" ] || return 0
  step "[1/2] virtual environment $folder" "setup-$1-venv" make_venv_on_top "$folder"
  # shellcheck disable=SC2086
  step "[2/2] $(echo $2)" "setup-$1" "$folder/bin/python" -m pip install $2
  touch "$stamp"
}

# It sees what .venv has, torch and torch-remote included; .venv does not see what it has.
make_providers_venv() {
  local venv=build/providers/venv stamp
  stamp=$venv/setup-$(echo "$PROVIDERS $(.venv/bin/python --version)" | sha256sum | cut -c1-12)
  [ ! -e "$stamp" ] || return 0
  rm -rf $venv
  .venv/bin/python -m venv $venv
  # shellcheck disable=SC2086
  $venv/bin/python -m pip install $PROVIDERS || return
  echo "import site; site.addsitedir('$(.venv/bin/python -c '
import sysconfig
print(sysconfig.get_path("purelib"))')')" >"$($venv/bin/python -c '
import sysconfig
print(sysconfig.get_path("purelib"))')/beside.pth"
  touch "$stamp"
}

case ${1:-} in
  system) install_missing $SYSTEM $(python_packages) ;;
  checks) install_missing $CHECKS ;;
  programs)
    install_missing $PROGRAMS
    step "sshd in build/programs" setup-programs unpack $UNPACKED
    ;;
  providers)
    install_missing $NETWORK
    step "$PROVIDERS in build/providers" setup-providers make_providers_venv
    ;;
  python) make_venv ;;
  libraries) make_libraries_venv ;;
  transformers) make_suite_venv transformers "$TRANSFORMERS" ;;
  pytorch) make_suite_venv pytorch "$PYTORCH_TESTS" ;;
  *)
    fail "usage: tools/setup.sh" \
      "system|checks|programs|providers|python|libraries|transformers|pytorch"
    ;;
esac
