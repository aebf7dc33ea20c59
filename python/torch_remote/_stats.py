"""Counters of what crossed the wire, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from . import _C


@dataclass
class Stats:
    """Counters since the start of the process, or of a `count()` block. Plain integers."""

    calls: int = 0
    syncs: int = 0
    frames: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    signatures_sent: int = 0
    inferred_by_meta: int = 0
    inferred_by_server: int = 0
    storages_live: int = 0

    @property
    def mispredicted(self) -> int:
        """Predictions that the servers found wrong since their start. Waits for them."""
        return _C.server_mispredicted()

    def as_dict(self) -> dict[str, int]:
        """The counters by name, without `mispredicted`."""
        return {field.name: getattr(self, field.name) for field in fields(Stats)}

    def __sub__(self, earlier: Stats) -> Stats:
        mine, theirs = self.as_dict(), earlier.as_dict()
        return Stats(**{name: mine[name] - theirs[name] for name in mine})

    def __str__(self) -> str:
        rows = {name: f"{value:,}" for name, value in self.as_dict().items()}
        rows["mispredicted"] = self._mispredicted_if_known()
        return "\n".join(f"{name:<20}{value:>16}" for name, value in rows.items())

    def _mispredicted_if_known(self) -> str:
        try:
            return f"{self.mispredicted:,}"
        except RuntimeError:  # a lost server cannot be asked
            return "unknown"


class _Block(Stats):
    """The counters of a block, which stop at its end."""

    def __init__(self) -> None:
        self._before = stats()
        self._after: Stats | None = None

    def __getattribute__(self, attribute: str) -> object:
        if attribute not in Stats.__dataclass_fields__:
            return super().__getattribute__(attribute)
        return getattr((self._after or stats()) - self._before, attribute)

    def end(self) -> None:
        self._after = stats()


def stats() -> Stats:
    """The counters of this process since its start. Sends nothing."""
    counters = _C.counters()
    return Stats(**{field.name: counters[field.name] for field in fields(Stats)})


@contextmanager
def count() -> Iterator[Stats]:
    """`with torch_remote.count() as c:` counts what the block does. Sends nothing."""
    block = _Block()
    try:
        yield block
    finally:
        block.end()
