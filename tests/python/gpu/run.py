"""The smoke test for a GPU machine: training on `remote`, whose server uses the GPU, equals training on local CUDA.

    python tests/python/gpu/run.py [--results FOLDER]

Local CUDA and `remote` run in processes of their own, save every tensor, and the bytes are compared.
With --results, client time per call is measured too and written there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[3]
STEPS = 5
TIMEOUT_S = 240
SIDES = ("cuda", "remote")
# cuBLAS is deterministic only with a workspace of a fixed size; the embedded server inherits this.
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

Tensors = dict[str, Tensor]


def train(model: nn.Module, inputs: Tensor, targets: Tensor, device: str) -> Tensors:
    """Losses and final parameters of a few steps. Inputs and initial weights are made on the CPU."""
    model.to(device)
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    tensors = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    return tensors | {"losses": torch.stack(losses).cpu()}


def train_mlp(device: str) -> Tensors:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10))
    return train(model, torch.randn(32, 64), torch.randint(10, (32,)), device)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(dim=1))


def train_transformer(device: str) -> Tensors:
    return train(Classifier(), torch.randn(8, 32, 64), torch.randint(10, (8,)), device)


def train_conv_net(device: str) -> Tensors:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 15 * 15, 10),
    )
    return train(model, torch.randn(8, 3, 32, 32), torch.randint(10, (8,)), device)


TRAININGS: dict[str, Callable[[str], Tensors]] = {
    "mlp": train_mlp,
    "transformer": train_transformer,
    "conv_net": train_conv_net,
}


def run_side(device: str, path: Path) -> None:
    if device == "remote":
        import torch_remote  # noqa: F401  names the backend
    torch.use_deterministic_algorithms(True)
    results = {}
    for name, training in TRAININGS.items():
        torch.manual_seed(0)
        results[name] = training(device)
    torch.save(results, path)


def start_side(device: str, path: Path) -> None:
    command = [sys.executable, str(Path(__file__)), "--device", device, "--out", str(path)]
    subprocess.run(command, env=os.environ | ENVIRONMENT, check=True, timeout=TIMEOUT_S)


def differences(want: Tensors, got: Tensors) -> Iterator[str]:
    for name, tensor in want.items():
        if tensor.shape != got[name].shape or tensor.dtype != got[name].dtype:
            yield f"{name}: {got[name].dtype} {tuple(got[name].shape)}"
        elif tensor.numpy().tobytes() != got[name].numpy().tobytes():
            error = (tensor.double() - got[name].double()).abs().max().item()
            yield f"{name}: other bytes, apart by up to {error:g}"


def compare(sides: tuple[str, str]) -> int:
    """Returns the number of trainings that differ."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{index}.pt" for index in range(2)]
        for side, path in zip(sides, paths, strict=True):
            start_side(side, path)
        want, got = map(torch.load, paths)
    failed = 0
    for name in TRAININGS:
        found = list(differences(want[name], got[name]))
        failed += bool(found)
        print(f"{'FAILED' if found else 'passed'} {name}", *found, sep="\n  ")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Training on remote equals training on CUDA.")
    parser.add_argument("--results", type=Path, help="also measure client time per call")
    parser.add_argument("--against", default="remote", help="cuda checks the test itself")
    parser.add_argument("--device", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device:
        run_side(options.device, options.out)
        return 0
    failed = compare(("cuda", options.against))
    if options.results:
        script = ROOT / "benchmarks" / "python" / "gpu_calls.py"
        subprocess.run([sys.executable, str(script), str(options.results)], check=True)
    print(f"{len(TRAININGS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
