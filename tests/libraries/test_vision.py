"""torchvision and timm train on our device.

No torchvision for a CPU torch was found here: the one for CUDA is installed in a folder of its own,
and without its C++ operators (nms, roi_align). Its Python needs the two declared before it is
imported. `tools/setup.sh` has the versions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

DECLARED = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    DECLARED.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
sys.path.append(str(Path(sys.prefix) / "vision"))
sys.path.append(str(Path(__file__).parent.parent / "python"))

timm = pytest.importorskip("timm", reason="make test-libraries installs timm and torchvision")
torchvision = pytest.importorskip("torchvision")
from helpers import serving  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from timm import optim as timm_optim  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

import torch_remote  # noqa: E402


def train(make: Callable[[], torch.nn.Module], make_optimizer: Any, device: str) -> list[float]:
    """What the reference scripts of torchvision and timm do in an epoch."""
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = make_optimizer(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    average = torch.optim.swa_utils.AveragedModel(
        model, avg_fn=lambda old, new, count: 0.9 * old + 0.1 * new, use_buffers=True
    )
    losses = []
    for _ in range(2):
        images, labels = torch.randn(4, 3, 32, 32), torch.randint(0, 4, (4,))
        loss = criterion(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        schedule.step()
        losses.append(loss.item())
    return losses


def test_torchvision_trains_as_on_the_cpu() -> None:
    def make() -> torch.nn.Module:
        return torchvision.models.resnet18(num_classes=4)

    def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)

    assert train(make, optimizer, "remote") == train(make, optimizer, "cpu")


def test_timm_trains_as_on_the_cpu() -> None:
    def make() -> torch.nn.Module:
        return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=4)

    def optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        return timm_optim.create_optimizer_v2(model, opt="adamw", lr=1e-3)

    assert train(make, optimizer, "remote") == train(make, optimizer, "cpu")


def test_transforms_run_on_our_device() -> None:
    images = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8) / 384
    change = v2.Compose(
        [
            v2.Resize(4),
            v2.CenterCrop(4),
            v2.Normalize([0.5] * 3, [0.2] * 3),
            v2.RandomErasing(p=0.0),
        ]
    )
    assert torch.allclose(change(images.to("remote")).cpu(), change(images))
    mixed, _ = v2.MixUp(num_classes=4)(images.to("remote"), torch.tensor([0, 1]).to("remote"))
    assert mixed.device.type == "remote"


def test_a_model_of_timm_reads_its_weights_on_the_server(tmp_path: Path) -> None:
    def make() -> torch.nn.Module:
        return timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=4).eval()

    source = make()
    save_file(source.state_dict(), tmp_path / "vit.safetensors")
    with torch.device("meta"):
        model = make()
    with (
        serving(f"unix://{tmp_path}/s", "--files", str(tmp_path)) as url,
        torch_remote.connect(url) as machine,
    ):
        device = machine.devices[0]
        with torch_remote.count() as counted:
            state = torch_remote.load("vit.safetensors", device=device)
            model.load_state_dict(state, assign=True)
            torch_remote.synchronize()
        weights = sum(value.nbytes for value in source.state_dict().values())
        assert counted.bytes_sent + counted.bytes_received < weights // 100
        images = torch.randn(2, 3, 32, 32)
        assert torch.equal(model(images.to(device)).cpu(), source(images))
