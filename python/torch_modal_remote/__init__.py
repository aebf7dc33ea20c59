"""Internal to torch_modal: what runs in Modal's containers. Programs import torch_modal instead."""

__version__ = "0.1.0"
