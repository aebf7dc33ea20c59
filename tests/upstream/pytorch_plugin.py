"""For pytest in PyTorch's tests: makes the device known before they look, and takes a part of them.

UPSTREAM_DEVICE is the device; UPSTREAM_SHARD, "2/8", takes the second of eight parts. A part has
the same tests on every device, since it goes by their names without the device.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import Any

# PyTorch's tests compute their list of devices when they are imported.
if os.environ.get("UPSTREAM_DEVICE") == "remote":
    import torch_remote  # noqa: F401

# Tests that ask for more are skipped on both devices, and so are those that take as much unasked.
MOST_BYTES = 2 << 30
TOO_LARGE = ["test_gather_large", "test_serialization_2gb_file", "test_serialization_4gb_file"]


def pytest_configure() -> None:
    from torch.testing._internal import common_device_type

    common_device_type._has_sufficient_memory = lambda device, size: size <= MOST_BYTES
    chosen = common_device_type.filter_desired_device_types

    def also_private(bases: Any, except_for: Any = None, only_for: Any = None) -> Any:
        """What PyTorch tests on the CPU and on CUDA (test_transformers.py): on `remote` too."""
        if only_for and not isinstance(only_for, str) and {"cpu", "cuda"} <= set(only_for):
            only_for = [*only_for, "privateuse1"]
        return chosen(bases, except_for, only_for)

    common_device_type.filter_desired_device_types = also_private


def common_name(owner: str, test: str) -> str:
    """TestSortCPU.test_isin_cpu_float32 and TestSortPRIVATEUSE1.test_isin_remote_float32."""
    generic = re.fullmatch(r"(.*?)(CPU|PRIVATEUSE1|REMOTE)", owner)
    if generic is None:
        return f"{owner}.{test}"
    return generic[1] + "." + re.sub(r"^(.*)_(cpu|remote)(?=_|$)", r"\1", test)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    part, _, parts = os.environ.get("UPSTREAM_SHARD", "1/1").partition("/")

    def is_chosen(item: Any) -> bool:
        name = common_name(item.cls.__name__ if item.cls else "", item.name)
        if any(each in name for each in TOO_LARGE):
            return False
        return zlib.crc32(name.encode()) % int(parts) == int(part) - 1

    items[:] = [item for item in items if is_chosen(item)]
