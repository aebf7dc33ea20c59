"""Comparing a device with the CPU, and running things in other processes.

`TORCH_REMOTE_TEST_DEVICE=cpu` compares the CPU with itself, to test the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch_forks import TorchForks, may_fork

DEVICE = os.environ.get("TORCH_REMOTE_TEST_DEVICE", "remote")
DEADLINE = 240.0  # for what would hang; long, since a busy machine runs several tests at once
# Clients of tests, and those of the programs that they start, wait that long for the first answer
# of a server. Users are told after 8 s; on a busy machine a server may take longer.
ANSWER_TIME = "TORCH_REMOTE_TEST_ANSWER_TIME"
os.environ.setdefault(ANSWER_TIME, "120s")

# What users are told where a connection or an exit takes long, as it does on a busy machine.
_WAITS = re.compile(
    r"torch_remote: waiting for .* to (?:answer|finish).*\n"
    r"|.* the server has no process ready for this client, which waits.*\n"
)


def moved(value: Any) -> Any:
    """The same with every tensor on the device, as new leaves that keep `requires_grad`."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().to(DEVICE, copy=True).requires_grad_(leaf.requires_grad)

    return tree_map(move, value)


def same(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether dtype, shape and bytes are equal; all NaNs are equal."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    rows = [_bytes_with_one_nan(tensor) for tensor in (actual, expected)]
    return torch.equal(*rows)


def _bytes_with_one_nan(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1).contiguous()
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    rows = flat.view(torch.uint8).reshape(-1, flat.itemsize).clone()
    if flat.is_floating_point():
        rows[flat.float().isnan() if flat.itemsize == 1 else flat.isnan()] = 0xFF
    return rows


def assert_same(actual: Any, expected: Any) -> None:
    """Compares trees of tensors bit for bit, and everything else by ==."""
    actual_leaves, actual_shape = tree_flatten(actual)
    expected_leaves, expected_shape = tree_flatten(expected)
    assert actual_shape == expected_shape
    for mine, other in zip(actual_leaves, expected_leaves, strict=True):
        if isinstance(other, torch.Tensor):
            assert same(mine, other), f"{mine!r}\nis not\n{other!r}"
        else:
            assert mine == other


def assert_matches_cpu(function: Callable[..., Any], *arguments: Any) -> None:
    """Runs the function on the CPU and on the device, with one seed, and compares the results."""
    there = moved(arguments)  # before the function changes them
    torch.manual_seed(7)
    expected = function(*arguments)
    torch.manual_seed(7)
    assert_same(function(*there), expected)


def assert_gradients_match_cpu(function: Callable[..., Any], *arguments: Any) -> None:
    """Like compare, forward and backward: with the gradients of all arguments that require them."""

    def run(inputs: Any) -> tuple[Any, list[torch.Tensor | None]]:
        torch.manual_seed(7)
        result = function(*inputs)
        outputs = [leaf for leaf in tree_flatten(result)[0] if leaf.requires_grad]
        leaves = [leaf for leaf in tree_flatten(inputs)[0] if isinstance(leaf, torch.Tensor)]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        total = sum((output * output).sum() for output in outputs)
        return result, list(torch.autograd.grad(total, wanted, allow_unused=True))

    assert_same(run(moved(arguments)), run(arguments))


TORCH_FORKS = TorchForks()


def without_waits(said: str) -> str:
    """What a program has printed to stderr, without the lines that depend on how busy the machine
    is."""
    return _WAITS.sub("", said)


def run_python(
    code: str, *, anew: bool = False, keep_waits: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script in its own process and waits for its end. `anew`: its imports are tested, so it
    is not forked from a process that has torch. `keep_waits`: stderr is not without_waits()."""
    if not anew and may_fork(environment):
        variables = {**os.environ, **environment}
        ended = TORCH_FORKS.run(textwrap.dedent(code), variables, DEADLINE)
        done = subprocess.CompletedProcess([code], *ended)
    else:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
            start_new_session=True,  # a signal to its process group does not reach the tests
        )
    if not keep_waits:
        done.stderr = without_waits(done.stderr)
    return done


def assert_runs(code: str, *, anew: bool = False, **environment: str) -> str:
    """Runs a script that must exit with 0 and an empty stderr. Returns its stdout."""
    done = run_python(code, anew=anew, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.strip()


@contextmanager
def serving(listen: str, *options: str, log: Path | None = None) -> Iterator[str]:
    """Starts a server, whose log may go to a file. Returns the URL that it prints."""
    command = [sys.executable, "-m", "torch_remote_cli", "serve", "--listen", listen, *options]
    with log.open("w") if log else nullcontext(subprocess.PIPE) as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line.startswith("listening on "):
            said = server.communicate(timeout=DEADLINE)[1]
            raise AssertionError(line + (log.read_text() if log else said))
        yield line.removeprefix("listening on ").strip()
    finally:
        server.terminate()
        server.communicate(timeout=DEADLINE)


def wait_until(claim: Callable[[], bool]) -> bool:
    """Waits until the claim is true. False after the deadline."""
    end = time.monotonic() + DEADLINE
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
