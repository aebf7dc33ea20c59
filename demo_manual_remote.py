"""Where the calls of torch_modal run, with remote execution enabled and disabled.

With TORCH_REMOTE=ssh://host or tcp://host:port in the environment they run there, else on the
embedded server. The values are the same.
"""

from __future__ import annotations

import time

import torch

import torch_modal
import torch_remote


def compute(size: int = 256) -> float:
    """Some matrix products, convolutions and reductions; returns a checksum."""
    torch.manual_seed(0)
    x, y = torch.randn(size, size).modal(), torch.randn(size, size).modal()
    image = torch.randn(4, 3, 32, 32).modal()
    filters = torch.randn(8, 3, 3, 3).modal()
    parts = (x @ y, torch.nn.functional.conv2d(image, filters).relu(), torch.softmax(x, dim=1))
    return sum(part.mean().item() for part in parts)


def run(title: str) -> float:
    started = time.perf_counter()
    with torch_remote.count() as counted:
        checksum = compute()
    seconds = time.perf_counter() - started
    machine = torch_remote.machines()[0].status()
    print(f"{title}: checksum {checksum:.6f} in {seconds:.3f} s")
    print(f"  {counted.calls} calls to process {machine['pid']} on {machine['url']}")
    return checksum


def main() -> None:
    print(f"Modal available: {torch_modal.modal.is_available()}")
    print(f"Device count: {torch_modal.modal.device_count()}")
    print(f"Device name: {torch_modal.modal.get_device_name()}")
    print(f"Remote execution enabled: {torch_modal.is_remote_execution_enabled()}")
    enabled = run("enabled")
    torch_modal.disable_remote_execution()
    disabled = run("disabled")
    torch_modal.enable_remote_execution()
    print(f"the same values: {enabled == disabled}")
    for operator in ("mm", "view", "convolution"):
        print(torch_remote.explain(operator)[0])


if __name__ == "__main__":
    main()
