"""Programs under the redirect: files, optimizers, workers, scripts, compiled code, processes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_runs, run_python
from redirecting import QUIET, redirected

import torch_remote
import TorchDevice


def test_pickles_load_without_this_package(tmp_path: Path) -> None:
    file = tmp_path / "device.pickle"
    code = f"""
import TorchDevice, torch, pickle
open({str(file)!r}, "wb").write(pickle.dumps((torch.device("cuda"), torch.ones(2, device="cuda"))))
"""
    assert_runs(code, **QUIET)
    device, tensor = pickle.loads(file.read_bytes())
    assert (device, tensor.tolist()) == (torch.device("cpu"), [1.0, 1.0])
    assert b"TorchDevice" not in file.read_bytes()


def test_a_pickled_remote_device_brings_torch_remote_or_says_that_it_is_missing(
    tmp_path: Path,
) -> None:
    file, saved = tmp_path / "device.pickle", tmp_path / "device.pt"
    with redirected("remote"):
        file.write_bytes(pickle.dumps(torch.device("cuda")))
        torch.save({"device": torch.device("cuda")}, saved)
        assert torch.load(saved)["device"] == pickle.loads(file.read_bytes())
    load = f"import pickle; print(repr(pickle.load(open({str(file)!r}, 'rb'))))"
    assert assert_runs(load) == "device(type='remote', index=0)"
    missing = run_python(f"import sys; sys.modules['torch_remote'] = None\n{load}")
    assert missing.returncode == 1
    assert "torch_remote" in missing.stderr.splitlines()[-1]
    assert pickle.loads(pickle.dumps(torch.device("cpu"))) == torch.device("cpu")


@pytest.mark.parametrize("location", [None, "cuda", "cuda:0", "cpu", {"cuda:0": "cuda:0"}], ids=str)
def test_files_load_where_their_device_goes(used: str, location: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    torch.save({"x": torch.ones(2, device="cuda")}, file)
    assert str(torch.load(file, map_location=location)["x"].device) == used
    torch.save(torch.nn.Linear(2, 2).state_dict(), file)
    state = torch.load(file, map_location=torch.device("cuda"))
    assert str(state["weight"].device) == used


@pytest.mark.parametrize("policy", ["full", "foreign"])
@pytest.mark.parametrize(("read_as", "tag"), [(None, "cuda:0"), ("cuda", "cuda:0"), ("mps", "mps")])
def test_map_locations_are_told_the_claimed_name_of_own_files(
    policy: str, read_as: str | None, tag: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.pt"
    told: list[str] = []

    def note(storage: Any, location: str) -> Any:
        told.append(location)
        return storage

    options = {"read_as": read_as} if read_as else {}
    with redirected("remote", policy, **options):
        here = torch.from_numpy(np.ones(2, dtype=np.float32))
        for is_zip in (True, False):
            state = {"x": torch.ones(2, device="cuda"), "here": here}
            torch.save(state, file, _use_new_zipfile_serialization=is_zip)
            loaded = torch.load(file, map_location=note)
            assert (told.pop(0), told.pop(0)) == (tag, "cpu")
            assert (_device_of(loaded["x"]), loaded["x"].tolist()) == ("cpu", [1.0, 1.0])
            for mapped, expected in (
                ({tag: "meta"}, "meta"),
                ({"remote:0": "meta"}, "meta"),
                ({tag: "meta", "remote:0": "cpu"}, "meta"),
                ({tag: tag}, "remote:0"),
                ({"cuda:7": "meta"}, "remote:0"),
                ({}, "remote:0"),
                (lambda storage, location: None, "remote:0"),
                (torch.device("cuda"), "remote:0"),
            ):
                loaded = torch.load(file, map_location=mapped)
                assert _device_of(loaded["x"]) == expected, mapped
        if policy == "foreign":
            assert _device_of(torch.load(file, map_location={tag: "cpu"})["x"]) == "cpu"
    torch.load(file, map_location=note)
    assert told == ["remote:0", "cpu"]  # without the redirect, the file's own


def _device_of(tensor: torch.Tensor) -> str:
    # As torch itself reads it: with read_as programs are told another name.
    scope: dict[str, Any] = {"__name__": "torch.reader", "tensor": tensor}
    exec("device = tensor.device", scope)
    return str(scope["device"])


def test_distributions_are_untouched(used: str) -> None:
    normal = torch.distributions.Normal(0.0, 1.0)
    assert normal.sample((2,)).device.type == "cpu"
    there = torch.distributions.Normal(torch.zeros(2, device="cuda"), torch.ones(2, device="cuda"))
    assert str(there.sample().device) == used
    assert str(there.log_prob(there.sample()).device) == used


def test_optimizers_train_with_default_arguments(used: str) -> None:
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):
        module = torch.nn.Linear(3, 2).cuda()
        optimizer = kind(module.parameters(), lr=0.1)
        before = module.weight.detach().clone()
        module(torch.ones(1, 3, device="cuda")).sum().backward()
        optimizer.step()
        assert not torch.equal(module.weight, before)
        assert str(module.weight.grad.device) == used


@pytest.mark.parametrize("foreach", [True, False])
def test_optimizers_keep_their_counters_on_the_cpu(remote: str, foreach: bool) -> None:
    # Adam reads its counters in each step: on the device, each would be a wait.
    module = torch.nn.Linear(3, 2).cuda()
    optimizer = torch.optim.AdamW(module.parameters(), foreach=foreach)
    with torch_remote.count() as counted:
        for _ in range(3):
            module(torch.ones(1, 3, device="cuda")).sum().backward()
            optimizer.step()
    assert counted.syncs == 0
    state = optimizer.state[module.weight]
    assert (str(state["exp_avg"].device), str(state["step"].device)) == (remote, "cpu")


class Squares(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        made = torch.full((2,), float(index))
        assert torch.utils.data.get_worker_info() is None or made.device.type == "cpu"
        return made


def test_a_forked_worker_decides_for_itself(remote: str) -> None:
    data = Squares()
    assert {str(data[0].device) for _ in range(3)} == {remote}  # the line's decision is kept
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=1)
    assert [each.device.type for each in loader] == ["cpu"] * 6


def test_a_dataset_on_the_device_in_a_forked_worker_says_what_to_do(remote: str) -> None:
    def batches() -> list[torch.Tensor]:
        data = torch.utils.data.TensorDataset(torch.arange(4.0))
        return [batch for (batch,) in torch.utils.data.DataLoader(data, 2, num_workers=1)]

    torch.ones(1).item()  # so that there is a session
    with pytest.raises(RuntimeError, match=r"TorchDevice's policy `full`.*cpu_override\(\)"):
        batches()
    with TorchDevice.cpu_override():
        assert torch.cat(batches()).tolist() == [0, 1, 2, 3]


def test_a_dataset_on_the_device_for_spawned_workers_says_what_to_do(remote: str) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    spawned = {"num_workers": 1, "multiprocessing_context": "spawn"}
    with pytest.raises(RuntimeError, match="cannot be sent to another one") as raised:
        list(torch.utils.data.DataLoader(data, 2, **spawned))
    assert "TorchDevice's policy `full`" in str(raised.value)
    assert "cpu_override()" in str(raised.value) and "send tensor.cpu()" not in str(raised.value)
    TorchDevice.disable()
    with pytest.raises(RuntimeError, match=r"send tensor\.cpu\(\)"):
        list(torch.utils.data.DataLoader(data, 2, **spawned))


WORKERS = """
import sys, torch, TorchDevice
from torch.utils.data import DataLoader, Dataset

class Devices(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return f"{torch.zeros(1).device} {torch.zeros(1, device='cpu').device}"

if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        options = {"num_workers": 1, "multiprocessing_context": method}
        loader = DataLoader(Devices(), batch_size=None, **options)
        print(torch.zeros(1).device, *loader)
"""


def test_started_workers_stay_on_the_cpu(tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    run = f"import sys, subprocess; sys.exit(subprocess.call([sys.executable, {str(script)!r}]))"
    printed = assert_runs(run, TORCH_REMOTE="local", **QUIET).splitlines()
    assert printed == ["remote:0 cpu cpu"] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders_work(used: str, workers: int) -> None:
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=3, shuffle=True, num_workers=workers, pin_memory=True,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    rows = torch.cat([batch.to("cuda", non_blocking=True) for batch in loader])
    assert str(rows.device) == used
    assert sorted(rows[:, 0].tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_scripts_say_cuda(used: str, tmp_path: Path) -> None:
    @torch.jit.script
    def scripted(x: torch.Tensor) -> torch.Tensor:
        return (
            x.to("cuda")
            + torch.ones(2, device="cuda")
            + torch.zeros(2, device=torch.device("cuda:0"))
        )

    assert str(scripted(torch.ones(2)).device) == used
    torch.jit.save(scripted, str(tmp_path / "f.pt"))
    assert torch.jit.load(str(tmp_path / "f.pt"))(torch.ones(2)).tolist() == [2.0, 2.0]


def test_scripts_outlive_the_redirect() -> None:
    code = """
import torch
source = "def f(name: str):\\n    return torch.device(name)\\n"
units = [torch.jit.CompilationUnit(source)]
import TorchDevice
for _ in range(2):
    TorchDevice.enable()
    units.append(torch.jit.CompilationUnit(source))
    print(units[-1].f("cuda"))
    TorchDevice.disable()
    units.append(torch.jit.CompilationUnit(source))
junk = [bytes(size) for size in range(16, 2000, 8) for _ in range(50)]
nodes = [n for u in units for n in u.f.graph.nodes() if n.kind() == "aten::device"]
print(len(nodes), len({n.schema() for n in nodes}), *{str(u.f("cuda:1")) for u in units})
"""
    assert assert_runs(code, **QUIET).splitlines() == ["cpu", "cpu", "5 1 cuda:1"]


def test_a_script_saved_with_cuda_in_it_loads(tmp_path: Path) -> None:
    file = str(tmp_path / "cuda.pt")
    unit = torch.jit.CompilationUnit(
        """
def f(x):
    return x.to("cuda") + torch.ones(2, device="cuda")
"""
    )
    torch.jit.save(unit.f, file)
    code = f"import TorchDevice, torch; print(torch.jit.load({file!r})(torch.ones(2)).tolist())"
    assert assert_runs(code, **QUIET) == "[2.0, 2.0]"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_follows(used: str, backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + torch.zeros(2) + torch.ones(2, device="cuda").to("cuda")
        return y + torch.zeros(2, device=torch.device("cuda")) + torch.zeros(2, device="cpu")

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    made = compiled(torch.ones(2))
    assert (str(made.device), made.tolist()) == (used, [2.0, 2.0])


def test_compile_without_inductor_uses_aot_eager(remote: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.relu(x) * 2, mode="reduce-overhead")
    assert compiled(torch.ones(2, device="cuda")).tolist() == [2.0, 2.0]


def test_a_model_can_be_exported(used: str) -> None:
    class Adds(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(2, device="cuda")

    program = torch.export.export(Adds(), (torch.ones(2),))
    assert program.module()(torch.ones(2)).tolist() == [2.0, 2.0]


def test_function_transforms_and_tracing_work(used: str) -> None:
    made = torch.vmap(lambda x: x + torch.ones(2, device="cuda"))(torch.zeros(3, 2, device="cuda"))
    assert str(made.device) == used
    traced = torch.jit.trace(lambda x: x + torch.ones(2, device="cuda"), torch.ones(2))
    assert traced(torch.ones(2)).tolist() == [2.0, 2.0]
    graph = torch.fx.symbolic_trace(torch.nn.Linear(2, 2).cuda())
    assert str(graph(torch.ones(2)).device) == used


def test_lengths_and_random_states_may_be_on_the_accelerator(used: str, tmp_path: Path) -> None:
    x, lengths = torch.ones(2, 3, 1, device="cuda"), torch.tensor([3, 2])
    pack = torch.nn.utils.rnn.pack_padded_sequence
    for each in (lengths, lengths.cpu(), lengths.to("cpu"), lengths.cuda(), lengths.int()):
        for is_sorted in (True, False):
            packed = pack(x, each, batch_first=True, enforce_sorted=is_sorted)
            assert (str(packed.data.device), packed.batch_sizes.tolist()) == (used, [2, 2, 1])
    states = {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state()}
    torch.save(states, tmp_path / "states.pt")
    first = [torch.rand(2, generator=torch.default_generator).tolist(),
             torch.rand(2, device="cuda").tolist()]  # fmt: skip
    loaded = torch.load(tmp_path / "states.pt", map_location="cpu")
    assert str(loaded["cpu"].device) == used
    torch.set_rng_state(loaded["cpu"])
    torch.cuda.set_rng_state(loaded["cuda"])
    second = [torch.rand(2, generator=torch.default_generator).tolist(),
              torch.rand(2, device="cuda").tolist()]  # fmt: skip
    assert first[0] == second[0]
    if used != "cpu":  # there the two are one generator
        assert first[1] == second[1]


def test_packed_sequences_and_embeddings_work(used: str) -> None:
    rnn = torch.nn.LSTM(2, 3, batch_first=True).cuda()
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.ones(2, 4, 2, device="cuda"), [4, 2], batch_first=True
    )
    output, _ = torch.nn.utils.rnn.pad_packed_sequence(rnn(packed)[0], batch_first=True)
    assert (str(output.device), output.shape) == (used, (2, 4, 3))


SPAWNING = """
import sys, torch, TorchDevice
import torch.multiprocessing as mp

def work(device, queue):
    x = torch.ones(2, device=device) + torch.ones(2, device="cuda")
    queue.put((str(x.device), x.tolist(), torch.cuda.is_available()))

if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    queue = context.Queue()
    process = context.Process(target=work, args=(torch.device("cuda"), queue))
    process.start()
    print(*queue.get())
    process.join()
    print(process.exitcode)
"""


@pytest.mark.parametrize(
    ("method", "target"), [("fork", "cpu"), ("spawn", "cpu"), ("spawn", "remote")]
)
def test_a_child_process_is_redirected_too(method: str, target: str, tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    where = {"TORCH_REMOTE": "local"} if target == "remote" else {}
    run = f"import sys, subprocess; sys.exit(subprocess.call([sys.executable, {str(script)!r}, "
    used = "remote:0" if target == "remote" else "cpu"
    assert assert_runs(f"{run}{method!r}]))", **QUIET, **where).splitlines() == [
        f"{used} [2.0, 2.0] {target == 'remote'}",
        "0",
    ]


def test_subclasses_made_under_redirect_outlive_it() -> None:
    with redirected("remote"):

        class Mine(torch.Tensor):  # type: ignore[misc]
            pass

    assert Mine([1.0]).device.type == "cpu"
    assert TorchDevice.policy() == "off"
