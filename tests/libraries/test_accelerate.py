"""accelerate uses our device as it uses CUDA."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import (
    Accelerator,
    PartialState,
    cpu_offload,
    dispatch_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
)
from accelerate.utils import find_executable_batch_size, get_max_memory, release_memory
from accelerate.utils.memory import clear_device_cache
from accelerate.utils.modeling import get_grad_scaler
from changes import forget_accelerate, without_changes

import torch_remote
from torch_remote.integrations import accelerate as integration


def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def train(accelerator: Accelerator, steps: int = 4) -> list[float]:
    torch.manual_seed(0)
    inputs = torch.randn(8 * steps, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :2])
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_it_chooses_our_device_and_trains_as_on_the_cpu() -> None:
    accelerator = Accelerator()
    assert accelerator.device.type == "remote"
    losses = train(accelerator)
    forget_accelerate()
    assert losses == train(Accelerator(cpu=True))


def test_alone_it_chooses_the_cpu() -> None:
    with without_changes():
        assert PartialState().device.type == "cpu"


def test_the_cpu_can_still_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Accelerator(cpu=True).device.type == "cpu"
    forget_accelerate()
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert Accelerator().device.type == "cpu"


def test_its_own_variable_names_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "remote:0")
    with without_changes():
        assert Accelerator().device == torch.device("remote:0")


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.half)])
def test_mixed_precision(precision: str, dtype: torch.dtype) -> None:
    accelerator = Accelerator(mixed_precision=precision)
    with accelerator.autocast():
        made = torch.ones(2, 2, device="remote") @ torch.ones(2, 2, device="remote")
    assert made.dtype == dtype
    losses = train(accelerator, steps=8)
    assert losses[-1] < losses[0]
    assert (accelerator.scaler is not None) == (precision == "fp16")


def test_alone_it_refuses_fp16() -> None:
    with without_changes(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_TORCH_DEVICE", "remote")
        with pytest.raises(ValueError, match="fp16 mixed precision requires a device in"):
            Accelerator(mixed_precision="fp16")


def test_the_scaler_scales_on_our_device() -> None:
    assert get_grad_scaler().is_enabled()
    with without_changes(), pytest.warns(UserWarning, match="CUDA is not available"):
        assert not get_grad_scaler().is_enabled()


def test_the_memory_of_our_devices_comes_first() -> None:
    memory = get_max_memory()
    assert list(memory) == [0, "cpu"]
    assert 0 < memory[0] <= torch.remote.mem_get_info(0)[1]
    with without_changes():
        assert list(get_max_memory()) == ["cpu"]


def test_a_limit_for_our_device_is_taken_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert get_max_memory({0: "1GB", "cpu": "2GB"}) == {0: 10**9, "cpu": 2 * 10**9}
    assert not caplog.records
    with without_changes():
        get_max_memory({0: "1GB"})
    assert "Device 0 is not available" in caplog.text


def test_clearing_the_cache_reaches_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[str] = []
    monkeypatch.setattr("torch_remote._device.empty_cache", lambda: cleared.append("ours"))
    clear_device_cache()
    assert release_memory(torch.ones(2, device="remote")) == [None]
    assert cleared == ["ours", "ours"]
    with without_changes():
        clear_device_cache()
    assert cleared == ["ours", "ours"]


def test_the_batch_size_finder_goes_down_until_it_fits() -> None:
    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=(1 << 40) + (1 << 38))
    def run(batch_size: int) -> int:
        tried.append(batch_size)
        if batch_size > 1 << 40:
            return torch.empty(batch_size, device="remote").shape[0]
        return batch_size

    assert run() <= 1 << 40
    assert len(tried) == 4  # 0.9 of the one before


def test_a_checkpoint_brings_back_the_random_numbers(tmp_path: Path) -> None:
    accelerator = Accelerator()
    model = accelerator.prepare(layers())
    accelerator.save_state(str(tmp_path))
    expected = torch.randn(4, device="remote")
    before = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.zero_()
    accelerator.load_state(str(tmp_path))
    assert torch.equal(torch.randn(4, device="remote"), expected)
    assert torch.equal(model[0].weight, before)


def test_alone_a_checkpoint_has_no_state_of_our_generators(tmp_path: Path) -> None:
    with without_changes(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_TORCH_DEVICE", "remote")
        accelerator = Accelerator()
        accelerator.save_state(str(tmp_path))
        expected = torch.randn(4, device="remote")
        accelerator.load_state(str(tmp_path))
        assert not torch.equal(torch.randn(4, device="remote"), expected)


@pytest.mark.parametrize("device_map", ["auto", "sequential", {"": "remote"}, {"": 0}])
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_big_model_is_loaded_to_our_device(tmp_path: Path, device_map: Any, kind: str) -> None:
    expected = layers()
    Accelerator(cpu=True).save_model(expected, str(tmp_path), safe_serialization=kind != "bin")
    with init_empty_weights():
        model = layers()
    model = load_checkpoint_and_dispatch(model, str(tmp_path), device_map=device_map)
    assert {each.device.type for each in model.parameters()} == {"remote"}
    inputs = torch.randn(3, 8)
    assert torch.equal(model(inputs.to("remote")).cpu(), expected(inputs))


def test_a_model_with_parts_on_the_cpu_and_the_disk_runs(tmp_path: Path) -> None:
    expected, inputs = layers(), torch.randn(3, 8)
    model = dispatch_model(
        layers(), {"0": 0, "1": 0, "2": "cpu"}, main_device=0, offload_dir=str(tmp_path)
    )
    assert torch.equal(model(inputs.to("remote")).cpu(), expected(inputs))
    offloaded = cpu_offload(layers(), torch.device("remote"))
    assert torch.equal(offloaded(inputs.to("remote")).cpu(), expected(inputs))
    on_disk = dispatch_model(
        layers(), {"0": "remote:0", "1": "remote:0", "2": "disk"}, offload_dir=str(tmp_path)
    )
    assert torch.equal(on_disk(inputs.to("remote")).cpu(), expected(inputs))


def test_after_a_process_has_imported_accelerate_first_it_is_the_same() -> None:
    """The functions that accelerate's modules imported from each other are exchanged too."""
    import accelerate.accelerator

    changed = accelerate.accelerator.get_grad_scaler
    with without_changes():
        original = accelerate.accelerator.get_grad_scaler
        assert original is accelerate.utils.modeling.get_grad_scaler
        assert changed.__wrapped__ is original
    assert accelerate.accelerator.get_grad_scaler.__wrapped__ is original


def test_a_training_step_waits_only_for_the_loss() -> None:
    accelerator = Accelerator()
    model = layers()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    inputs = torch.randn(4, 8, device=accelerator.device)
    for step in range(3):
        with torch_remote.count() as counted:
            accelerator.backward(model(inputs).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        assert step == 0 or counted.syncs == 0


@pytest.mark.parametrize("script", ["test_script", "test_ops", "test_sync"])
def test_its_own_scripts_pass(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What `accelerate test` runs, for one process."""
    with torch_remote.count() as counted:
        importlib.import_module(f"accelerate.test_utils.scripts.{script}").main()
    assert counted.bytes_sent > 0  # its tensors were remote
    assert "Traceback" not in capfd.readouterr().err


def test_a_launcher_that_starts_one_process_of_several_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(number: int) -> str:
        args = SimpleNamespace(num_processes=number, cpu=False)
        assert integration._warning_of_one(lambda given: given)(args) is args
        return capsys.readouterr().err

    assert prepare(2) == ""
    monkeypatch.setattr(integration, "is_redirected", lambda: True)
    assert prepare(1) == ""
    assert "starts one process, not 2: give `accelerate launch` the option --multi_gpu" in prepare(
        2
    )
