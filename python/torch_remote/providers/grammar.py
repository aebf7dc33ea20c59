"""Names in a URL that become words of a command line. None can pass for an option of a program."""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import Spec

_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"


@dataclass(frozen=True)
class Grammar:
    pattern: str
    most: int  # characters
    words: str  # "… is refused: write {words}"

    def accepts(self, text: str) -> bool:
        return len(text) <= self.most and re.fullmatch(self.pattern, text) is not None


# Kubernetes' own: RFC 1123 subdomains and labels. The names of contexts are the user's.
POD = Grammar(
    rf"{_LABEL}(?:\.{_LABEL})*", 253, "lower-case letters, digits, '-' and '.', as Kubernetes does"
)
LABEL = Grammar(_LABEL, 63, "at most 63 lower-case letters, digits and '-', as Kubernetes does")
# Of Slurm, SkyPilot, Modal, and kubectl's contexts: what else they take is for them to say.
WORD = Grammar(
    r"(?!-)[\x21-\x7e]+", 253, "letters, digits and signs, without spaces and not '-' first"
)
HOST = Grammar(
    r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::\d+)?", 260, "a host, or host:port"
)


def check(spec: Spec, what: str, text: str, grammar: Grammar) -> str:
    """The text. ValueError if it is not as it must be."""
    if not grammar.accepts(text):
        raise ValueError(f"{spec.url!r}: {what} {text!r} is refused: write {grammar.words}")
    return text


def check_options(spec: Spec, grammar: Grammar, *options: str) -> None:
    """The same for the values of these options, where they are given."""
    for option in options:
        if option in spec.options:
            check(spec, f"{option}=", spec.options[option], grammar)
