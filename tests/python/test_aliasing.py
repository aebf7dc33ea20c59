"""Aliases, versions and `out=`: cases that random programs found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, assert_matches_cpu, assert_same

import torch_remote

Mistake = Callable[[torch.Tensor], object]


def matrix(device: str = DEVICE) -> torch.Tensor:
    return torch.arange(6.0, device=device).reshape(2, 3)


REFUSED: dict[str, Mistake] = {
    "cat_into_its_input": lambda x: torch.cat([x, x], out=x),
    "stack_into_its_input": lambda x: torch.stack([x, x], out=x),
    "clamp_into_its_transpose": lambda x: torch.clamp(x, -1, 1, out=x.T),
    "select_into_its_input": lambda x: torch.masked_select(x, x > 1, out=x),
    "nonzero_of_another_dtype": lambda x: torch.nonzero(x, out=torch.empty(0, device=x.device)),
    "index_select_of_another_dtype": lambda x: torch.index_select(
        x, 0, torch.zeros(1, dtype=torch.int64, device=x.device), out=x.int()
    ),
    "copy_of_another_shape": lambda x: x.copy_(torch.ones(4, 2, 3, device=x.device)),
    "copy_that_overlaps": lambda x: x[1:].copy_(x.view(-1)[2:5]),
    "copy_into_an_expanded": lambda x: x[:1].expand(2, 3).copy_(x.clone()),
    "arange_of_a_complex_step": lambda x: torch.arange(0, 1, 1j, device=x.device),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_with_aliases_raises_at_the_call_what_the_cpu_raises(mistake: str) -> None:
    with pytest.raises(Exception) as expected:
        REFUSED[mistake](matrix("cpu"))
    x = matrix()
    with pytest.raises(expected.type) as raised:
        REFUSED[mistake](x)
    assert str(raised.value) == str(expected.value)
    assert x.view(-1)[:6].tolist() == [0, 1, 2, 3, 4, 5]


def test_what_a_refused_call_was_to_write_can_still_be_read() -> None:
    out = torch.zeros(1, 3, dtype=torch.int32, device=DEVICE)
    index = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    with pytest.raises(RuntimeError, match="same scalar type"):
        torch.index_select(matrix(), 0, index, out=out)
    assert out.tolist() == [[0, 0, 0]]


def test_a_foreach_operator_bumps_the_version_of_each_tensor_it_writes() -> None:
    x, y = matrix(), matrix()
    torch._foreach_add_([x, y, x], 1)
    torch._foreach_copy_([x], [y])
    torch._foreach_add([x, y], 1)
    assert (x._version, y._version) == (3, 1)


def test_a_foreach_write_to_what_backward_needs_is_an_error() -> None:
    x = matrix().requires_grad_()
    y = x.exp()
    torch._foreach_zero_([y.detach()])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_result_larger_than_any_server_raises_and_the_session_lives() -> None:
    wide = torch.ones(1, device="remote").expand(2**24, 2**24)
    with pytest.raises(torch.OutOfMemoryError):
        wide + 1
    assert matrix().sum().item() == 15


def test_resized_memory_has_a_known_value_in_deterministic_mode() -> None:
    def resize(x: torch.Tensor) -> torch.Tensor:
        torch.use_deterministic_algorithms(True)
        try:
            return x.resize_(3, 4)
        finally:
            torch.use_deterministic_algorithms(False)

    assert_matches_cpu(resize, matrix("cpu"))


def test_an_empty_complex_tensor_keeps_its_strides_under_a_reversed_subtraction() -> None:
    z = torch.zeros(0, 3, 1, dtype=torch.complex64).transpose(0, 1)
    assert (2 - z.to(DEVICE)).stride() == (2 - z).stride()


def test_a_foreach_operator_with_a_complex_number_gives_complex_tensors() -> None:
    assert_matches_cpu(lambda x: torch._foreach_add([x, x], 1 + 2j), matrix("cpu"))


def test_a_range_keeps_the_shape_of_an_out_of_as_many_elements() -> None:
    assert_matches_cpu(lambda x: torch.arange(6, out=x), matrix("cpu"))
    assert_matches_cpu(lambda x: torch.linspace(0, 1, 6, out=x), matrix("cpu"))


def test_programs_of_aliases_mispredict_nothing() -> None:
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    before = torch_remote.stats().mispredicted
    assert_same(x.to("remote").roll(1, -1), x.roll(1, -1))
    assert torch_remote.stats().mispredicted == before
