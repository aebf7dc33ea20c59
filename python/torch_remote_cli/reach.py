"""Whether a machine can be used, asked before a script begins."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import parse_qsl, urlsplit

from . import machine
from .errors import WRONG_USAGE, CommandError
from .output import Waiting


def check_machine(url: str, token_file: str | None, quiet: bool) -> None:
    """Refuses a URL that no machine can have, and a server that does not take this client."""
    machine.check_url(url)
    machine.check_token(url, token_file, is_read_again=True)
    config = machine.configuration()
    if config is None or machine.is_launched(url):
        return
    target = config.target_of(url)
    scheme = str(target.url).partition("://")[0]
    if scheme == "local":
        return
    try:
        if scheme in config.WITHOUT_OPTIONS:
            _check_server(url, token_file, quiet)
        elif scheme == "ssh":
            _check_ssh(target.url, target.options)
        else:
            _check_provider(target.url, target.options, quiet)
    except ValueError as error:
        raise CommandError(str(error), WRONG_USAGE) from None


def _check_server(url: str, token_file: str | None, quiet: bool) -> None:
    """Opens a session and ends it. Imports torch, which the script does too, without a word."""
    with suppress(ImportError):  # machine.connect() says it
        import torch_remote  # noqa: F401
    with machine.connect(url, token_file, quiet):
        pass


def _check_ssh(url: str, options: dict[str, str]) -> None:
    words = machine.load_alone("providers/ssh_words.py")
    if words is None:
        return
    parts = urlsplit(url)
    given = {**options, **dict(parse_qsl(parts.query, keep_blank_values=True))}
    words.check(url, parts.netloc + parts.path, given)


def _check_provider(url: str, options: dict[str, str], quiet: bool) -> None:
    """Launches nothing. Imports torch, which takes less than any of these machines."""
    with Waiting(f"checking {url}", quiet):
        from torch_remote import providers
    try:
        provider = providers.find_provider(url.partition("://")[0])
    except ValueError as error:
        raise ValueError(f"'{url}' is not an address: {error}") from None
    spec = providers.parse_url(url, options)
    known = getattr(provider, "OPTIONS", spec.options)
    unknown = sorted(set(spec.options) - set(known))
    if unknown:
        raise ValueError(f"{url}: no option {unknown[0]!r}; there are {', '.join(sorted(known))}")
