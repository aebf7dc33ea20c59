"""`out=`: resized, checked and written as on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE, assert_matches_cpu

# Each writes into `out` from one 3x4 matrix: structured, unstructured and composite operators.
OPERATORS: dict[str, Callable[..., Any]] = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "add_scalar": lambda x, out: torch.add(x, 2.5, out=out),
    "mm": lambda x, out: torch.mm(x, x.t(), out=out),
    "matmul": lambda x, out: torch.matmul(x, x.t(), out=out),
    "abs": lambda x, out: torch.abs(x, out=out),
    "exp": lambda x, out: torch.exp(x, out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "mean": lambda x, out: torch.mean(x, 1, keepdim=True, out=out),
    "cat": lambda x, out: torch.cat([x, x], 1, out=out),
    "stack": lambda x, out: torch.stack([x, x], 1, out=out),
    "softmax": lambda x, out: torch.softmax(x, 0, out=out),
    "clamp": lambda x, out: torch.clamp(x, 0.1, 0.5, out=out),
    "where": lambda x, out: torch.where(x > 0, x, -x, out=out),
    "index_select": lambda x, out: torch.index_select(
        x, 0, torch.tensor([2, 0], device=x.device), out=out
    ),
    "gather": lambda x, out: torch.gather(
        x, 1, torch.zeros(3, 2, dtype=torch.long, device=x.device), out=out
    ),
    "cumsum": lambda x, out: torch.cumsum(x, 1, out=out),
    "tril": lambda x, out: torch.tril(x, out=out),
    "pow": lambda x, out: torch.pow(x.abs(), 1.5, out=out),
    "norm": lambda x, out: torch.linalg.vector_norm(x, dim=1, out=out),
}

FACTORIES: dict[str, Callable[..., Any]] = {
    "arange": lambda out: torch.arange(7, out=out),
    "linspace": lambda out: torch.linspace(0, 1, 5, out=out),
    "eye": lambda out: torch.eye(3, out=out),
    "zeros": lambda out: torch.zeros(3, 4, out=out),
    "full": lambda out: torch.full((2, 3), 7.0, out=out),
    "rand": lambda out: torch.rand(5, out=out),
    "randn": lambda out: torch.randn(5, out=out),
}


def matrix() -> torch.Tensor:
    return torch.randn(3, 4)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_empty_out_is_resized_and_returned(name: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(0, device=x.device)
        assert OPERATORS[name](x, out) is out
        return out

    assert_matches_cpu(run, matrix())


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_resize_and_fill_out(name: str) -> None:
    def run(like: torch.Tensor) -> torch.Tensor:
        out = torch.empty(0, device=like.device)
        assert FACTORIES[name](out) is out
        return out

    assert_matches_cpu(run, matrix())


@pytest.mark.parametrize("name", OPERATORS)
def test_an_out_of_the_right_shape_keeps_its_memory_and_strides(name: str) -> None:
    shape = OPERATORS[name](matrix(), torch.empty(0)).shape

    def run(x: torch.Tensor) -> list[Any]:
        base = torch.zeros([2 * size for size in shape], device=x.device)
        out = base[tuple(slice(None, None, 2) for _ in shape)]
        before = out.stride(), out.data_ptr()
        OPERATORS[name](x, out)
        assert (out.stride(), out.data_ptr()) == before
        return [base, out]

    assert_matches_cpu(run, matrix())


@pytest.mark.parametrize("name", OPERATORS)
def test_an_out_of_the_wrong_shape_warns_and_is_resized(name: str) -> None:
    def run(x: torch.Tensor) -> list[Any]:
        out = torch.ones(5, 5, device=x.device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            OPERATORS[name](x, out)
        return [out, any("was resized" in str(warning.message) for warning in caught)]

    assert_matches_cpu(run, matrix())


@pytest.mark.parametrize("name", OPERATORS)
def test_an_out_of_another_dtype_is_written_or_refused_as_on_the_cpu(name: str) -> None:
    def run(device: str, dtype: torch.dtype) -> str:
        torch.manual_seed(1)
        out = torch.empty(0, dtype=dtype, device=device)
        try:
            OPERATORS[name](matrix().to(device), out)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return str((out.tolist(), out.dtype))

    for dtype in (torch.int64, torch.float64, torch.complex64):
        assert run(DEVICE, dtype) == run("cpu", dtype)


def test_a_computation_is_in_the_inputs_dtype_and_not_in_that_of_out() -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, x, alpha=True, out=torch.ones(2, device=x.device))

    assert_matches_cpu(add, torch.tensor([True, False]))


def test_an_out_that_is_also_an_input_works() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        torch.add(x, 1, out=x)
        torch.mul(x, x, out=x)
        return x

    assert_matches_cpu(run, matrix())


# Kernels distinguish two equal arguments from one tensor given twice, for resizes and overlaps.
@pytest.mark.parametrize("is_one_tensor", [True, False])
@pytest.mark.parametrize("shape", [(3,), (0,), (1, 3)])
@pytest.mark.parametrize(
    "name", ["add", "index_select", "masked_select", "cumsum", "gather", "cat"]
)
def test_an_out_that_is_an_input_is_told_from_one_with_the_same_view(
    name: str, shape: tuple[int, ...], is_one_tensor: bool
) -> None:
    calls: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
        "add": lambda x, out: torch.add(x, torch.ones(2, 3, device=x.device), out=out),
        "index_select": lambda x, out: torch.index_select(
            x, 0, torch.zeros(2, dtype=torch.long, device=x.device), out=out
        ),
        "masked_select": lambda x, out: torch.masked_select(x, x > 0, out=out),
        "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
        "gather": lambda x, out: torch.gather(
            x, 0, torch.zeros(x.shape, dtype=torch.long, device=x.device), out=out
        ),
        "cat": lambda x, out: torch.cat([x, x], 0, out=out),
    }

    def run(device: str) -> str:
        x = torch.arange(1.0, 1.0 + torch.Size(shape).numel(), device=device).reshape(shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                out = calls[name](x, x if is_one_tensor else x[:])
                return str([x.tolist(), out.tolist()])
            except Exception as error:
                return f"{type(error).__name__}: {error}".split("  [")[0]

    run(DEVICE)  # what only a kernel refuses is refused at the call from the second time on
    assert run(DEVICE) == run("cpu")


OVERLAPPING: dict[str, Callable[[torch.Tensor], Any]] = {
    "cross": lambda x: torch.cross(x, x + 1, out=x),
    "index_put_": lambda x: x.index_put_((torch.tensor([0, 2], device=x.device),), x[:2]),
    "index_put_ itself": lambda x: x.index_put_((torch.arange(3, device=x.device),), x),
    "masked_fill_": lambda x: x.view(torch.bool)[1:].masked_fill_(x.view(torch.bool)[:-1], True),
    "add": lambda x: torch.add(x[:2], 1, out=x[1:]),
    "mul_": lambda x: x[1:].mul_(x[:2]),
    "addcmul_": lambda x: x[1:].addcmul_(x[:2], x[1:]),
    "clamp_": lambda x: x[1:].clamp_(x[:2]),
    "cumsum_": lambda x: x[:1].expand(3, 3).cumsum_(0),
    "addmm_": lambda x: x[:1].expand(3, 3).addmm_(x + 1, x + 1),
    "bernoulli_": lambda x: x[:1].expand(3, 3).bernoulli_(x + 0),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_memory_that_is_read_and_written_is_refused_at_the_call(name: str) -> None:
    def run(device: str) -> str:
        with pytest.raises(RuntimeError) as raised:
            OVERLAPPING[name](torch.ones(3, 3, device=device))
        return str(raised.value)

    assert run(DEVICE) == run("cpu")
    assert run(DEVICE) == run("cpu")


@pytest.mark.parametrize("name", ["masked_fill_", "add", "mul_"])
def test_the_same_call_on_other_places_of_a_storage_is_judged_anew(name: str) -> None:
    calls: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
        "masked_fill_": lambda to, x: to.masked_fill_(x, True),
        "add": lambda to, x: torch.add(x, x, out=to),
        "mul_": lambda to, x: to.mul_(x),
    }
    x = torch.ones(9, dtype=torch.bool, device=DEVICE)
    calls[name](x[3:6], x[:3])
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        calls[name](x[2:5], x[:3])
    calls[name](x[6:], x[:3])
    assert x.tolist() == [True] * 9


def test_what_is_read_and_written_whole_is_waited_for_once_at_most(
    sync_count: Callable[[Callable[[], object]], int],
) -> None:
    x, y = torch.randn(3, 3, device=DEVICE), torch.randn(3, 3, device=DEVICE)

    def elementwise() -> None:
        torch.add(x, y, out=x)
        torch.sub(y, x, out=x)
        x.mul_(x)
        x.add_(x.detach())

    def others() -> None:
        torch.maximum(x, y, out=x)
        torch.softmax(x, 0, out=x)

    assert sync_count(elementwise) == 0
    others()
    assert sync_count(others) == 0


def test_several_outs_are_all_written() -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        values = torch.empty(0, device=x.device)
        indices = torch.empty(0, dtype=torch.long, device=x.device)
        torch.max(x, 1, out=(values, indices))
        first = [values.clone(), indices.clone()]
        torch.sort(x, 0, out=(values.resize_(0), indices.resize_(0)))
        return [*first, values, indices]

    assert_matches_cpu(run, matrix())


def test_a_kernel_lays_out_an_out_that_it_resizes() -> None:
    def run(x: torch.Tensor) -> list[object]:
        square = x @ x.t()
        values, vectors = torch.empty(0, device=x.device), torch.ones(7, device=x.device)
        view = vectors[2:]
        torch.linalg.eigh(square, out=(values, view))
        found = torch.empty(0, dtype=torch.long, device=x.device)
        torch.nonzero(x > 0.5, out=found)
        return [vectors, view, view.stride(), view.storage_offset(), found, found.stride()]

    assert_matches_cpu(run, matrix())


def test_a_list_of_outs_is_written() -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        outs = [torch.empty(0, device=x.device) for _ in range(3)]
        torch.unbind_copy(x, out=outs)
        return outs

    assert_matches_cpu(run, matrix())


def test_an_out_resized_by_the_server_can_be_used_and_resized_again() -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        out = torch.empty(0, device=x.device)
        torch.masked_select(x, x > 0, out=out)
        doubled = out * 2
        torch.masked_select(x, x > 0.9, out=out)
        out.resize_(30).fill_(1)
        return [doubled, out]

    assert_matches_cpu(run, matrix())


def test_what_the_kernel_refuses_of_an_out_is_raised_at_the_call() -> None:
    for device in ("cpu", DEVICE):
        x = matrix().to(device)
        with pytest.raises(RuntimeError, match="self and result must have the same scalar type"):
            torch.masked_select(x, x > 0, out=torch.empty(0, dtype=torch.long, device=device))


def test_an_out_that_requires_grad_is_refused_as_on_the_cpu() -> None:
    for device in ("cpu", DEVICE):
        with pytest.raises(
            RuntimeError, match=r"out=\.\.\. arguments don't support automatic diff"
        ):
            torch.add(
                torch.ones(2, device=device, requires_grad=True),
                1,
                out=torch.empty(2, device=device),
            )


def test_an_out_on_another_device_is_refused() -> None:
    x = torch.ones(2, device="remote")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.add(x, x, out=torch.empty(2))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.add(torch.ones(2), torch.ones(2), out=x)


@pytest.mark.parametrize("size", [2, 0, 5])
def test_an_out_that_is_a_list_is_filled_or_refused_as_on_the_cpu(size: int) -> None:
    def fill(device: str) -> Any:
        value = torch.arange(4.0, device=device)
        outs = [torch.empty(size, device=device) for _ in range(4)]
        torch.split_with_sizes_copy(value, [2, 2], out=outs[:2])  # resizes
        try:
            torch.split_copy(value, 2, out=outs[2:])  # does not
        except RuntimeError as error:
            return [out.tolist() for out in outs[:2]], str(error)
        return [out.tolist() for out in outs]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert fill(DEVICE) == fill("cpu")


def test_an_out_list_of_another_length_is_refused() -> None:
    with pytest.raises(RuntimeError, match="expected an out= argument of size 2, got size 1"):
        torch.split_copy(torch.arange(4.0, device=DEVICE), 2, out=[torch.empty(2, device=DEVICE)])


def test_an_out_in_a_slice_of_a_storage_is_written_and_cannot_grow() -> None:
    base = torch.zeros(8, dtype=torch.int64, device=DEVICE)
    out = torch.empty(0, dtype=torch.int64, device=DEVICE).set_(base.untyped_storage()[16:48])
    found = torch.tensor([0, 1, 1, 1, 1], device=DEVICE)

    torch.nonzero(found, out=out.view(4, 1))

    assert base.tolist() == [0, 0, 1, 2, 3, 4, 0, 0]
    with pytest.raises(RuntimeError, match="in a slice of a storage cannot grow"):
        torch.nonzero(torch.ones(9, device=DEVICE), out=out)
    assert (out.shape, base.shape) == ((4,), (8,))
