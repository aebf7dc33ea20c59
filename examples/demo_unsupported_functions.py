"""What only CUDA has is refused, with what to use instead."""

import torch

import TorchDevice

refused = 0
for name in ("CUDAPluggableAllocator", "current_blas_handle", "MemPool", "utilization"):
    try:
        getattr(torch.cuda, name)()
    except NotImplementedError as error:
        refused += 1
        print(error)
torch.cuda.set_per_process_memory_fraction(0.5)  # a warning: it limits nothing here
if TorchDevice.TorchDevice().device.type != "cuda":
    assert refused == 4
