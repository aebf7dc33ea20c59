"""A forked child has its parent's memory but not its session."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import assert_runs, run_python

pytestmark = pytest.mark.slow

IN_A_CHILD = """
import os, sys, torch, torch_remote
x = torch.ones(2, device="remote")
x.tolist()
pid = os.fork()
if pid == 0:
    status = 3
    try:
        {action}
        status = 0
    except RuntimeError as error:
        print(error, flush=True)
        status = 1
    finally:
        os._exit(status)
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print("parent", x.tolist())
"""

SCALED_STEP = """
        scaler, weight = torch.amp.GradScaler("cpu"), torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [0.5, 0.5]
"""

FAMILIAR = (
    "Cannot re-initialize remote in forked subprocess. To use remote with multiprocessing, "
    "you must use the 'spawn' start method"
)


def in_a_child(action: str) -> list[str]:
    return assert_runs(IN_A_CHILD.format(action=action)).splitlines()


def test_a_child_that_touches_the_device_gets_the_familiar_error() -> None:
    for action in (
        'torch.ones(2, device="remote")',
        "x + 1",
        "x.cpu()",
        "torch.remote.synchronize()",
        "torch.remote.init()",
        "torch.remote.get_rng_state()",
    ):
        said = in_a_child(action)
        assert FAMILIAR in said[0], (action, said)
        assert said[-2:] == ["child 1", "parent [1.0, 1.0]"]


def test_a_child_may_seed_and_use_the_cpu() -> None:
    for action in (
        "torch.manual_seed(3); torch.rand(3)",
        "torch.remote.manual_seed_all(3)",
        "torch.remote.is_available(); torch.remote.is_initialized()",
        "del x",
        SCALED_STEP,
    ):
        assert in_a_child(action) == ["child 0", "parent [1.0, 1.0]"], action


def test_a_child_forked_before_the_first_use_has_a_session_of_its_own() -> None:
    said = assert_runs("""
        import os, torch, torch_remote
        pid = os.fork()
        print(torch.arange(3, device="remote").tolist(), flush=True)
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
    """)
    # Both write to one pipe, a text and the end of its line apart.
    assert said.replace("\n", "") == "[0, 1, 2]" * 2


def test_the_childs_normal_exit_does_not_close_the_parents_session() -> None:
    said = assert_runs("""
        import os, sys, torch, torch_remote
        x = torch.ones(2, device="remote")
        x.tolist()
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(x.tolist())
    """)
    assert said == "[1.0, 1.0]"


def test_a_data_loader_with_workers_and_cpu_tensors_works() -> None:
    said = assert_runs("""
        import torch, torch_remote
        from torch.utils.data import DataLoader, TensorDataset
        total = torch.zeros((), device="remote")
        total.item()
        data = TensorDataset(torch.arange(32.0))
        for _ in range(2):
            for (batch,) in DataLoader(
                data, batch_size=4, num_workers=1, shuffle=True, multiprocessing_context="fork"
            ):
                total += batch.to("remote").sum()
        print(total.item())
    """)
    assert said == "992.0"


def test_a_data_loader_with_spawned_workers_works() -> None:
    said = assert_runs("""
        import torch, torch_remote
        from torch.utils.data import DataLoader, TensorDataset
        total = torch.zeros((), device="remote")
        data = TensorDataset(torch.arange(32.0))
        for (batch,) in DataLoader(
            data, batch_size=4, num_workers=1, multiprocessing_context="spawn"
        ):
            total += batch.to("remote").sum()
        print(total.item())
    """)
    assert said == "496.0"


CHILDREN = ["fork", "forkserver", "spawn"]


def end_of_a_process(tmp_path: Path, work: str, method: str) -> tuple[list[str], str]:
    """What a program prints that runs `work` in a process of multiprocessing."""
    script = tmp_path / "processes.py"
    script.write_text(f"""
import multiprocessing, sys, torch, torch_remote
def bad():
    return torch.gather(torch.ones(3, device="remote"), 0, torch.tensor([7], device="remote"))
def work():
    {work}
if __name__ == "__main__":
    child = multiprocessing.get_context({method!r}).Process(target=work)
    child.start()
    child.join()
    print(child.exitcode)
""")
    done = run_python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("method", CHILDREN)
@pytest.mark.parametrize(
    ("ending", "status"), [("", 1), ("; sys.exit(0)", 1), ("; sys.exit(3)", 3)]
)
def test_an_error_that_a_process_was_not_told_of_is_printed_at_its_end(
    ending: str, status: int, method: str, tmp_path: Path
) -> None:
    said, errors = end_of_a_process(tmp_path, "value = bad()" + ending, method)
    assert said == [str(status)]
    first, second = errors.splitlines()
    assert first == "torch_remote: 1 remote call failed and its error was never raised:"
    assert "aten::gather" in second and "in bad" in second


@pytest.mark.parametrize("method", CHILDREN)
def test_an_exception_of_a_process_is_printed_with_what_it_was_not_told_of(
    method: str, tmp_path: Path
) -> None:
    said, errors = end_of_a_process(tmp_path, "value = bad(); raise ValueError('mine')", method)
    assert said == ["1"]
    assert "error was never raised" in errors and "ValueError: mine\n" in errors, errors


@pytest.mark.parametrize("method", CHILDREN)
def test_a_process_ends_quietly_when_its_threads_have_ended(method: str, tmp_path: Path) -> None:
    """Like an interpreter's exit, the end of the process first waits for its threads."""
    work = """
    import multiprocessing.util, threading
    x, is_ending = torch.ones(2, device="remote"), threading.Event()
    def use():
        is_ending.wait()
        print(x.sum().item(), flush=True)
    multiprocessing.util.Finalize(None, is_ending.set, exitpriority=1)
    threading.Thread(target=use).start()
    print((x + 1).tolist(), flush=True)
"""
    said, errors = end_of_a_process(tmp_path, work, method)
    assert (said, errors) == (["[2.0, 2.0]", "2.0", "0"], "")


def test_children_free_pinned_memory_while_other_threads_pin() -> None:
    assert_runs("""
        import os, signal, threading, torch, torch_remote
        held = [torch.empty(4096).pin_memory() for _ in range(50)]
        going = True

        def pin():
            while going:
                torch.empty(64, pin_memory=True)

        threads = [threading.Thread(target=pin) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(40):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                held.clear()
                torch.empty(64, pin_memory=True)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        going = False
    """)


def test_children_inherit_no_descriptor() -> None:
    said = assert_runs("""
        import os, subprocess, torch, torch_remote

        def descriptors_of_a_child():
            with subprocess.Popen(["sleep", "600"], close_fds=False) as child:
                while os.readlink(f"/proc/{child.pid}/exe") == os.readlink("/proc/self/exe"):
                    pass
                there = sorted(os.listdir(f"/proc/{child.pid}/fd"))
                child.kill()
            return there

        def has_sockets():
            names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            links = [os.readlink(name) for name in names if os.path.islink(name)]
            return any(link.startswith("socket:") for link in links)

        descriptors_of_a_child()
        before = descriptors_of_a_child()
        x = torch.ones(2, device="remote")
        x.tolist()
        assert descriptors_of_a_child() == before
        assert has_sockets()
        pid = os.fork()
        if pid == 0:
            os._exit(has_sockets())
        assert os.waitpid(pid, 0)[1] == 0
        print(x.tolist())
    """)
    assert said == "[1.0, 1.0]"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_ends_although_its_thread_pool_is_idle(
    method: str, tmp_path: Path
) -> None:
    script = tmp_path / "pool.py"
    script.write_text(
        "import concurrent.futures, multiprocessing, sys\n"
        "import torch_remote\n"
        "def work():\n"
        "    sys.pool = concurrent.futures.ThreadPoolExecutor(2)  # that nobody shuts down\n"
        "    assert sys.pool.submit(abs, -1).result() == 1\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context({method!r}).Process(target=work)\n"
        "    process.start()\n"
        "    process.join(60)\n"
        "    status = process.exitcode\n"
        "    process.kill()\n"
        "    print(status)\n"
    )
    done = run_python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_spawned_processes_have_sessions_of_their_own(tmp_path: object) -> None:
    script = f"{tmp_path}/spawn.py"
    with open(script, "w") as file:  # noqa: PTH123
        file.write(
            "import torch, torch_remote\n"
            "import torch.multiprocessing as mp\n"
            "def work(rank):\n"
            "    assert torch.ones(3, device='remote').sum().item() == 3\n"
            "if __name__ == '__main__':\n"
            "    work(0)\n"
            "    mp.spawn(work, nprocs=2)\n"
        )
    done = run_python(f"import runpy; runpy.run_path({script!r}, run_name='__main__')")
    assert done.returncode == 0, done.stderr
