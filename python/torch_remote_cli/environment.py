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
# What else may be written in a variable, besides nothing; the words of docs/settings.md and
# docs/redirection.md. TorchDevice ignores the case of letters.
SANDBOX = "TORCH_REMOTE_SANDBOX"
SANDBOXES = ("auto", "off", "trace")
OF_TORCH_DEVICE = {
    "TORCHDEVICE_POLICY": ("full", "foreign", "off"),
    "TORCHDEVICE_READ_AS": ("cuda", "mps"),
    "TORCHDEVICE_LOG_LEVEL": ("DEBUG", "INFO", "WARNING", "ERROR"),
    "TORCHDEVICE_ORDER": ("cuda", "mps", "remote", "cpu"),  # several, with commas
}
# Of our tests and build.
OTHER_PREFIXES = ("TORCH_REMOTE_TEST_", "TORCH_REMOTE_FAULT_", "TORCH_REMOTE_PROGRAM_")
