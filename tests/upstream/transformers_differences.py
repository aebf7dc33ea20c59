"""Why a test of transformers fails on `remote` that passes, or is skipped, on the CPU."""

from __future__ import annotations

from reports import Difference

# inductor makes kernels for the client's machine, and is refused for remote tensors.
INDUCTOR = "inductor"

DIFFERENCES = [
    # test_modeling_common.py:486: 5e-3 for "cpu" and "cuda", 1e-7 for a name that it does not know.
    Difference(r"test_eager_matches_sdpa_inference_\d+_fp16", "tolerance by device name"),
    Difference(r"test_flex_attention_with_grads", INDUCTOR),
    Difference(r"test_generate_compil(ation_all_outputs|e_model_forward_fullgraph)", INDUCTOR),
    Difference(r"test_static_cache_no_recompile_with_smaller_length", INDUCTOR),
    # test_fsdp_mixin.py:111: skipped below two devices; for "cpu" it counts cores.
    Difference(r"test_fsdp2_", "needs two devices"),
]
