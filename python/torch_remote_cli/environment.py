"""The environment variables that torch-remote reads; docs/settings.md explains them."""

from __future__ import annotations

KNOWN = frozenset(
    {
        "TORCH_REMOTE",
        "TORCH_REMOTE_AUTOLOAD",
        "TORCH_REMOTE_BLOCKING",
        "TORCH_REMOTE_CHECK_STEPS",
        "TORCH_REMOTE_KEEPALIVE",
        "TORCH_REMOTE_LIBRARY",
        "TORCH_REMOTE_LOG",
        "TORCH_REMOTE_LOG_CALLS",
        "TORCH_REMOTE_SANDBOX",
        "TORCH_REMOTE_METRICS",
        "TORCH_REMOTE_NET",
        "TORCH_REMOTE_PATIENCE",
        "TORCH_REMOTE_PEER_ADDRESS",
        "TORCH_REMOTE_PROGRESS",
        "TORCH_REMOTE_RUN",
        "TORCH_REMOTE_RUN_ON",
        "TORCH_REMOTE_RUN_WAITS",
        "TORCH_REMOTE_TOKEN",
        "TORCH_REMOTE_TOKEN_FILE",
    }
)
LOG_LEVELS = ("debug", "info", "warning", "error")  # of TORCH_REMOTE_LOG, as in src/base/log.cpp
# Of our tests and build.
OTHER_PREFIXES = ("TORCH_REMOTE_TEST_", "TORCH_REMOTE_FAULT_", "TORCH_REMOTE_PROGRAM_")
