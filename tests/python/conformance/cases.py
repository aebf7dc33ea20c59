"""What a suite is made of: cases, each with a check that says of every sample how it went."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from comparing import Mismatch

# What a check yields for a sample: it was compared, it was rightly refused, or it says nothing.
COMPARED, REFUSED, NOTHING = "compared", "refused", "nothing"

Check = Callable[[str], Iterator[str]]


@dataclass(frozen=True)
class Scope:
    """How much of a suite to run."""

    full: bool = False  # every dtype the device has
    samples: int | None = None  # at most so many per case
    kind: str = "cpu"  # the device whose dtypes are meant
    derived: bool = True  # also samples made of PyTorch's own: without elements CUDA itself asserts or divides by 0


@dataclass(frozen=True)
class Case:
    """One thing that passes or fails. `check(device)` yields a word for each sample, and raises Mismatch."""

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
    # Whatever an operator raises, C++ and Python bugs alike, is this case's failure and not the suite's.
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
