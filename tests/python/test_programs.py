"""Random programs of views, writes, resizes, gradients and deletes give the CPU's results.

CI always runs the same programs. For more: `make programs STEPS=20000 SEED=1`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from programs import lines
from programs.filling import Filling
from programs.world import World

pytestmark = pytest.mark.slow

STEPS = int(os.environ.get("TORCH_REMOTE_PROGRAM_STEPS", "0"))
SEED = int(os.environ.get("TORCH_REMOTE_PROGRAM_SEED", "0"))
STEPS_IN_CI = 1500
LINES = 50


def lines_of(templates: list[str]) -> Callable[[Programs, st.DataObject], None]:
    @rule(data=st.data())
    def step(self: Programs, data: st.DataObject) -> None:
        self.step(data, templates)

    return step


class Programs(RuleBasedStateMachine):
    """A program, with a rule for each kind of line. Reads after every line: no late errors."""

    read_every = 1
    blocking = "1"

    def __init__(self) -> None:
        super().__init__()
        self.world = World(errors_come_late=self.blocking == "0")
        self.lines = 0
        self.world.run("torch.arange(24.0, device=device).reshape(2, 3, 4)")

    def step(self, data: st.DataObject, templates: list[str]) -> None:
        try:
            while len(self.world.names) < 2:
                self.world.run("torch.ones(2, 3, device=device)")
            template = data.draw(st.sampled_from(templates))
            self.world.run(Filling(self.world, data).fill(template))
            self.lines += 1
            if self.lines % self.read_every == 0:
                self.world.compare_values()
        except AssertionError:
            hypothesis.note("\n".join(["the program:", *self.world.program]))
            raise

    def teardown(self) -> None:
        self.world.compare_values()

    make = lines_of(lines.FACTORIES)
    view = lines_of(lines.VIEWS)
    write = lines_of(lines.WRITES)
    change_memory = lines_of(lines.MEMORY)
    compute = lines_of(lines.RESULTS)
    change_kind = lines_of(lines.KINDS)
    compute_into = lines_of(lines.OUTS)
    differentiate = lines_of(lines.AUTOGRAD)
    delete = lines_of(lines.DELETES)


class StreamedPrograms(Programs):
    """Reads values now and then, so that calls are sent ahead and errors of kernels come late."""

    read_every = 13
    blocking = "0"


def run(machine: type[Programs], steps: int) -> None:
    settings = hypothesis.settings(
        max_examples=max(steps // LINES, 1),
        stateful_step_count=LINES,
        derandomize=not STEPS,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    if STEPS:
        machine = hypothesis.seed(SEED)(machine)
    run_state_machine_as_test(machine, settings=settings)


MACHINES = {machine.__name__: machine for machine in (Programs, StreamedPrograms)}


@pytest.mark.parametrize("name", MACHINES)
def test_a_program_gives_what_it_gives_on_the_cpu(name: str) -> None:
    """In its own process: after a failure in a session, later programs would run differently."""
    finished = subprocess.run(
        [sys.executable, __file__, name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "TORCH_REMOTE_BLOCKING": MACHINES[name].blocking},
    )
    assert finished.returncode == 0, finished.stdout[-20000:]


if __name__ == "__main__":
    import torch_remote  # noqa: F401  names the device

    run(MACHINES[sys.argv[1]], STEPS or STEPS_IN_CI)
