"""Calls every composite operator of the installed torch with remote tensors, and says which die.

A composite kernel runs in the client. One that reads memory meets the address of a remote tensor,
which is none of this process, and dies of a signal. Those belong into the row `kReadsMemory` of
src/marshal/operator_table.cpp. Some die on a CPU too: compare with --device cpu.

    python tests/fuzz/composites.py [--device cpu] [aten::gru_cell ...]

It takes some twenty minutes, so no test runs it; tests/python/test_local_memory.py has its finds.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import zlib
from typing import Any

import torch

import torch_remote

SKIPPED = ("prim", "c10d", "_c10d", "torch_remote", "profiler", "debugprims", "rngprims")
COMPOSITES = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
PATIENCE_S = 90
LOST = 2  # the exit status of a child whose session an operator has ended
TENSORS = [
    ((4, 4), torch.float32), ((4,), torch.float32), ((2, 3, 4, 4), torch.float32),
    ((4,), torch.int64), ((4, 4), torch.int64), ((2, 4, 4), torch.float32),
    ((4, 4), torch.float64), ((4, 4), torch.float16), ((4, 4), torch.int8),
    ((4, 4), torch.uint8), ((), torch.float32), ((4,), torch.int32), ((4, 4), torch.bool),
    ((4,), torch.bool),
    ((4, 4), torch.bfloat16), ((2, 2, 2, 4, 4), torch.float32),
]  # fmt: skip
BESIDE_A_MATRIX = 5 * len(TENSORS)  # turns
TRIES = BESIDE_A_MATRIX + 15
VALUES: dict[str, list[Any]] = {
    "int": [1, 0, 2, 4, -1],
    "SymInt": [1, 0, 2, 4, -1],
    "float": [1.0, 0.5, 0.0],
    "number": [1],
    "bool": [False, True],
    "str": ["mean", "none", "sum", "reflect", "ij", "linear"],
    "List[int]": [[1], [1, 1], [4, 4], [0], [2, 2], [1, 1, 1]],
    "List[SymInt]": [[1], [1, 1], [4, 4], [0], [2, 2], [1, 1, 1]],
    "List[float]": [[1.0, 1.0]],
    "List[number]": [[1, 1], [0.5, 2.0]],
    "List[bool]": [[True, True]],
    "ScalarType": [torch.float32, torch.int32, torch.int64, torch.int8, torch.float16],
    "Layout": [torch.strided, torch.sparse_coo, torch.sparse_csr],
    "MemoryFormat": [torch.contiguous_format],
}


def names() -> list[str]:
    return [
        name
        for name in sorted(torch._C._dispatch_get_all_op_names())
        if not name.startswith(SKIPPED)
        and any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in COMPOSITES)
    ]


def value(kind: str, choice: int, device: str) -> Any:
    if kind.startswith("Optional["):
        kind = kind.removeprefix("Optional[").removesuffix("]")
    if kind == "Device":
        return torch.device(device)
    if kind == "Generator":
        return torch.Generator(device)
    if "Tensor" in kind:
        shape, dtype = TENSORS[choice % len(TENSORS)]
        made = torch.ones(shape, dtype=dtype, device=device)
        return [made, made.clone()] if kind.startswith("List") else made
    values = VALUES[kind]
    return values[choice % len(values)]


def chosen(name: str, turn: int, place: int, kind: str) -> int:
    """All tensors are alike; then the first is a matrix and the others alike, such as a mask beside
    it; then each argument is another, the same ones in each run."""
    drawn = zlib.crc32(f"{name} {turn} {place}".encode())
    if turn < len(TENSORS):
        return turn
    if turn < BESIDE_A_MATRIX and "Tensor" in kind:
        return turn if place > 0 else 0
    return drawn


def call(name: str, device: str) -> None:
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    for turn in range(TRIES):
        given: dict[str, Any] = {}
        try:
            for place, argument in enumerate(operator._schema.arguments):
                kind = str(argument.real_type)  # not "int" for a dtype
                if argument.has_default_value() and (turn % 3 != 2 or "Tensor" not in kind):
                    continue
                choice = chosen(name, turn, place, kind)
                given[argument.name] = value(kind, choice, device)
            positional = [given.pop(each.name) for each in operator._schema.arguments
                          if not each.kwarg_only and each.name in given]  # fmt: skip
            operator(*positional, **given)
        except KeyError:
            return  # an argument of a kind that is not tried
        except Exception:
            continue


def run(todo: list[str], device: str, told: int) -> None:
    """In a child: calls them one after the other, and tells which it has begun."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for place, name in enumerate(todo):
        os.write(told, place.to_bytes(4, "little"))
        try:
            call(name, device)
            torch_remote.synchronize()
        except BaseException:
            pass
        try:
            torch.ones(2, device=device).sum().item()
        except torch_remote.SessionLost:
            os._exit(LOST)
        except BaseException:
            continue
    os._exit(0)


def first_death(todo: list[str], device: str) -> tuple[int, str] | None:
    """The place of the operator that a child or its session died of, and how."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        run(todo, device, writing)
    os.close(writing)
    place = 0
    while select.select([reading], [], [], PATIENCE_S)[0]:
        told = os.read(reading, 4)
        if not told:
            break
        place = int.from_bytes(told, "little")
    else:
        os.kill(child, 9)
    os.close(reading)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return place, f"died of signal {os.WTERMSIG(status)}"
    return (place, "ended its session") if os.WEXITSTATUS(status) == LOST else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="remote")
    parser.add_argument("operators", nargs="*")
    options = parser.parse_args()
    todo, died = options.operators or names(), 0
    while todo and (death := first_death(todo, options.device)) is not None:
        place, how = death
        print(f"{todo[place]} {how}", flush=True)
        todo, died = todo[place + 1 :], died + ("session" not in how)
    return 1 if died else 0


if __name__ == "__main__":
    sys.exit(main())
