"""What there is on this machine."""

from .._hardware import Hardware, is_remote_configured, order, probe
from .._host import core_count, cpu_name, free_bytes, resident_bytes, total_bytes

__all__ = [
    "Hardware",
    "core_count",
    "cpu_name",
    "free_bytes",
    "is_remote_configured",
    "order",
    "probe",
    "resident_bytes",
    "total_bytes",
]
