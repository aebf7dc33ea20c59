"""Devices: the default one, those of cloud GPUs, and one on a machine of its own.

Runs without an account: devices of cloud GPUs are made, but not used, so none is launched.
"""

from __future__ import annotations

import torch

import torch_remote


def show_default_device() -> None:
    print(f"Remote available: {torch.remote.is_available()}")
    print(f"Device count: {torch.remote.device_count()}")
    x = torch.randn(3, 3, device="remote")
    y = x.cpu().to("remote", dtype=torch.float64, copy=True)
    print(f"x is on {x.device}, y is on {y.device} as {y.dtype}")
    print(f"x and y agree: {torch.equal(x.double(), y)}")


def show_cloud_devices() -> None:
    print("\nDevices of cloud GPUs, each launched when it is first used:")
    for gpu in torch_remote.GPUType:
        device = torch_remote.create_modal_device(gpu)
        print(f"  {device}  {device.device_name:<16} {device.device_id}")
    model = torch.nn.Linear(4096, 4096, device="meta")
    print(f"\nFor this model: {torch_remote.choose_gpu(model).why}")
    try:
        torch_remote.create_modal_device("A1000")
    except ValueError as error:
        print(f"A wrong name: {error}")


def show_two_machines() -> None:
    device = torch_remote.create_device("local")  # a server of its own on this machine
    x = torch.arange(4.0, device=device)
    y = x.to("remote:0")  # from one machine to another
    print(
        f"\nx is on {x.device}, y is on {y.device}, their sums: {x.sum().item()}, {y.sum().item()}"
    )
    try:
        x + y
    except RuntimeError as error:
        print(f"Two devices in one operator: {error}")


def main() -> None:
    show_default_device()
    show_cloud_devices()
    show_two_machines()


if __name__ == "__main__":
    main()
