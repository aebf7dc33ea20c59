"""What the operating system says about this process and its machine. Linux and macOS."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from pathlib import Path

_IS_LINUX = platform.system() == "Linux"
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _field(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        if line.split(":")[0].strip() == name:
            return line.split(":", 1)[1].strip()
    return ""


def resident_bytes() -> int:
    """Memory of this process now."""
    if _IS_LINUX:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    answer = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True)
    return int(answer.stdout) * 1024


def peak_resident_bytes() -> int:
    """The most memory this process had, since the start or `reset_peak()`."""
    if _IS_LINUX:
        return int(_field("/proc/self/status", "VmHWM").split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def reset_peak() -> bool:
    """The peak starts again from what is used now; False where the system cannot."""
    if not _IS_LINUX:
        return False
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def total_bytes() -> int:
    return _PAGE * os.sysconf("SC_PHYS_PAGES")


def free_bytes() -> int:
    """Memory that a new program could get."""
    if _IS_LINUX:
        return int(_field("/proc/meminfo", "MemAvailable").split()[0]) * 1024
    pages = subprocess.run(["vm_stat"], capture_output=True, text=True).stdout.splitlines()
    free = [line for line in pages if line.startswith(("Pages free", "Pages inactive"))]
    return sum(int(line.split(":")[1].strip(" .")) for line in free) * _PAGE


def cpu_name() -> str:
    if _IS_LINUX:
        return _field("/proc/cpuinfo", "model name") or platform.machine()
    name = subprocess.run(
        ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True
    ).stdout.strip()
    return name or platform.machine()


def core_count() -> int:
    return os.cpu_count() or 1
