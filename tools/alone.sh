#!/usr/bin/env bash
# alone.sh COMMAND...: runs a command where the only network is loopback, and ends what it leaves.
# Ray listens on every interface. Needs root, or a kernel that lets users make namespaces.
set -euo pipefail
options=(--net --pid --fork --kill-child --mount-proc)
[ "$(id -u)" = 0 ] || options+=(--map-root-user)
export TORCH_REMOTE_TEST_ALONE=1
exec unshare "${options[@]}" bash -c 'ip link set lo up && "$@"' alone "$@"
