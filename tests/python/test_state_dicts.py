"""State dicts of modules, optimizers and schedulers; safetensors; distributed checkpoints."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from helpers import assert_runs, assert_same
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import torch_remote

safetensors_torch = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True, foreach=True),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=3),
}


class Training:
    """A model with its optimizer and scheduler."""

    def __init__(self, device: str, optimizer: str) -> None:
        torch.manual_seed(4)
        layers = [torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)]
        self.model = torch.nn.Sequential(*layers).to(device)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, 0.1, total_steps=20, cycle_momentum=False
        )
        self.x = torch.linspace(-1, 1, 15).reshape(5, 3).to(device)

    def steps(self, count: int) -> Training:
        def loss() -> torch.Tensor:
            self.optimizer.zero_grad()
            result = self.model(self.x).square().mean()
            result.backward()
            return result

        for _ in range(count):
            self.optimizer.step(loss)
            self.schedule.step()
        return self

    def state(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        return {name: part.state_dict() for name, part in parts.items()}

    def load(self, state: dict[str, Any]) -> Training:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        return self


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("devices", [("remote", "remote"), ("cpu", "remote"), ("remote", "cpu")])
def test_training_goes_on_from_a_checkpoint_on_either_device(
    devices: tuple[str, str], optimizer: str
) -> None:
    buffer = io.BytesIO()
    torch.save(Training(devices[0], optimizer).steps(3).state(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, map_location=devices[1], weights_only=True)
    resumed = Training(devices[1], optimizer).load(state).steps(3)
    expected = Training("cpu", optimizer).steps(6)
    assert_same(dict(resumed.model.state_dict()), dict(expected.model.state_dict()))
    assert resumed.schedule.get_last_lr() == expected.schedule.get_last_lr()


def test_a_module_takes_over_loaded_tensors_with_assign() -> None:
    state = {"weight": torch.ones(2, 2, device="remote"), "bias": torch.ones(2, device="remote")}
    module = torch.nn.Linear(2, 2, device="meta")
    module.load_state_dict(state, assign=True)
    assert module.weight.device.type == "remote"
    assert module(torch.ones(1, 2, device="remote")).tolist() == [[3, 3]]


# --- safetensors


def tensors(device: str) -> dict[str, torch.Tensor]:
    return {
        "a": torch.arange(6.0).view(2, 3).to(device),
        "b": torch.ones(4, dtype=torch.bfloat16).to(device),
        "c": torch.tensor(7).to(device),
        "d": torch.tensor([True, False]).to(device),
        "e": torch.empty(0, 2).to(device),
    }


@pytest.mark.parametrize("saved_from", ["cpu", "remote"])
@pytest.mark.parametrize(
    "target", ["cpu", "remote", "remote:0", torch.device("remote"), torch.device("remote", 0), 0]
)
def test_safetensors_loads_to_the_device(tmp_path: Path, saved_from: str, target: Any) -> None:
    file = tmp_path / "x.safetensors"
    safetensors_torch.save_file(tensors(saved_from), file)
    loaded = safetensors_torch.load_file(file, device=target)
    wanted = "cpu" if target == "cpu" else "remote"
    assert {t.device.type for t in loaded.values()} == {wanted}
    assert_same(dict(sorted(loaded.items())), tensors("cpu"))


def test_safetensors_opens_parts_of_a_file_on_the_device(tmp_path: Path) -> None:
    import safetensors

    file = str(tmp_path / "x.safetensors")
    safetensors_torch.save_file(tensors("remote"), file)
    with safetensors.safe_open(file, framework="pt", device="remote") as opened:
        assert sorted(opened.keys()) == list("abcde")
        assert opened.get_tensor("a").device == torch.device("remote", 0)
        part = opened.get_slice("a")[1:]
        assert part.device.type == "remote" and part.tolist() == [[3, 4, 5]]
    with pytest.raises(RuntimeError, match="remote:9 does not exist"):
        safetensors_torch.load_file(file, device="remote:9")
    with pytest.raises(safetensors.SafetensorError, match="invalid"):
        safetensors_torch.load_file(file, device="remotest")


def test_safetensors_may_be_imported_before_us_and_is_restored(tmp_path: Path) -> None:
    assert_runs(
        f"""
        import safetensors.torch, torch
        from safetensors import safe_open
        from safetensors.torch import load_file
        original = safe_open
        safetensors.torch.save_file({{"x": torch.ones(2)}}, {str(tmp_path / "x")!r})
        import torch_remote
        for open_file in (safe_open, safetensors.safe_open, safetensors.torch.safe_open):
            with open_file({str(tmp_path / "x")!r}, "pt", device="remote") as opened:
                assert opened.get_tensor("x").is_remote
        for load in (load_file, safetensors.torch.load_file):
            assert load({str(tmp_path / "x")!r}, device="remote")["x"].is_remote
        torch_remote._patches.undo_all()
        assert safetensors.safe_open is safetensors.torch.safe_open is safe_open is original
        """
    )


def test_safetensors_uploads_each_byte_once(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    safetensors_torch.save_file({str(i): torch.randn(10_000) for i in range(10)}, file)
    with torch_remote.count() as counted:
        safetensors_torch.load_file(file, device="remote")
    assert 400_000 <= counted.bytes_sent < 410_000


def test_safetensors_saves_and_loads_models(tmp_path: Path) -> None:
    file = str(tmp_path / "m.safetensors")
    model = torch.nn.Linear(3, 3).to("remote")
    safetensors_torch.save_model(model, file)
    other = torch.nn.Linear(3, 3).to("remote")
    safetensors_torch.load_model(other, file, device="remote")
    assert_same(dict(other.state_dict()), {k: v.cpu() for k, v in model.state_dict().items()})
    loaded = safetensors_torch.load(safetensors_torch.save(tensors("remote")))
    assert_same(dict(sorted(loaded.items())), tensors("cpu"))


# --- torch.distributed.checkpoint, one process


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("devices", [("remote", "remote"), ("cpu", "remote"), ("remote", "cpu")])
def test_a_distributed_checkpoint_resumes_on_either_device(
    tmp_path: Path, devices: tuple[str, str]
) -> None:
    first = Training(devices[0], "Adam").steps(3)
    model_state, optimizer_state = get_state_dict(first.model, first.optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.save(state, checkpoint_id=str(tmp_path / "saved"))
    second = Training(devices[1], "Adam").steps(1)
    model_state, optimizer_state = get_state_dict(second.model, second.optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=str(tmp_path / "saved"))
    set_state_dict(
        second.model,
        second.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    assert next(second.model.parameters()).device.type == devices[1]
    expected = Training("cpu", "Adam").steps(3)
    assert_same(dict(second.model.state_dict()), dict(expected.model.state_dict()))
    found = second.optimizer.state_dict()["state"]
    assert_same(found, expected.optimizer.state_dict()["state"])


@pytest.mark.filterwarnings("ignore")
def test_an_asynchronous_checkpoint_has_the_values_of_its_call(tmp_path: Path) -> None:
    x = torch.arange(5.0, device="remote")
    saving = dcp.async_save({"x": x}, checkpoint_id=str(tmp_path / "saved"))
    x.zero_()
    saving.result()
    loaded = {"x": torch.empty(5, device="remote")}
    dcp.load(loaded, checkpoint_id=str(tmp_path / "saved"))
    assert loaded["x"].tolist() == [0, 1, 2, 3, 4]
