"""What `torch-remote doctor` finds: a state, what was found, and what to do about it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Literal

from .output import printable

State = Literal["ok", "note", "warning", "problem"]
_COLORS = {"ok": "32", "note": "36", "warning": "33", "problem": "31"}


@dataclass(frozen=True)
class Finding:
    """`remedy` is empty where there is nothing to do."""

    check: str
    state: State
    text: str
    remedy: str = ""


def describe(finding: Finding) -> str:
    state = f"{finding.state:<8}"
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        state = f"\x1b[{_COLORS[finding.state]}m{state}\x1b[0m"
    line = f"{state} {finding.check:<16} {printable(finding.text)}"
    return line + (f"\n{' ' * 25}-> {printable(finding.remedy)}" if finding.remedy else "")
