"""PyTorch's compositions that read memory meet a sentence, not the address of a remote tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

aten = torch.ops.aten


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="remote")


# tests/fuzz/composites.py has found them.
CALLS: dict[str, Callable[[], object]] = {
    "fbgemm_pack_gemm_matrix_fp16": lambda: aten.fbgemm_pack_gemm_matrix_fp16(ones(4, 4)),
    "fbgemm_pack_quantized_matrix": lambda: aten.fbgemm_pack_quantized_matrix(
        ones(4, 4, dtype=torch.int8)
    ),
    "fbgemm_linear_quantize_weight": lambda: aten.fbgemm_linear_quantize_weight(ones(4, 4)),
    "_saturate_weight_to_fp16": lambda: aten._saturate_weight_to_fp16(ones(4, 4)),
    "choose_qparams_optimized": lambda: aten.choose_qparams_optimized(ones(4), 4, 4, 0.16, 8),
    "_sobol_engine_initialize_state_": lambda: aten._sobol_engine_initialize_state_(
        ones(4, 30, dtype=torch.int64), 4
    ),
    "_sobol_engine_draw": lambda: aten._sobol_engine_draw(
        ones(4, dtype=torch.int64), 2, ones(4, 30, dtype=torch.int64), 4, 0, torch.float32
    ),
    "_reshape_from_tensor": lambda: aten._reshape_from_tensor(
        ones(4, 4), ones(1, dtype=torch.int64)
    ),
    "_nnpack_spatial_convolution": lambda: aten._nnpack_spatial_convolution(
        ones(1, 3, 4, 4), ones(2, 3, 3, 3), None, [1, 1]
    ),
    "_rowwise_prune": lambda: aten._rowwise_prune(
        ones(4, 4), ones(4, dtype=torch.bool), torch.int32
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_composition_that_reads_memory_is_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{name}: .* on the server; call it with"):
        CALLS[name]()
    assert ones(2).sum().item() == 2


def test_on_the_cpu_they_are_pytorchs_own() -> None:
    state = torch.zeros(2, 30, dtype=torch.int64)
    aten._sobol_engine_initialize_state_(state, 2)
    assert state.any()


def test_a_cell_whose_weights_have_no_whole_number_of_gates_is_refused() -> None:
    square = ones(4, 4)
    with pytest.raises(RuntimeError, match="does not have 3 gates"):
        torch.gru_cell(square, square, square, square)
    wide = ones(4, 2)
    with pytest.raises(RuntimeError, match="does not have 4 gates"):
        torch.lstm_cell(wide, [wide, wide], ones(2, 2), ones(2, 2))
