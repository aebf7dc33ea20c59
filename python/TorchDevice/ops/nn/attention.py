"""Attention of `torch.nn`."""

from torch.nn import MultiheadAttention
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["MultiheadAttention", "scaled_dot_product_attention"]
