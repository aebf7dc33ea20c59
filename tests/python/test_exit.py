"""Leaving: the exit code is 0 and stderr is empty, whatever is still alive."""

from __future__ import annotations

import pytest
from helpers import assert_runs, run_python

START = """
import atexit, gc, os, signal, sys, threading, torch, torch_remote
x = torch.ones(100, device="remote", requires_grad=True)
x.sum().item()
pid = int(torch_remote.machines()[0].status()["pid"])
"""

ENDINGS = {
    "nothing_used": "import torch, torch_remote",
    "live_tensors": START + "y = [x * i for i in range(100)]",
    "live_graph": START + "loss = (x * 2).sum()",
    "after_backward": START + "(x * 2).sum().backward()",
    "tensor_in_a_cycle": START + "a = [x * 2]; a.append(a); del x",
    "calls_not_sent": START + "for _ in range(1000): y = x.detach() + 1",
    "tensor_freed_by_atexit": START + "atexit.register(lambda: globals().pop('x'))",
    "tensor_used_by_atexit": START + "atexit.register(lambda: (x + 1).tolist())",
    "sys_exit": START + "sys.exit(0)",
    "daemon_thread": START
    + """
def work():
    while True:
        (torch.ones(10, device="remote") + 1).sum().item()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
x.sum().item()
""",
    "thread_that_only_sends": START
    + """
def work():
    y = x.detach().clone()
    while True:
        y.add_(1)
threading.Thread(target=work, daemon=True).start()
x.sum().item()
""",
    "daemon_thread_in_backward": START
    + """
def work():
    while True:
        (x * 2).sum().backward()
threading.Thread(target=work, daemon=True).start()
(x * 2).sum().backward()
""",
    "used_by_the_garbage_collector": START
    + """
class Node:
    def __init__(self):
        self.itself, self.tensor = self, torch.ones(3, device="remote")
    def __del__(self):
        try:
            (self.tensor + 1).sum()
        except torch_remote.SessionLost:  # at the very end; before, it works
            pass
nodes = [Node() for _ in range(3)]
""",
    "stopped_machine": START + "torch_remote.machines()[0].stop()",
    "dead_server": START + "os.kill(pid, signal.SIGKILL)",
    "dead_server_noticed": START
    + """
os.kill(pid, signal.SIGKILL)
try:
    x.tolist()
except torch_remote.SessionLost:
    pass
""",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_is_clean_and_quiet(ending: str) -> None:
    assert_runs(ENDINGS[ending])


def test_a_server_that_does_not_answer_delays_exit_by_little() -> None:
    assert_runs(START + "os.kill(pid, signal.SIGSTOP)\ny = x.detach() + 1")


def test_an_exception_keeps_its_exit_code_and_traceback() -> None:
    done = run_python(START + "raise ValueError('mine')")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: mine")
