"""Lightning's Trainer and Fabric use our device as they use CUDA."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from changes import without_changes
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader, TensorDataset

from torch_remote.integrations import lightning as integration
from torch_remote.integrations.choice import is_redirected

pytestmark = pytest.mark.filterwarnings("ignore")


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
        self.losses: list[float] = []
        self.seen: list[Any] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        made = self.layers(batch[0])
        self.seen.append((made.device.type, made.dtype))
        loss = made.square().mean()
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("validation", self.layers(batch[0]).mean())

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.layers(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def data() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(64.0).reshape(16, 4) / 64), batch_size=4)


def trainer(**options: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False,
             "enable_checkpointing": False, "max_epochs": 2}  # fmt: skip
    return lightning.Trainer(**{**quiet, **options})


def fitted(**options: Any) -> Module:
    module = Module()
    trainer(**options).fit(module, data(), data())
    return module


def test_auto_and_its_names_train_on_our_device_as_on_the_cpu() -> None:
    expected = fitted(accelerator="cpu")
    assert {device for device, _ in expected.seen} == {"cpu"}
    # Under `torch-remote run`, where test_launch.py runs this too, cuda is ours.
    names = ["gpu", *(["cuda", "mps"] if is_redirected() else [])]
    for options in ({}, {"accelerator": "auto"}, {"accelerator": "remote", "devices": 1},
                    {"accelerator": "remote", "devices": [0]},
                    *({"accelerator": each, "devices": 1} for each in names)):  # fmt: skip
        module = fitted(**options)
        assert {device for device, _ in module.seen} == {"remote"}
        assert module.losses == expected.losses


def test_alone_auto_is_the_cpu_and_our_name_is_unknown() -> None:
    with without_changes():
        assert trainer().strategy.root_device.type == "cpu"
        with pytest.raises(ValueError, match="invalid accelerator name"):
            trainer(accelerator="remote")
        with pytest.raises(MisconfigurationException, match="No supported gpu backend"):
            trainer(accelerator="gpu")
        assert lightning.Fabric().device.type == "cpu"
        assert "remote" not in AcceleratorRegistry
        assert "remote" not in ACCELERATOR_REGISTRY


def test_alone_the_strategy_of_an_accelerator_it_does_not_know_is_on_the_cpu() -> None:
    ours = AcceleratorRegistry["remote"]["accelerator"]
    with without_changes():
        made = trainer(accelerator=ours())
        assert made.strategy.root_device.type == "cpu"


def test_devices_that_it_cannot_use_are_refused() -> None:
    for kind in (trainer, lightning.Fabric):
        for devices in (2, "2", [0, 1], "0,1"):
            with pytest.raises(ValueError, match="one process uses one remote device"):
                kind(accelerator="remote", devices=devices)
        for devices in ([3], "3,"):
            with pytest.raises(RuntimeError, match="remote:3 does not exist"):
                kind(accelerator="remote", devices=devices)


def test_its_profiler_records_our_device() -> None:
    ours = torch.profiler.ProfilerActivity.PrivateUse1
    assert ours in PyTorchProfiler()._default_activities()
    with without_changes():
        assert ours not in PyTorchProfiler()._default_activities()


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16), ("bf16-true", torch.bfloat16)],
)
def test_precisions(precision: Any, dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*CUDA is not available.*")
        module = fitted(precision=precision)
    assert set(module.seen) == {("remote", dtype)}
    assert module.losses[-1] < module.losses[0]


def test_alone_mixed_precision_is_for_cuda() -> None:
    from lightning.fabric.plugins.precision import amp as fabric
    from lightning.pytorch.plugins.precision import amp as pytorch

    for half in (fabric, pytorch):
        assert half.MixedPrecision("bf16-mixed", "cuda").device == "remote"
        with without_changes():
            assert half.MixedPrecision("bf16-mixed", "cuda").device == "cuda"


def test_a_checkpoint_resumes(tmp_path: Path) -> None:
    expected = fitted(max_epochs=2).losses
    module = Module()
    made = trainer(max_epochs=1)
    made.fit(module, data())
    made.save_checkpoint(tmp_path / "half.ckpt")
    again = Module()
    trainer(max_epochs=2).fit(again, data(), ckpt_path=tmp_path / "half.ckpt")
    assert module.losses + again.losses == expected


def test_predict_and_validate() -> None:
    module = Module()
    made = trainer()
    assert set(made.validate(module, data(), verbose=False)[0]) == {"validation"}
    expected = torch.cat(trainer(accelerator="cpu").predict(module, data()))
    assert torch.allclose(torch.cat(made.predict(module, data())), expected)


@pytest.mark.parametrize("precision", [None, "16-mixed", "bf16-mixed"])
def test_fabric(precision: Any) -> None:
    losses = []
    for accelerator in ("auto", "gpu", "cpu"):
        torch.manual_seed(0)
        fabric = lightning.Fabric(accelerator=accelerator, precision=precision)
        fabric.launch()
        model = torch.nn.Linear(4, 1)
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
        for (batch,) in fabric.setup_dataloaders(data()):
            loss = model(batch).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append((fabric.device.type, loss.item()))
    assert [device for device, _ in losses] == ["remote", "remote", "cpu"]
    for _, loss in losses[:2]:
        assert loss == pytest.approx(losses[2][1], rel=1e-6 if precision is None else 0.1)


def test_its_states_of_generators_have_ours() -> None:
    states = _collect_rng_states()
    expected = torch.randn(3, device="remote")
    _set_rng_states(states)
    assert torch.equal(torch.randn(3, device="remote"), expected)
    with without_changes():
        assert _collect_rng_states()["torch.cuda"] == []


def test_its_own_model_passes() -> None:
    module = BoringModel()
    made = trainer(max_epochs=1, limit_train_batches=2, limit_val_batches=2, limit_test_batches=2)
    made.fit(module)
    assert made.strategy.root_device.type == "remote"
    made.test(module, verbose=False)
    assert made.state.finished


def test_an_accelerator_of_the_program_is_asked_nothing_without_the_redirect() -> None:
    connector: Any = SimpleNamespace(_accelerator_flag=(own := object()))  # it has no name()
    integration._redirecting(lambda self: None)(connector)
    assert connector._accelerator_flag is own
