"""Figures of memory, and a budget for a block."""

import torch

import TorchDevice

torch.cuda.reset_peak_memory_stats()
x = torch.ones(2**20, device="cuda")
print("allocated:", torch.cuda.memory_allocated(), "peak:", torch.cuda.max_memory_allocated())
with TorchDevice.memory_budget("8MiB") as budget:
    y = x * 2
print("the block made", budget.allocated, "bytes")
assert budget.allocated == 4 * 2**20
try:
    with TorchDevice.memory_budget("1MiB"):
        x * 2
except torch.OutOfMemoryError as error:
    print(error)
else:
    raise AssertionError("the budget limited nothing")
