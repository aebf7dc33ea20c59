"""The shortest use of a remote device: make tensors there, use autograd, read values."""

from __future__ import annotations

import sys

import torch


def main(device: str = "remote") -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 3, device=device, requires_grad=True)
    loss = (x @ x).relu().sum()
    loss.backward()
    print(loss.item())
    print(x.grad.cpu())


if __name__ == "__main__":
    if sys.argv[1:] != ["--device", "cpu"]:
        import torch_remote  # noqa: F401  makes the device known
    main(*sys.argv[2:])
