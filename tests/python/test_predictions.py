"""What the client predicts of a result, and what it leaves to the server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE, assert_matches_cpu, assert_same

import torch_remote

SyncCount = Callable[[Callable[[], object]], int]


def mispredicted() -> int:
    torch_remote.synchronize()
    return int(torch_remote.stats().mispredicted)


def test_indexing_without_a_mask_does_not_wait(sync_count: SyncCount) -> None:
    x = torch.arange(12.0).reshape(3, 4).to("remote")
    rows = torch.tensor([2, 0], device="remote")
    assert sync_count(lambda: x[rows]) == 0
    assert torch.equal(x[:, rows].cpu(), x.cpu()[:, [2, 0]])


def test_indexing_with_a_mask_waits_every_time(sync_count: SyncCount) -> None:
    x = torch.arange(4.0, device="remote")
    assert sync_count(lambda: x[x > 1]) == 1
    assert x[x > 0].shape == (3,)


def test_a_training_step_with_batch_norm_does_not_wait(sync_count: SyncCount) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.GroupNorm(2, 4)
    ).to("remote")
    x = torch.randn(2, 3, 5, 5).to("remote")
    assert sync_count(lambda: model(x).sum().backward()) == 0


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_keeps_the_statistics_the_server_keeps(training: bool) -> None:
    arguments = [torch.randn(2, 3, 4), torch.ones(3), torch.zeros(3), torch.zeros(3), torch.ones(3)]
    here = torch.native_batch_norm(*arguments, training, 0.1, 1e-5)
    there = torch.native_batch_norm(*(x.to("remote") for x in arguments), training, 0.1, 1e-5)
    assert [x.shape for x in there] == [x.shape for x in here]


@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16])
def test_layer_norm_in_half_precision_agrees_on_the_statistics(weight: torch.dtype) -> None:
    x, w = torch.randn(2, 8, dtype=torch.bfloat16), torch.ones(8, dtype=weight)
    here = torch.native_layer_norm(x, [8], w, w, 1e-5)
    there = torch.native_layer_norm(x.to("remote"), [8], w.to("remote"), w.to("remote"), 1e-5)
    assert [x.dtype for x in there] == [x.dtype for x in here]
    assert torch.equal(there[0].cpu(), here[0])


def test_what_meta_has_wrong_is_asked_once(sync_count: SyncCount) -> None:
    x = torch.randn(4, 6).to("remote")
    before = mispredicted()
    first = torch.fft.rfft2(x)
    assert sync_count(lambda: torch.fft.rfft2(x)) == 0
    assert first.stride() == torch.fft.rfft2(x.cpu()).stride()
    assert mispredicted() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("shapes", [((3, 3), (3, 3)), ((2, 3, 3), (3, 3)), ((3, 3), (2, 3, 3))])
def test_a_solution_lies_in_memory_as_on_the_cpu(
    dtype: torch.dtype, left: bool, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    before = mispredicted()
    arguments = [torch.randn(shape, dtype=dtype) for shape in shapes]
    here = torch.linalg.solve_ex(*arguments, left=left).result
    there = torch.linalg.solve_ex(*(x.to(DEVICE) for x in arguments), left=left).result
    assert (there.stride(), there.is_conj()) == (here.stride(), here.is_conj())
    assert_same(there, here)
    assert mispredicted() == before


def test_an_outer_product_has_the_layout_of_the_matrix_that_it_is_added_to() -> None:
    before = mispredicted()
    matrix, x, y = torch.randn(4, 3).t(), torch.randn(3), torch.randn(4)
    here = torch.addr(matrix, x, y, beta=0)
    there = torch.addr(matrix.to(DEVICE), x.to(DEVICE), y.to(DEVICE), beta=0)
    assert there.stride() == here.stride()
    assert_same(there, here)
    assert mispredicted() == before


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [None, (), (0,)])
def test_nansum_reduces_as_on_the_cpu(dim: tuple[int, ...] | None, keepdim: bool) -> None:
    for x in (torch.tensor([[1.0, float("nan")], [2, 3]]), torch.arange(6).view(2, 3)):
        assert_matches_cpu(lambda x: torch.nansum(x, dim=dim, keepdim=keepdim), x)


def test_silu_has_the_same_gradient_bit_for_bit() -> None:
    x = torch.randn(64, requires_grad=True)
    y = x.detach().to("remote").requires_grad_()
    torch.nn.functional.silu(x).sum().backward()
    torch.nn.functional.silu(y).sum().backward()
    assert x.grad is not None and y.grad is not None
    assert torch.equal(y.grad.cpu(), x.grad)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: x.to_mkldnn(),
    ],
    ids=["quantized", "mkldnn"],
)
def test_other_layouts_are_refused_at_the_call(make: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(NotImplementedError, match=r"\.cpu\(\)"):
        make(torch.ones(2, 2, device="remote"))


def test_a_wrong_factory_raises_what_it_raises_locally() -> None:
    with pytest.raises(RuntimeError, match="step must be nonzero"):
        torch.arange(0, 3, 0, device="remote")


def test_a_list_operator_may_begin_with_a_number() -> None:
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor(3.0)]
    actual = torch._foreach_pow(0.9, [tensor.to(DEVICE) for tensor in tensors])
    assert_same(actual, torch._foreach_pow(0.9, tensors))


def test_deterministic_mode_fills_new_memory() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device=DEVICE).isnan().all().item()
        assert torch.empty(3, dtype=torch.int32, device=DEVICE).eq(2**31 - 1).all().item()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bfloat16])
def test_isin_of_a_number_or_of_nothing(dtype: torch.dtype, sync_count: SyncCount) -> None:
    before = mispredicted()
    some = torch.tensor([1, 2, 3, 2], dtype=dtype)
    for other in (some, some[:0], some[1], some.repeat(50), some.reshape(2, 2)):
        assert_matches_cpu(lambda x: torch.isin(2, x), other)
        assert_matches_cpu(lambda x: torch.isin(2, x, invert=True), other)
        assert_matches_cpu(lambda x: torch.isin(x, 2), other)
        assert_matches_cpu(lambda x, y: torch.isin(x, y), other, some)
        assert_matches_cpu(lambda x, y: torch.isin(x, y), some, other)
        assert_matches_cpu(lambda x: torch.isin(2, x, out=x.new_empty(0).bool()), other)
    remote = some.to(DEVICE)
    assert sync_count(lambda: torch.isin(2, remote)) == 0
    assert mispredicted() == before


def test_isin_of_a_number_that_it_does_not_take() -> None:
    with pytest.raises(RuntimeError, match="Unsupported input type encountered for isin"):
        torch.isin(True, torch.ones(2, device=DEVICE))
    with pytest.raises(RuntimeError, match="Unsupported input type encountered for isin"):
        torch.isin(1, torch.ones(2, device=DEVICE, dtype=torch.complex64))
