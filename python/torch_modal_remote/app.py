"""The Modal app `torch-modal-extension`: the app of torch_remote_execution, with an A100.

It runs a server, to which calls are streamed; so there is no function for one operator.
"""

from __future__ import annotations

from typing import Any

from torch_remote_execution import modal_app

APP_NAME = "torch-modal-extension"
GPU = "A100-40GB"


def make_app() -> Any:
    """The Modal app. Needs Modal's SDK."""
    return modal_app.make_app(APP_NAME)
