"""Downloads that go together: those of torch.save and of Module.to("cpu")."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from failures import bad_gather
from helpers import assert_runs, assert_same, serving

import torch_remote

COUNT = 40
# Small ones are answered in a message, large ones on a lane.
SIZES = [1, 5, 100, 16_384, 16_385, 300_000, 3]


def tensors(count: int = COUNT) -> list[torch.Tensor]:
    return [torch.full((8,), float(i), device="remote") for i in range(count)]


def model(layers: int = 20) -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(layers)))


def saved(value: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu")


MANY_WAYS = """
    import io, torch, torch_remote
    tensors = [torch.full((8,), float(i), device="remote") for i in range(40)]
    model = torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(20))).to("remote")
    torch.remote.synchronize()

    def later():
        results = [t.to("cpu", non_blocking=True) for t in tensors]
        torch.remote.synchronize()
        assert [int(r[0]) for r in results] == list(range(40))

    for way in (
        later,
        lambda: torch.save(tensors, io.BytesIO()),
        lambda: torch.save(tensors, io.BytesIO(), _use_new_zipfile_serialization=False),
        lambda: torch.save(model.state_dict(), io.BytesIO()),
        lambda: torch.save(model, io.BytesIO()),
        lambda: model.to("cpu"),
        lambda: model.to("remote").cpu(),
    ):
        with torch_remote.count() as counted:
            way()
        # Not syncs: where the answers come slowly, each is waited for.
        assert counted.frames <= 10, (way, counted)
"""


def test_forty_downloads_cost_few_round_trips() -> None:
    assert_runs(MANY_WAYS)


@pytest.mark.parametrize("zip_file", [True, False])
def test_a_saved_object_has_the_bytes_of_a_local_one(zip_file: bool) -> None:
    local = [torch.randn(size) for size in SIZES * 3]
    local += [local[4][5:50:3], local[5].half(), torch.empty(0, 3), local[0]]
    there = copy.deepcopy(local)
    memo = {id(t): t.to("remote") for t in there}
    remote = [memo[id(t)] for t in there]
    remote[21] = remote[4][5:50:3]
    assert_same(loaded(saved(remote, _use_new_zipfile_serialization=zip_file)), local)


def test_more_than_the_window_is_saved() -> None:
    sizes = [5_000_000, 100, 20_000_000, 1, 9_000_000, 9_000_000, 7]
    local = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in sizes] * 2
    assert_same(loaded(saved([t.to("remote") for t in local])), local)


def test_storages_that_were_never_written_are_saved() -> None:
    values: list[torch.Tensor] = []
    for i in range(5):
        values += [torch.full((3,), float(i), device="remote"), torch.empty(4, device="remote")]
    back = loaded(saved(values))
    assert [t[0].item() for t in back[::2]] == [0, 1, 2, 3, 4]


class Changing(io.BytesIO):
    """A file that changes a tensor with each write, as another thread might."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def write(self, data: Any) -> int:
        for tensor in self._tensors:
            tensor.add_(1)
        return super().write(data)


def test_a_write_while_an_object_is_saved_is_seen() -> None:
    """Storages that are written later have been changed more often, as without a plan."""
    values = [torch.zeros(200_000, device="remote") for _ in range(4)]
    file = Changing(values)
    torch.save(values, file)
    back = [t[0].item() for t in loaded(file.getvalue())]
    assert back == sorted(back) and back[0] < back[1] < back[2] < back[3]


def test_a_write_between_two_downloads_of_a_plan_is_seen() -> None:
    values = tensors(6)
    assert torch_remote._C.begin_downloads()
    try:
        for value in values:
            torch_remote._C.plan_download(value)
        seen = [values[0].cpu()[0].item(), values[1].cpu()[0].item()]
        values[2].add_(100)
        seen += [value.cpu()[0].item() for value in values[2:4]]
        values[4].copy_(torch.full((8,), 7.0))
        seen += [value.cpu()[0].item() for value in values[4:]]
    finally:
        torch_remote._C.end_downloads()
    assert seen == [0, 1, 102, 3, 7, 5]


def test_downloads_that_are_not_planned_are_made_as_ever() -> None:
    values = tensors(3)
    assert torch_remote._C.begin_downloads()
    try:
        assert not torch_remote._C.begin_downloads()
        torch_remote._C.plan_download(values[0])
        for _ in range(2):
            assert values[0].cpu()[1].item() == 0
            assert values[0][1:].sum().item() == 0
            assert values[2].tolist() == [2.0] * 8
    finally:
        torch_remote._C.end_downloads()


def test_a_failure_among_the_saved_is_raised_and_the_next_save_works() -> None:
    values: list[torch.Tensor] = [*tensors(5), bad_gather(), *tensors(5)]
    with pytest.raises(torch_remote.RemoteError, match="gather"):
        saved(values)
    del values[5]
    assert len(loaded(saved(values))) == 10
    assert torch_remote._C.begin_downloads()
    torch_remote._C.end_downloads()


def test_after_a_failure_that_saving_tells_training_goes_on_as_locally() -> None:
    def train(device: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        network = torch.nn.Sequential(
            torch.nn.Embedding(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 5)
        ).to(device)
        optimizer = torch.optim.Adam(network.parameters())
        for words in ([1, 2, 3], [1, 2, 9], [0, 1, 2]):
            try:
                optimizer.zero_grad()
                network(torch.tensor(words, device=device)).square().sum().backward()
                optimizer.step()
                saved(network.state_dict())
            except (IndexError, RuntimeError):
                pass
        return {key: value.cpu() for key, value in network.state_dict().items()}

    assert_same(train("remote"), train("cpu"))


def all_parameters(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Tied parameters as often as they occur: overwriting unties them."""
    return [p for _, p in module.named_parameters(remove_duplicate=False)]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("way", ["cpu", "to", "dtype", "non_blocking"])
def test_a_module_comes_back_as_it_was(way: str, swap: bool, overwrite: bool) -> None:
    network = torch.nn.Sequential(model(3), torch.nn.BatchNorm1d(5), torch.nn.LSTM(5, 4))
    network[0][2].weight = network[0][0].weight  # tied
    network[2](network[1](network[0](torch.randn(4, 5))))[0].sum().backward()
    expected = copy.deepcopy(network)
    gradients = [p.grad.clone() for p in all_parameters(network) if p.grad is not None]
    try:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
        torch.__future__.set_swap_module_params_on_conversion(swap)
        there = network.to("remote")
        back: Any = {
            "cpu": lambda: there.cpu(),
            "to": lambda: there.to("cpu"),
            "dtype": lambda: there.to("cpu", torch.float64),
            "non_blocking": lambda: there.to("cpu", non_blocking=True),
        }[way]()
        torch.remote.synchronize()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        torch.__future__.set_swap_module_params_on_conversion(False)
    if way == "dtype":
        expected.double()
        gradients = [gradient.double() for gradient in gradients]
    assert_same(dict(back.state_dict()), dict(expected.state_dict()))
    assert_same([p.grad for p in all_parameters(back)], gradients)


def test_modules_of_two_machines_are_saved_together() -> None:
    model(1).to("remote")  # the first machine
    with torch_remote.connect("local") as machine:
        parts = [model(3).to("remote"), model(4).to(machine.devices[0])]
        expected = [dict(model(3).state_dict()), dict(model(4).state_dict())]
        assert_same(loaded(saved([dict(part.state_dict()) for part in parts])), expected)
        result = parts[1][0].weight.to("cpu", non_blocking=True)
        torch_remote.synchronize()
        assert_same(result.detach(), model(1)[0].weight.detach())


def test_converting_a_module_frees_its_tensors_one_by_one(tmp_path: Path) -> None:
    """Eight layers of 4 MiB become 2 MiB each: all old and new ones at once would be 48 MiB."""
    with (
        serving(f"unix://{tmp_path}/s", "--max-memory", "42MiB") as url,
        torch_remote.connect(url) as machine,
    ):
        layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)]
        net = torch.nn.Sequential(*layers).to(machine.devices[0])
        net.half()
        assert net[7].weight.dtype == torch.float16
        torch_remote.synchronize()


def test_a_saved_model_is_not_held_in_host_memory() -> None:
    """100 tensors of 8 MiB go through a window of 64 MiB."""
    assert_runs(
        """
        import resource, torch, torch_remote

        class Discard:
            def write(self, data): return len(data)
            def flush(self): pass

        tensors = [torch.full((2 << 20,), float(i), device="remote") for i in range(100)]
        torch.save(tensors[:1], Discard())
        torch_remote.synchronize()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        torch.save(tensors, Discard())
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
        assert grown < 200, f"{grown} MiB"
        """,
        # Large blocks return to the system when freed. Otherwise glibc keeps them, and cannot
        # always reuse them for aligned blocks such as CPU tensors.
        MALLOC_MMAP_THRESHOLD_=str(1 << 20),
    )


def test_a_storage_that_is_met_again_is_downloaded_once() -> None:
    base = torch.zeros(1 << 18, device="remote")
    views = [base[i : i + 10] for i in range(50)]
    with torch_remote.count() as counted:
        saved(views)
    assert counted.bytes_received < 2 * base.nbytes
    tied = torch.nn.Linear(512, 512, bias=False).to("remote")
    other = torch.nn.Linear(512, 512, bias=False).to("remote")
    other.weight = tied.weight
    with torch_remote.count() as counted:
        torch.nn.Sequential(tied, other).cpu()
    assert counted.bytes_received < 2 * 512 * 512 * 4


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_a_module_with_a_wrapped_buffer_moves_to_the_cpu(transform: Callable[..., Any]) -> None:
    def move(value: torch.Tensor) -> torch.Tensor:
        module = torch.nn.Module()
        module.register_buffer("buffer", value)
        return module.cpu().buffer.sum()

    there = transform(move)(torch.ones(3, device="remote"))
    assert_same(there.cpu(), transform(move)(torch.ones(3)))


def test_moves_inside_a_compiled_cpu_function_break_no_graph() -> None:
    linear = torch.nn.Linear(3, 3)

    @torch.compile(backend="eager", fullgraph=True)
    def function(value: torch.Tensor) -> torch.Tensor:
        return linear.to(torch.float32)(value)

    assert_same(function(torch.ones(2, 3)), linear(torch.ones(2, 3)))
