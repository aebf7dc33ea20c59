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
_MACHINE_KEYS = {"url", "token_file"}  # any others are options, which the provider checks
# No provider reads options for these.
WITHOUT_OPTIONS = ("local", "unix", "tcp", "tls")
HOW_TO_WRITE = "local, unix:///path, tcp://host:port, tls://host:port, ssh://host"


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
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}") from error
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
    for key in ("url", "token_file"):
        _check_text(config.get(key, ""), key, path)
    machines = config.get("machines", {})
    if not isinstance(machines, dict):
        raise ValueError(f"{path}: machines is a table: write [machines.NAME]")
    for name, machine in machines.items():
        _check_machine(name, machine, path)
    return config


def _check_text(value: object, key: str, path: Path) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{path}: {key} must be a text in quotes, not {value!r}")


def _check_machine(name: str, machine: object, path: Path) -> None:
    if name == "local" or "://" in name:
        raise ValueError(
            f"{path}: a machine cannot have the name {name!r}, which is a URL: rename it"
        )
    if not isinstance(machine, dict) or "url" not in machine:
        raise ValueError(f"{path}: the machine {name!r} needs a url")
    for key in ("url", "token_file"):
        _check_text(machine.get(key, ""), f"{key} of the machine {name!r}", path)
    scheme = str(machine["url"]).partition("://")[0]
    others = sorted(set(machine) - _MACHINE_KEYS)
    if others and scheme in WITHOUT_OPTIONS:
        raise ValueError(
            f"{path}: the machine {name!r} has an unknown key {others[0]!r}; with {scheme} there "
            f"are {', '.join(sorted(_MACHINE_KEYS))}"
        )


def default_url() -> str:
    """The URL or name of the default machine."""
    return os.environ.get("TORCH_REMOTE") or str(read_config().get("url", "local"))


# torch_modal puts another function here.
choose_default: Callable[[], str] = default_url


def is_known(url: str) -> bool:
    """Whether it is a URL, or a name that the configuration file has."""
    if not isinstance(url, str):
        raise TypeError(f"a URL is a str, such as {HOW_TO_WRITE}, not {type(url).__name__}")
    return url == "local" or "://" in url or url in read_config().get("machines", {})


def target_of(url: str) -> Target:
    """The machine that a URL or a configured name means."""
    is_name = url != "local" and "://" not in url
    # A program whose environment names a machine by its URL does not need the file.
    config = read_config() if is_name or not os.environ.get("TORCH_REMOTE") else {}
    # The token_file at the top of the file is that of its default machine.
    token_file = config.get("token_file") if url != "local" and config.get("url") == url else None
    if not is_name:
        return Target(url, token_file)
    machines = config.get("machines", {})
    if url not in machines:
        known = ", ".join(sorted(machines)) or "none"
        raise ValueError(
            f"{url!r} is neither a URL nor a machine of {config_path()} (there: {known}) or of "
            f"`torch-remote ps`. Write {HOW_TO_WRITE}, or another provider's URL."
        )
    options = {key: str(value) for key, value in machines[url].items()}
    return Target(options.pop("url"), options.pop("token_file", token_file), options)
