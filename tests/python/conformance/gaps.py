"""known_gaps.toml: what is known not to pass, with the reason."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADER = """\
# Operators with other results on `remote` than on the CPU. `make conformance` runs them: it fails
# on a failure or a skip that is not listed here, and on one listed here that passes.
# `run.py --write-gaps` writes this file from the failures and keeps the reasons.
"""

Key = tuple[str, str, str]  # op, variant, dtype


@dataclass(frozen=True)
class Gap:
    op: str
    variant: str
    dtype: str
    reason: str

    @property
    def key(self) -> Key:
        return self.op, self.variant, self.dtype


def read(path: Path) -> dict[Key, Gap]:
    if not path.exists():
        return {}
    gaps = [Gap(**table) for table in _parse(path.read_text()).get("gap", [])]
    by_key = {gap.key: gap for gap in gaps}
    if len(by_key) != len(gaps):
        raise ValueError(f"{path}: a gap is listed twice")
    return by_key


def write(path: Path, gaps: list[Gap]) -> None:
    path.write_text(HEADER + "".join(_format(gap) for gap in sorted(gaps, key=lambda g: g.key)))


def _format(gap: Gap) -> str:
    fields = ("op", "variant", "dtype", "reason")
    lines = [f"{name} = {json.dumps(getattr(gap, name), ensure_ascii=False)}" for name in fields]
    return "\n[[gap]]\n" + "\n".join(lines) + "\n"


def _parse(text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        return parse_simple(text)
    return tomllib.loads(text)


def parse_simple(text: str) -> dict[str, Any]:
    """Parses the TOML of this file: `[[name]]`, `key = "string"` and comments."""
    tables: dict[str, Any] = {}
    current: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("[[") and line.endswith("]]"):
            current = {}
            tables.setdefault(line[2:-2], []).append(current)
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"line {number}: expected key = value, got {line!r}")
        current[key.strip()] = json.loads(value)
    return tables
