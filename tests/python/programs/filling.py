"""Fills the templates of `lines.py`: hypothesis draws each field, mostly so that it fits `{x}`."""

from __future__ import annotations

import string
from typing import Any

import torch
from hypothesis import strategies as st
from programs.world import World

DTYPES = [
    torch.float32,
    torch.int64,
    torch.complex64,
    torch.bool,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
]
SCALARS = ["2", "0", "-1", "1.5", "True", "float('nan')", "(1+2j)", "torch.tensor(3)"]
FORMATS = ["preserve_format", "contiguous_format", "channels_last"]
OPERANDS = [
    "{y}",
    "{x}",
    "{scalar}",
    "{x}[:1]",
    "{x}.flip(0)",
    "{x}.mT",
    "{y}.sum()",
    "torch.ones({size}, device=device)",
    "{x}.to({dtype})",
]
small = st.integers(0, 4)
sizes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


class Filling:
    """The fields of one line. A field is drawn once; `{dim_2}` is another draw of `{dim}`."""

    def __init__(self, world: World, data: st.DataObject) -> None:
        self.world = world
        self.data = data
        self.fields: dict[str, str] = {}

    def fill(self, template: str) -> str:
        parts = []
        for text, field, _, _ in string.Formatter().parse(template):
            parts.append(text)
            if field is not None:
                parts.append(self.field(field))
        return "".join(parts)

    def field(self, name: str) -> str:
        if name not in self.fields:
            self.fields[name] = str(getattr(self, name.removesuffix("_2"))())
        return self.fields[name]

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def tensor(self) -> torch.Tensor:
        return self.world.local(self.field("x"))

    def x(self) -> str:
        # The newest first, so that programs shrink to short chains.
        return self.draw(st.sampled_from(self.world.names[::-1]))

    def y(self) -> str:
        others = [name for name in self.world.names if name != self.field("x")]
        return self.draw(st.sampled_from(others[::-1]))

    def n(self) -> int:
        return self.draw(small)

    def positive(self) -> int:
        return self.draw(st.integers(1, 3))

    def i(self) -> int:
        return self.draw(st.integers(-2, 3))

    def bool(self) -> bool:
        return self.draw(st.booleans())

    def dim(self) -> int:
        most = max(self.tensor().dim(), 1)
        return self.draw(st.integers(-most, most - 1) | st.integers(-most - 1, most))

    def dtype(self) -> str:
        return str(self.draw(st.sampled_from(DTYPES)))

    def scalar(self) -> str:
        return self.draw(st.sampled_from(SCALARS))

    def step(self) -> str:
        return self.draw(st.sampled_from(["1", "2", "-1", "1.5", "0", "True", "(1+2j)"]))

    def format(self) -> str:
        return "torch." + self.draw(st.sampled_from(FORMATS))

    def size(self) -> tuple[int, ...]:
        return self.draw(sizes)

    def strides(self) -> tuple[int, ...]:
        size = self.fields.get("size")
        count = len(eval(size)) if size else 2
        return tuple(self.draw(st.lists(small, min_size=count, max_size=count)))

    def shape(self) -> tuple[int, ...]:
        """Mostly one with the number of elements of `{x}`."""
        numel = self.tensor().numel()
        exact = [s for s in [(-1,), (1, -1), (2, -1), (-1, 2), (3, -1), (numel,)] if fits(s, numel)]
        return self.draw(st.sampled_from(exact) | sizes)

    def permutation(self) -> tuple[int, ...]:
        return tuple(self.draw(st.permutations(range(self.tensor().dim()))))

    def expansion(self) -> tuple[int, ...]:
        sizes = [self.draw(small) if size == 1 else size for size in self.tensor().shape]
        return tuple(self.draw(st.lists(st.integers(1, 3), max_size=1)) + sizes)

    def index(self) -> list[int]:
        most = max([1, *self.tensor().shape])
        return self.draw(st.lists(st.integers(-1, most - 1), min_size=0, max_size=3))

    def mask(self) -> str:
        text = self.draw(
            st.sampled_from(["({x} != 0)", "{x}.bool()", "{y}.bool()", "({x} == {x})"])
        )
        return self.fill(text)

    def other(self) -> str:
        return self.fill(self.draw(st.sampled_from(OPERANDS)))

    def other_tensor(self) -> str:
        return self.fill(self.draw(st.sampled_from([o for o in OPERANDS if o != "{scalar}"])))


def fits(shape: tuple[int, ...], numel: int) -> bool:
    known = 1
    for size in shape:
        known *= size if size >= 0 else 1
    return known != 0 and numel % known == 0
