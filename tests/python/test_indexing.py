"""PyTorch's checks of indices, and indexing into empty tensors."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, assert_matches_cpu


@pytest.mark.parametrize("name", ["index_add_", "index_reduce_"])
def test_indexing_into_a_dimension_of_size_zero_does_nothing(name: str) -> None:
    value = torch.empty(0, 1, 2, device=DEVICE)
    index = torch.empty(0, dtype=torch.int64, device=DEVICE)
    reduction = ["prod"] if name == "index_reduce_" else []

    result = getattr(value, name)(0, index, torch.empty(0, 1, 2, device=DEVICE), *reduction)

    assert result is value
    assert result.cpu().shape == (0, 1, 2)


def test_a_byte_mask_warns_as_on_the_cpu() -> None:
    value = torch.arange(3.0, device=DEVICE)
    mask = torch.tensor([1, 0, 1], dtype=torch.uint8, device=DEVICE)
    with pytest.warns(UserWarning, match=r"indexing with dtype torch.uint8 is now deprecated"):
        assert value[mask].tolist() == [0.0, 2.0]


def test_remote_indices_of_a_cpu_tensor_are_refused_in_pytorchs_words() -> None:
    index = torch.tensor([0], device=DEVICE)
    with pytest.raises(RuntimeError, match=r"indices should be either on cpu or .* tensor \(cpu\)"):
        torch.arange(3.0)[index]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16])
def test_a_resized_tensor_is_filled_where_pytorch_fills_it(dtype: torch.dtype) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        grown = torch.ones(2, dtype=dtype, device=DEVICE).resize_(4).cpu()
        wanted = torch.ones(2, dtype=dtype).resize_(4)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(grown, wanted) or torch.allclose(grown, wanted, equal_nan=True)


def test_a_cpu_index_of_zero_dimensions_is_taken_as_cuda_takes_it() -> None:
    one, flag = torch.tensor(1), torch.tensor(True)
    x = torch.arange(12.0).reshape(3, 4)

    def read(x: torch.Tensor) -> list[torch.Tensor]:
        rows = torch.tensor([0, 2], device=x.device)
        taken = [x[one], x[one, one], x[:, one], x[rows, one], x[flag], x[one, ..., None]]
        index = torch.ops.aten.index
        return [*taken, index(x, [one]), index(x, [None, one.int()]), index(x, [rows, one])]

    def write(x: torch.Tensor) -> list[torch.Tensor]:
        rows = torch.tensor([0, 2], device=x.device)
        written = [x.clone() for _ in range(5)]
        written[0][one] = 5.0
        written[1][one, rows] = torch.tensor([7.0, 8.0], device=x.device)
        written[2][rows, one] = torch.tensor(9.0)
        written[3].index_put_((one,), torch.tensor(3.0))
        written[4].index_put_((rows, one), torch.tensor(1.0, device=x.device), accumulate=True)
        return written

    assert_matches_cpu(read, x)
    assert_matches_cpu(write, x)
