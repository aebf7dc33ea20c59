"""Figures of NVML on the server, under the names of `torch.cuda`. Each function waits once.

A server whose device has no NVML figures (a CPU) is a RuntimeError, and so is a figure that NVML
does not tell for the device.
"""

from __future__ import annotations

from . import _C
from ._backend import DeviceLike, existing_index, name, refuse_in_bad_fork


def _figure(device: DeviceLike, figure: str) -> int:
    refuse_in_bad_fork()
    index = existing_index(device)
    value = _C.device_telemetry(index)[0].get(figure)
    if value is None:
        raise RuntimeError(f"NVML does not tell the {figure} of {name()}:{index}")
    return value


def utilization(device: DeviceLike = None) -> int:
    """Percent of the last sample period in which a kernel ran on the device."""
    return _figure(device, "utilization")


def memory_usage(device: DeviceLike = None) -> int:
    """Percent of the last sample period in which the device's memory was read or written."""
    return _figure(device, "memory usage")


def device_memory_used(device: DeviceLike = None) -> int:
    """Bytes of the device's memory that all processes use."""
    return _figure(device, "memory used")


def temperature(device: DeviceLike = None) -> int:
    """Degrees Celsius of the device."""
    return _figure(device, "temperature")


def power_draw(device: DeviceLike = None) -> int:
    """Milliwatts that the device draws."""
    return _figure(device, "power draw")


def clock_rate(device: DeviceLike = None) -> int:
    """MHz of the device's multiprocessors."""
    return _figure(device, "clock rate")


def list_gpu_processes(device: DeviceLike = None) -> str:
    """The processes on the device and the memory that each uses, as a text for people."""
    refuse_in_bad_fork()
    index = existing_index(device)
    processes = _C.device_telemetry(index)[1]
    if processes is None:
        raise RuntimeError(f"NVML does not tell the processes of {name()}:{index}")
    lines = [f"GPU:{index}"]
    if not processes:
        lines.append("no processes are running")
    for pid, size in processes:
        used = "an unknown amount of" if size is None else f"{size / 2**20:>12.3f} MB"
        lines.append(f"process {pid:>10d} uses {used} GPU memory")
    return "\n".join(lines)
