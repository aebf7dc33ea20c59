"""Amounts of memory as text. Units mean the same as in `base/units.cpp`."""

from __future__ import annotations

import re

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_BYTES = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def parse_bytes(text: int | str) -> int:
    """`"30GiB"` is of 1024, `"40 GB"` and `"40G"` are of 1000; without a unit it is bytes.

    As Accelerate's `max_memory` and Transformers' `max_shard_size` read them; torch prints GiB.
    """
    if isinstance(text, int):
        return text
    match = _BYTES.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is no number of bytes; write it as 500MiB or 30GiB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _POWERS[match[2].lower()])
