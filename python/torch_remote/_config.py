"""Which machine a program uses, from the environment and the configuration file.

The first that is given counts:

    1. the argument of `torch_remote.connect()`
    2. `TORCH_REMOTE`
    3. `url` in `config.toml`
    4. `local`, the embedded server

The file is `$XDG_CONFIG_HOME/torch-remote/config.toml`, by default in `~/.config`:

    url = "box"                        # the default machine: a URL, or a name from below
    token_file = "~/.torch-remote-token"

    [machines.box]                     # connect("box"), TORCH_REMOTE=box
    url = "ssh://me@gpu-box"
    command = "~/venv/bin/torch-remote"   # further keys are options of the URL's provider
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_KEYS = {"url", "token_file", "machines"}


@dataclass(frozen=True)
class Target:
    """A machine as it is configured. `options` are for its provider."""

    url: str
    token_file: str | None = None
    options: dict[str, str] = field(default_factory=dict)


def config_path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "torch-remote" / "config.toml"


def read_config() -> dict[str, Any]:
    """What is in the file; nothing if there is none."""
    path = config_path()
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    return _checked(_parse(text, path), path)


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            import tomli as tomllib
        except ImportError:
            raise ValueError(
                f"{path} needs Python 3.11, or the package tomli: run `pip install tomli`"
            ) from None
    try:
        return dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}") from error


def _checked(config: dict[str, Any], path: Path) -> dict[str, Any]:
    unknown = sorted(set(config) - _KEYS)
    if unknown:
        raise ValueError(
            f"{path}: unknown key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}"
        )
    for name, machine in config.get("machines", {}).items():
        if not isinstance(machine, dict) or "url" not in machine:
            raise ValueError(f"{path}: the machine {name!r} needs a url")
    return config


def default_url() -> str:
    """The URL or name of the default machine."""
    return os.environ.get("TORCH_REMOTE") or str(read_config().get("url", "local"))


# torch_modal puts another function here.
choose_default: Callable[[], str] = default_url


def is_known(url: str) -> bool:
    """Whether it is a URL, or a name that the configuration file has."""
    return url == "local" or "://" in url or url in read_config().get("machines", {})


def target_of(url: str) -> Target:
    """The machine that a URL or a configured name means."""
    if url == "local" or "://" in url:
        # A token of the environment counts before that of the file.
        config = read_config() if not os.environ.get("TORCH_REMOTE") else {}
        is_default = url != "local" and config.get("url") == url
        return Target(url, config.get("token_file") if is_default else None)
    machines = read_config().get("machines", {})
    if url not in machines:
        known = ", ".join(sorted(machines)) or "none"
        raise ValueError(
            f"{url!r} is neither a URL nor a machine of {config_path()} (there: {known}) or of "
            "`torch-remote ps`. Write local, unix:///path, tcp://host:port, ssh://host, or another "
            "provider's URL."
        )
    options = {key: str(value) for key, value in machines[url].items()}
    return Target(options.pop("url"), options.pop("token_file", None), options)
