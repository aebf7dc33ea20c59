"""What a suite is made of: cases, each with a check that yields a word for each sample."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from comparing import Mismatch

# What a check yields for a sample: compared, rightly refused, or not comparable.
COMPARED, REFUSED, NOTHING = "compared", "refused", "nothing"

Check = Callable[[str], Iterator[str]]


@dataclass(frozen=True)
class Scope:
    """How much of a suite to run."""

    full: bool = False  # every dtype of the device
    samples: int | None = None  # the most samples of a case
    kind: str = "cpu"  # the device whose dtypes are used
    derived: bool = True  # also samples derived from PyTorch's; empty ones make CUDA itself assert


@dataclass(frozen=True)
class Case:
    """One thing to check. `check(device)` yields a word per sample or raises Mismatch."""

    op: str
    variant: str
    dtype: str
    check: Check

    @property
    def key(self) -> tuple[str, str, str]:
        return self.op, self.variant, self.dtype


@dataclass(frozen=True)
class Outcome:
    status: str  # passed, failed, skipped, refused or absent
    reason: str = ""
    samples: int = 0
    details: str = ""


class NotOnThisDevice(Exception):
    """The case is for another kind of device."""


def outcome_of(case: Case, device: str) -> Outcome:
    words: Counter[str] = Counter()
    try:
        for word in case.check(device):
            words[word] += 1
    except NotOnThisDevice as error:
        return Outcome("absent", str(error))
    except Mismatch as error:
        return Outcome("failed", str(error), words.total())
    # Whatever an operator raises fails this case, and not the suite.
    except Exception as error:
        return Outcome("failed", describe(error), words.total(), traceback.format_exc(limit=-12))
    if words[COMPARED]:
        return Outcome("passed", samples=words[COMPARED])
    if words[REFUSED]:
        return Outcome("refused", samples=words[REFUSED])
    return Outcome("skipped", f"no sample has a {case.variant} to compare")


def describe(error: BaseException) -> str:
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}"
