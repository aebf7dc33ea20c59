"""Why a test of transformers fails on `remote` that passes, or is skipped, on the CPU."""

from __future__ import annotations

from reports import Difference

DIFFERENCES = [
    # test_modeling_common.py:486: 5e-3 for "cpu" and "cuda", 1e-7 for a name that it does not know.
    Difference(r"test_eager_matches_sdpa_inference_\d+_fp16", "tolerance by device name"),
    # test_fsdp_mixin.py:111: skipped below two devices; for "cpu" it counts cores.
    Difference(r"test_fsdp2_", "needs two devices"),
]
