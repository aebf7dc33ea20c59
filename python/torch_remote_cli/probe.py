"""A child process of `doctor`: loads torch, torch_remote and connects, and reports each step.

    python -m torch_remote_cli.probe URL TOKEN_FILE     (TOKEN_FILE may be empty)

Each step is a line of JSON on standard output. A step that hangs or kills the process is the one
after the last line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def tell(step: str, **facts: Any) -> None:
    print(json.dumps({"step": step, **facts}), flush=True)


def load_torch() -> bool:
    try:
        import torch
    except Exception as error:
        tell("torch", error=f"{type(error).__name__}: {error}")
        return False
    driver = Path("/proc/driver/nvidia/version")
    tell(
        "torch",
        version=torch.__version__,
        path=str(Path(torch.__file__).parent),
        cuda=torch.version.cuda,
        is_cuda_available=torch.cuda.is_available(),
        has_driver=driver.exists(),
    )
    return True


def load_extension() -> bool:
    try:
        import torch_remote
        from torch_remote import _backend
    except Exception as error:
        tell("extension", error=str(error))
        return False
    tell(
        "extension",
        path=str(Path(torch_remote.__file__).parent),
        built_for=torch_remote._C.BUILT_FOR_TORCH,
        local_gpus=_backend.local_gpus(),
    )
    return True


def read_config() -> bool:
    from . import machine

    config = machine.configuration()
    try:
        machines = config.read_config().get("machines", {}) if config is not None else {}
    except ValueError:
        return False  # checks_local says why
    for name, keys in machines.items():
        unknown = unknown_options(keys)
        if unknown:
            tell("config", error=f"the machine {name!r} has an unknown key {unknown[0]!r}")
            return False
    return True


def unknown_options(keys: dict[str, Any]) -> list[str]:
    """What a machine of the configuration file names and its provider does not read."""
    from torch_remote import providers

    scheme = str(keys["url"]).partition("://")[0]
    if scheme not in providers.provider_names():
        return []
    known = getattr(providers.find_provider(scheme), "OPTIONS", None)
    return [] if known is None else sorted(set(keys) - {"url", "token_file", *known})


def connect(url: str, token_file: str) -> None:
    import torch

    import torch_remote
    from torch_remote import _C

    from . import machine
    from .troubles import trouble_of

    try:
        url = url or machine.default_url()
        tell("url", url=url)
        connected = torch_remote.connect(url, token_file=token_file or None)
        connected.devices  # noqa: B018  waits for the handshake
    except Exception as error:
        trouble = trouble_of(error)
        tell("machine", error=trouble.text, remedy=trouble.remedy)
        return
    with connected:
        status = connected.status()
        tell(
            "machine",
            host=status["host"],
            torch=status["torch_version"],
            here=torch.__version__,
            devices=_C.machine_properties(connected.id),
        )
        times = machine.round_trips(connected.devices[0], 1.0, 30)
        tell("network", round_trip=machine.median(times), longest=max(times))


def main() -> int:
    url, token_file = sys.argv[1:3]
    if load_torch() and load_extension() and read_config():
        connect(url, token_file)
    tell("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
