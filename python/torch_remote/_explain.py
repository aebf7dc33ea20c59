"""Where a call runs and why: `torch_remote.explain("aten::mm")`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from . import _C

# By the extension's word for what happens to a call.
_WHERE = {
    "sent": "on the server",
    "structured": "on the server",
    "view": "in this process",
    "kernel": "in this process",
    "branch": "in parts",
    "composed": "in parts",
    "refused": "nowhere",
}
_WHY = {
    "sent": "it is sent as one call",
    "structured": "it is sent as one call of its out= form",
    "view": "it only makes a view or changes metadata, so nothing is sent",
    "kernel": "it is a factory, a copy or a read; only bytes that must move are sent",
    "branch": "it is composed of other operators as on the server's kind of device",
    "composed": "PyTorch composes it of other operators, which are sent",
    "refused": "it makes tensors of a kind that remote devices do not have",
}
_TOLD_BY = {
    "shape": "a C++ shape function of torch_remote tells its result",
    "meta": "PyTorch's C++ shape code tells its result",
    "arguments": "its result is an argument",
    "python": "PyTorch's Meta kernel tells its result",
    "server": "only the server can tell its result",
}
_WAITS = {
    "never": "it does not wait",
    "first": "the first call of a kind waits for the server, later ones do not",
    "always": "it waits for the server, or does for some inputs",
}


@dataclass(frozen=True)
class Explanation:
    """One overload: where it runs, why, and whether its caller waits."""

    operator: str
    where: str
    why: str
    waits: str  # never, first or always

    def __str__(self) -> str:
        return f"{self.operator} runs {self.where}: {self.why}"


class Explanations(tuple[Explanation, ...]):
    """Of all overloads of an operator; `str()` has a line for each."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self)


def explain(op: str | Callable[..., Any]) -> Explanations:
    """Says of each overload of an operator where it runs, why, and whether it waits.

    `op` is a name (`"mm"`, `"aten::add.Tensor"`), an operator (`torch.ops.aten.add`) or a function
    or method of torch (`torch.add`, `torch.Tensor.view`). Needs no server. The debug log
    (`TORCH_REMOTE_LOG=debug`) says the same of each call when it is made.
    """
    name = _name_of(op)
    found = _facts().get(name) or _facts().get(name.partition(".")[0])
    if found is None:
        raise ValueError(
            f"explain(): there is no operator {name!r} that takes a tensor or makes one; "
            "names are those of torch.ops.aten, such as 'mm'"
        )
    if "." in name:
        found = [each for each in found if each.operator == name]
        if not found:
            raise ValueError(f"explain(): {name.partition('.')[0]} has no overload {name!r}")
    return Explanations(found)


def _name_of(op: str | Callable[..., Any]) -> str:
    if isinstance(op, str):
        name = op
    elif isinstance(op, torch._ops.OpOverload):
        name = op.name()
    elif isinstance(op, torch._ops.OpOverloadPacket):
        name = op._qualified_op_name
    else:
        name = getattr(op, "__name__", repr(op))
    name = name.removesuffix(".default")
    return name if "::" in name else f"aten::{name}"


@cache
def _facts() -> dict[str, list[Explanation]]:
    """By the name without the overload."""
    found: dict[str, list[Explanation]] = {}
    for name, route, inference, waits, reason in _C.operator_facts():
        qualified = name if "::" in name else f"aten::{name}"
        parts = [_WHY.get(route, route)]
        told_by = inference.split(",")[0].strip() if inference else ""
        if told_by in _TOLD_BY:
            parts.append(_TOLD_BY[told_by])
        if route not in ("view", "refused", "composed", "branch"):
            parts.append(_WAITS.get(waits, waits))
        if reason and route != "view":
            parts.append(reason.replace("\n", "; "))
        explained = Explanation(qualified, _WHERE.get(route, route), "; ".join(parts), waits)
        found.setdefault(qualified.partition(".")[0], []).append(explained)
    return found
