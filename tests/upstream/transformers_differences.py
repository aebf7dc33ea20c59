"""Why a test of transformers fails on `remote` that passes, or is skipped, on the CPU."""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    tests: str  # a regular expression for "family Class.test"
    reason: str


DIFFERENCES = [
    # test_modeling_common.py:486: 5e-3 for "cpu" and "cuda", 1e-7 for a name that it does not know.
    Difference(r"test_eager_matches_sdpa_inference_\d+_fp16", "tolerance by device name"),
    Difference(r"test_flex_attention_with_grads", "inductor"),
    Difference(r"test_torch_compile_for_training", "inductor"),
]
