"""Where the calls of torch_modal run: on a remote machine, or on the embedded server.

Enabled, which is the default: on the machine of `TORCH_REMOTE` or of the configuration file, else
on Modal if it is configured, else on the embedded server. Disabled: on the embedded server.
"""

from __future__ import annotations

import logging
import os
from functools import cache

from torch_modal_remote import app as _app
from torch_remote import _C, _config, _launch
from torch_remote.providers import modal as _provider

from . import _move

_log = logging.getLogger("torch_modal")
_enabled = True
_has_modal_failed = False  # the first launch: since then calls run on the embedded server
MODAL_URL = f"modal://{_app.GPU}?app={_app.APP_NAME}"


def is_remote_execution_enabled() -> bool:
    """Whether calls run on a remote machine where one is configured."""
    return _enabled


def enable_remote_execution() -> None:
    """Runs calls on the remote machine, if one is configured."""
    _switch(True)


def disable_remote_execution() -> None:
    """Runs calls on the embedded server."""
    _switch(False)


def choose_default() -> str:
    """The URL or name of the default machine; `torch_remote._config.choose_default`."""
    if not _enabled:
        return "local"
    url = _config.default_url()
    if url != "local" or os.environ.get("TORCH_REMOTE") or _has_modal_failed:
        return url
    if _provider.is_configured():
        return MODAL_URL
    _say_why_embedded()
    return "local"


@cache
def _say_why_embedded() -> None:
    _log.info(
        "calls run on the embedded server: Modal is not configured, and neither TORCH_REMOTE "
        "nor %s names a machine",
        _config.config_path(),
    )


def _fall_back(url: str, error: Exception) -> str | None:
    """The embedded server, if the machine of Modal that nobody asked for by name fails."""
    global _has_modal_failed
    if url != MODAL_URL:
        return None
    _has_modal_failed = True
    _log.warning("calls run on the embedded server, for Modal failed: %s", error)
    return "local"


_launch.fall_back = _fall_back


def is_embedded(index: int) -> bool:
    """Whether a device is, or will be, one of the embedded server."""
    for machine in _C.machine_ids():
        url, devices, _ = _C.machine_summary(machine)
        if index in devices:
            return url == "local"
    return choose_default() == "local"


def _switch(enabled: bool) -> None:
    """Moves what is live if the default machine is another one now. Call it from one thread."""
    global _enabled, _has_modal_failed
    before, was_enabled = choose_default(), _enabled
    _has_modal_failed = False  # it is tried again
    _enabled = enabled
    url = choose_default()
    machines = [each for each in _C.machine_ids() if {0, 1} & {*_C.machine_summary(each)[1]}]
    if url == before or not machines:
        return
    try:
        _move.move(machines, url)
    except BaseException:
        _enabled = was_enabled
        raise
