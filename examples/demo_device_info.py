"""What `torch.cuda` says about the device in use."""

import torch

import TorchDevice

print("device in use:", TorchDevice.TorchDevice())
print("torch.cuda.is_available():", torch.cuda.is_available())
print("name:", torch.cuda.get_device_name(0))
properties = torch.cuda.get_device_properties(0)
print("memory:", properties.total_memory // 2**20, "MiB, units:", properties.multi_processor_count)
free, total = torch.cuda.mem_get_info()
print("free:", free // 2**20, "of", total // 2**20, "MiB")
assert 0 < free <= total
