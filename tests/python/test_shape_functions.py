"""Our shape functions predict the server's sizes, strides and dtype for operands of any layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from helpers import DEVICE, assert_same
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import torch_remote

aten = torch.ops.aten
SHAPE = (2, 3, 4, 5)


def laid_out_again(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """The same values with this order of dimensions in memory, outermost first."""
    back = [order.index(dim) for dim in range(x.dim())]
    return x.permute(order).contiguous().permute(back)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(SHAPE),
    "reversed": lambda: laid_out_again(torch.randn(SHAPE), (3, 2, 1, 0)),
    "channels_last": lambda: torch.randn(SHAPE).contiguous(memory_format=torch.channels_last),
    "sliced": lambda: torch.randn(2, 3, 4, 10)[..., ::2],
    "expanded": lambda: torch.randn(1, 3, 1, 5).expand(SHAPE),
    "swapped": lambda: laid_out_again(torch.randn(SHAPE), (1, 0, 2, 3)),
}
# Dimensions of size 1, whose strides have no effect; and no dimensions.
THIN: dict[str, Callable[[], Tensor]] = {
    "thin": lambda: torch.randn(2, 1, 4, 1),
    "thin, other strides": lambda: torch.randn(8).as_strided((2, 1, 4, 1), (4, 7, 1, 9)),
    "thin, reversed": lambda: laid_out_again(torch.randn(2, 1, 4, 1), (3, 2, 1, 0)),
}
EMPTY: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: torch.randn(2, 0, 4, 5),
    "empty, reversed": lambda: laid_out_again(torch.randn(2, 0, 4, 5), (3, 2, 1, 0)),
}

Call = Callable[[Tensor, Tensor], object]


def float_parameters(x: Tensor) -> list[Tensor]:
    return [torch.ones(3, device=x.device) for _ in range(4)]


CALLS: dict[str, Call] = {
    "where": lambda x, y: torch.where(x > 0, x, y),
    "where, a number": lambda x, y: torch.where(x > y, x, 0.0),
    "where, two dtypes": lambda x, y: torch.where(x > 0, x.double(), y),
    "where, a row": lambda x, y: torch.where(x[:1] > 0, x, y[..., :1]),
    "logical_not": lambda x, y: (x > 0).logical_not(),
    "logical_and": lambda x, y: torch.logical_and(x, y),
    "logical_or": lambda x, y: torch.logical_or(x > 0, y > 0),
    "logical_xor": lambda x, y: torch.logical_xor(x, y[:1]),
    "isnan": lambda x, y: torch.isnan(x),
    "rsub": lambda x, y: (1 - x, torch.rsub(x, y)),
    "hardtanh": lambda x, y: (F.hardtanh(x), aten.hardtanh_backward(x, y, -1, 1)),
    "hardswish": lambda x, y: (F.hardswish(x), aten.hardswish_backward(x, y)),
    "mish": lambda x, y: aten.mish_backward(x, y),
    "celu": lambda x, y: F.celu(x),
    "prelu": lambda x, y: aten._prelu_kernel(x, y[:, :, :1, :1]),
    "prelu backward": lambda x, y: aten._prelu_kernel_backward(x, y, x[:1, :, :1, :1]),
    "nan_to_num": lambda x, y: x.nan_to_num(),
    "complex": lambda x, y: (torch.complex(x, y), torch.polar(x, y)),
    "bernoulli": lambda x, y: torch.bernoulli(x.sigmoid()),
    "safe_softmax": lambda x, y: (aten._safe_softmax(x, -1), aten._safe_softmax(y, 1)),
    "sum": lambda x, y: (x.sum(), (x > 0).sum(), x.sum(dtype=torch.double), x.prod()),
    "mean": lambda x, y: x.mean(),
    "select_backward": lambda x, y: (
        aten.select_backward(x[:, 0], x.shape, 1, -1) if x.numel() else x
    ),
    "slice_backward": lambda x, y: aten.slice_backward(x[:, :, 1:9:2], x.shape, 2, 1, 9, 2),
    "diagonal_backward": lambda x, y: aten.diagonal_backward(
        x.diagonal(1, -1, 0), x.shape, 1, -1, 0
    ),
    "unfold_backward": lambda x, y: aten.unfold_backward(x.unfold(2, 2, 2), x.shape, 2, 2, 2),
    "stack": lambda x, y: [torch.stack([x, y], dim) for dim in (0, 2, -1)],
    "stack of matrices": lambda x, y: (
        [torch.stack([x[0, 0], y[0, 0]], d) for d in (0, 1, 2)] if x.numel() else x
    ),
    "index_put": lambda x, y: x.index_put((torch.tensor([0, 1]).to(x.device),), y[:, :1]),
    "index_put apart": lambda x, y: (
        aten.index_put(
            x,
            [torch.tensor([[0], [1]]).to(x.device), None, torch.tensor([0, 2]).to(x.device)],
            y[0, 0, 0, 0],
        )
        if x.numel()
        else x
    ),
    "mse_loss_backward": lambda x, y: aten.mse_loss_backward(x, y, x, 0),
    "smooth_l1_loss_backward": lambda x, y: aten.smooth_l1_loss_backward(x, y, x, 0, 1.0),
    "huber_loss": lambda x, y: (F.huber_loss(x, y), F.huber_loss(x, y, reduction="none")),
    "huber_loss_backward": lambda x, y: aten.huber_loss_backward(x, y, x, 1, 1.0),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "binary_cross_entropy backward": lambda x, y: aten.binary_cross_entropy_backward(
        x, y.sigmoid(), x.sigmoid(), None, 0
    ),
    "with logits": lambda x, y: (
        F.binary_cross_entropy_with_logits(x, y),
        F.binary_cross_entropy_with_logits(x, y, x[:1]),
        F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    ),
    "with logits, weighted and not reduced": lambda x, y: F.binary_cross_entropy_with_logits(
        x, y, pos_weight=x[:1], reduction="none"
    ),
    "layer_norm backward": lambda x, y: aten.native_layer_norm_backward(
        x,
        y,
        [x.shape[-1]],
        *torch.native_layer_norm(y, [x.shape[-1]], None, None, 1e-5)[1:],
        None,
        None,
        [True, False, False],
    ),
    "foreach_norm": lambda x, y: torch._foreach_norm([x, y], 2.0) if x.numel() else x,
    "foreach, tensors without dimensions": lambda x, y: (
        torch._foreach_div([x, y], [torch.full((), n, device=x.device) for n in (2.0, 3.0)]),
        torch._foreach_mul([x, y], torch.full((), 2.0, device=x.device)),
        torch._foreach_add([x, y], torch.full((), 2.0, device=x.device), alpha=0.5),
        torch._foreach_addcdiv([x, y], [y, x], [torch.full((), 2.0, device=x.device)] * 2),
        torch._foreach_lerp([x, y], [y, x], [torch.full((), 0.5, device=x.device)] * 2),
    ),
    "foreach_pow of a number": lambda x, y: (
        torch._foreach_pow(0.9, [x, y]),
        torch._foreach_pow(1, [y, x]),
        torch._foreach_pow(2, [torch.full((), 2.0, device=x.device)]),
    ),
    "max": lambda x, y: (x.max(), y.min(), x.median()) if x.numel() else x,
}

# Calls of fixed sizes.
SIZED: dict[str, Call] = {
    "multinomial": lambda x, y: torch.multinomial(x[0, 0].abs() + 0.1, 2),
    "cdist": lambda x, y: (torch.cdist(x, y), torch.cdist(x[0, 0], y[0, 0])),
    "dot": lambda x, y: (
        torch.dot(x[0, 0, 0], y[0, 0, 0]),
        torch.vdot(x[:, 0, 0, 0], y[:, 1, 1, 1]),
    ),
    "mv": lambda x, y: (torch.mv(x[0, 0], y[0, 0, 0]), torch.mv(x[0, 0].T, y[0, 0, :, 0])),
    "trace": lambda x, y: torch.trace(x[0, 0]),
    "embedding": lambda x, y: F.embedding((x > 0).long(), y[0, 0]),
    "weight_norm": lambda x, y: torch._weight_norm(x, y[:, :1, :1, :1], 0),
    "adaptive_avg_pool": lambda x, y: (
        F.adaptive_avg_pool2d(x, (2, 3)),
        F.adaptive_avg_pool3d(y, 2),
    ),
    "adaptive_avg_pool backward": lambda x, y: aten._adaptive_avg_pool2d_backward(
        x[..., :2, :2], y
    ),
    "nll_loss2d": lambda x, y: [
        F.nll_loss(x, (y[:, 0] > 0).long(), reduction=reduction) for reduction in ("mean", "none")
    ],
    "nll_loss2d backward": lambda x, y: aten.nll_loss2d_backward(
        x[0, 0, 0, 0], x.contiguous(), (y[:, 0] > 0).long(), None, 1, -100, y[0, 0, 0, 0]
    ),
    "ctc_loss": lambda x, y: aten._ctc_loss(
        x[0].log_softmax(-1), torch.tensor([[1, 2]] * 4).to(x.device), [3, 3, 3, 3], [2, 2, 2, 2]
    ),
    "conv1d": lambda x, y: F.conv1d(x[0], y[0, :2].contiguous(), padding=2),
    "conv1d backward": lambda x, y: aten.convolution_backward(
        x[0],
        y[0],
        torch.ones(4, 1, 1, device=x.device),
        [4],
        [1],
        [0],
        [1],
        False,
        [0],
        4,
        [True, True, True],
    ),
    "batch_norm backward": lambda x, y: aten.native_batch_norm_backward(
        x,
        y,
        torch.ones(3, device=x.device),
        None,
        None,
        torch.zeros(3, device=x.device),
        torch.ones(3, device=x.device),
        True,
        1e-5,
        [True, True, True],
    ),
    "batch_norm in half precision": lambda x, y: [
        aten.native_batch_norm(x.half(), *float_parameters(x), training, 0.1, 1e-5)
        for training in (True, False)
    ],
    "batch_norm in half precision, no weight": lambda x, y: [
        aten.native_batch_norm(x.half(), None, None, mean, mean, True, 0.1, 1e-5)
        for mean in (None, torch.ones(3, device=x.device))
    ],
    "batch_norm backward in half precision": lambda x, y: [
        aten.native_batch_norm_backward(
            x.half(), y.half(), *(float_parameters(x) * 2)[1:6], training, 1e-5, [True] * 3
        )
        for training in (True, False)
    ],
    "clone": lambda x, y: x.clone(memory_format=torch.channels_last),
    "glu backward": lambda x, y: aten.glu_backward(x[:, :, :2], y, 2),
    "factories": lambda x, y: (
        torch.arange(3, 9, 2, device=x.device),
        torch.arange(0.0, 1.0, 0.3, device=x.device),
        torch.linspace(0, 1, 5, device=x.device),
        torch.eye(2, 3, device=x.device),
        torch.arange(4, out=torch.empty(2, 2, device=x.device)),
    ),
    "a cast that overlaps": lambda x, y: (
        x.double() * (y > 0) + x[:1].expand(2, 3, 4, 5) * y.double()
    ),
}


def strides(result: object) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def check(call: Call, x: Tensor, y: Tensor) -> None:
    there = [copied(x), copied(y)]
    torch.manual_seed(7)
    expected = call(x, y)
    torch.manual_seed(7)
    actual = call(*there)
    assert strides(actual) == strides(expected)
    assert_same(actual, expected)


def copied(tensor: Tensor) -> Tensor:
    """On the device, with the same strides, also if elements overlap."""
    whole = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
    return whole.to(DEVICE).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def check_all(call: Call, *kinds: dict[str, Callable[[], Tensor]]) -> None:
    for layouts in kinds:
        usual, *others = layouts.values()
        for layout in layouts.values():
            check(call, layout(), layout())
        for other in others:
            check(call, usual(), other())
            check(call, other(), usual())
    torch_remote.synchronize()


@pytest.fixture(autouse=True)
def nothing_mispredicted():
    torch_remote.synchronize()
    before = torch_remote.stats().mispredicted
    yield
    torch_remote.synchronize()
    assert torch_remote.stats().mispredicted == before


@pytest.mark.parametrize("name", CALLS)
def test_any_layout_gives_what_the_cpu_gives(name: str) -> None:
    check_all(CALLS[name], LAYOUTS, THIN, EMPTY)


@pytest.mark.parametrize("name", SIZED)
def test_any_layout_of_a_sized_call_gives_what_the_cpu_gives(name: str) -> None:
    check_all(SIZED[name], LAYOUTS)


# The shape function declines these: the layout or dtype of the result depends on the kernel.
LEFT_TO_SERVER = {
    "with logits, weighted and not reduced",
    "batch_norm in half precision, no weight",
}


@pytest.fixture(scope="module")
def new_session() -> Iterator[torch.device]:
    """A session without signatures, so that shape functions are asked."""
    with torch_remote.connect("local") as machine:
        yield machine.devices[0]


@pytest.mark.skipif(DEVICE == "cpu", reason="a CPU has no session")
@pytest.mark.parametrize("name", sorted({*CALLS, *SIZED} - LEFT_TO_SERVER))
def test_ordinary_calls_ask_nobody(name: str, new_session: torch.device) -> None:
    x, y = (torch.randn(SHAPE, device=new_session) for _ in range(2))
    with torch_remote.count() as counted:
        (CALLS | SIZED)[name](x, y)
    assert (counted.inferred_by_meta, counted.inferred_by_server) == (0, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.where(x > 0, x, x[:, :2]),
        lambda x: torch.logical_and(x, x[:, :2]),
        lambda x: torch.multinomial(x.abs(), 5),
        lambda x: torch.multinomial(x.abs(), 0),
        lambda x: x.index_put((torch.tensor([0, 1]).to(x.device),), x[:, :2]),
        lambda x: torch.stack([x, x[:1]]),
        lambda x: torch.arange(3, 0, 1, device=x.device),
        lambda x: torch.dot(x, x),
        lambda x: torch.mv(x, x[0, :2]),
        lambda x: x[:0].max(),
        lambda x: (x > 0).mean(),
        lambda x: 1 - (x > 0),
        lambda x: F.huber_loss(x, x, delta=-1.0),
        lambda x: F.embedding(x, x),
    ],
)
def test_a_wrong_call_raises_at_the_call_what_it_raises_on_the_cpu(call: Callable) -> None:
    x = torch.ones(3, 3)
    with pytest.raises(Exception) as expected:
        call(x)
    with pytest.raises(type(expected.value)) as actual:
        call(x.to(DEVICE))
    assert (
        str(actual.value).splitlines()[0].replace(DEVICE, "cpu")
        == str(expected.value).splitlines()[0]
    )
