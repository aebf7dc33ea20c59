"""`torch.cuda.comm` where the accelerator has one device: torch has its functions for CUDA only.

On remote devices torch_remote has them, for several devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_remote_patches import Patches

_Tensors = Sequence[torch.Tensor]


def _functions(kind: str) -> dict[str, Any]:
    def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(kind) for _ in devices)

    def broadcast_coalesced(
        tensors: _Tensors, devices: Sequence[int], buffer_size: int
    ) -> list[list[torch.Tensor]]:
        return [[tensor.to(kind) for tensor in tensors] for _ in devices]

    def scatter(
        tensor: torch.Tensor,
        devices: Sequence[int],
        chunk_sizes: Any,
        dim: int,
        streams: Any = None,
    ) -> tuple[torch.Tensor, ...]:
        chunks = tensor.split(chunk_sizes, dim) if chunk_sizes else tensor.chunk(len(devices), dim)
        return tuple(chunk.to(kind) for chunk in chunks)

    def gather(tensors: _Tensors, dim: int, destination: int | None) -> torch.Tensor:
        place = "cpu" if destination == -1 else kind
        return torch.cat([tensor.to(place) for tensor in tensors], dim)

    def broadcast_out(tensor: torch.Tensor, out: _Tensors) -> tuple[torch.Tensor, ...]:
        return tuple(target.copy_(tensor) for target in out)

    def scatter_out(
        tensor: torch.Tensor, out: _Tensors, dim: int, streams: Any = None
    ) -> tuple[torch.Tensor, ...]:
        chunks = tensor.split([target.size(dim) for target in out], dim)
        return tuple(target.copy_(chunk) for target, chunk in zip(out, chunks, strict=True))

    def gather_out(tensors: _Tensors, out: torch.Tensor, dim: int) -> torch.Tensor:
        return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))

    made = (broadcast, broadcast_coalesced, scatter, gather, broadcast_out, scatter_out, gather_out)
    return {f"_{function.__name__}": function for function in made}


def install(changes: Patches, kind: str) -> None:
    if kind not in ("cpu", "mps"):
        return
    for name, function in _functions(kind).items():
        changes.patch(torch._C, name, function)
