"""What transformers' tests need to know of the device: `TRANSFORMERS_TEST_DEVICE_SPEC`."""

from __future__ import annotations

import torch

DEVICE_NAME = "remote"
MANUAL_SEED_FN = torch.manual_seed
EMPTY_CACHE_FN = torch.remote.empty_cache
DEVICE_COUNT_FN = torch.remote.device_count
