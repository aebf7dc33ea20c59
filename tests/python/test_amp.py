"""`torch.autocast("remote")` casts as CUDA's autocast does, on every server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from amp_lists import ARGUMENTS, BANNED, CUDNN, NAMED, POLICIES, cast, explicit, operator
from helpers import DEVICE, assert_runs, assert_same, moved
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

import torch_remote

FAST = (torch.float16, torch.bfloat16)
LAYERS = {
    f"{name}.{kind}"
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for kind in ("input", "data")
}
OPERATORS = sorted(name for name in POLICIES if not NAMED.search(name))
# Without CUDA, even a fake CUDA tensor cannot be given to these.
NEEDS_CUDA = {*CUDNN, "_thnn_fused_gru_cell", "gru_cell", "grid_sampler"}
NO_CPU_KERNEL = {
    "_scaled_dot_product_flash_attention",
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
}


def with_kernel(key: str) -> set[str]:
    return {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    }


@contextmanager
def autocast_on(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Also for CUDA where there is none: torch.autocast would switch itself off."""
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)
        torch.set_autocast_dtype(device, torch.float16)
        torch.clear_autocast_cache()


# --- The lists


def test_the_operators_are_those_of_cuda() -> None:
    assert with_kernel("AutocastPrivateUse1") == with_kernel("AutocastCUDA") | LAYERS | {
        "_cudnn_rnn"
    }
    assert {*POLICIES, *CUDNN, BANNED} == with_kernel("AutocastCUDA") - {"_cudnn_rnn"}


def dtypes_of(name: str, device: str, given: torch.dtype, fast: torch.dtype) -> object:
    """The dtypes of an operator's results for tensors without memory, or its error."""

    def without_memory(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=device)

    with FakeTensorMode():
        arguments = tree_map(without_memory, cast(ARGUMENTS[name](), given))
        try:
            with autocast_on(device, fast):
                results = operator(name)(*arguments)
        except RuntimeError as error:
            return str(error).splitlines()[0]
    return [leaf.dtype for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("name", sorted({*OPERATORS, *CUDNN} - NEEDS_CUDA))
def test_results_have_the_dtypes_of_cuda(name: str) -> None:
    for fast in FAST:
        for given in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            expected = dtypes_of(name, "cuda", given, fast)
            assert dtypes_of(name, "remote", given, fast) == expected


def mixed(arguments: Any, fast: torch.dtype) -> Any:
    """The arguments with every second tensor in the fast dtype."""
    count = iter(range(100))
    return tree_map(lambda leaf: leaf if next(count) % 2 else cast(leaf, fast), arguments)


@pytest.mark.parametrize("name", sorted({*OPERATORS} - NO_CPU_KERNEL))
@pytest.mark.parametrize("fast", FAST)
def test_results_are_those_of_explicit_casts(name: str, fast: torch.dtype) -> None:
    given = ARGUMENTS[name]()
    for arguments in (given, cast(given, fast), mixed(given, fast)):
        expected = explicit(name, arguments, fast)
        there = moved(arguments)
        with torch.autocast(DEVICE, dtype=fast):
            assert_same(operator(name)(*there), expected)


def test_binary_cross_entropy_is_refused_as_on_cuda() -> None:
    x = torch.full((3,), 0.5, device=DEVICE)
    with (
        torch.autocast(DEVICE),
        pytest.raises(RuntimeError, match=r"unsafe to autocast.*_with_logits"),
    ):
        nn.functional.binary_cross_entropy(x, x)
    assert nn.functional.binary_cross_entropy(x, x).dtype == torch.float32


def test_double_tensors_and_integers_are_left_alone() -> None:
    for dtype in (torch.float64, torch.int64):
        matrix = torch.ones(2, 2, device=DEVICE, dtype=dtype)
        with torch.autocast(DEVICE):
            assert (matrix @ matrix).dtype == dtype


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True),
    "lstm, projected": lambda: nn.LSTM(4, 5, proj_size=3),
    "gru": lambda: nn.GRU(4, 5, num_layers=2),
    "rnn": lambda: nn.RNN(4, 5, bias=False),
    "rnn, relu": lambda: nn.RNN(4, 5, nonlinearity="relu"),
}


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("is_packed", [False, True])
def test_recurrent_layers_run_in_float16_as_cudnns(name: str, is_packed: bool) -> None:
    here, x = RECURRENT[name](), torch.randn(3, 2, 4)
    there = RECURRENT[name]().to(DEVICE)
    there.load_state_dict(here.state_dict())

    def packed(x: Tensor) -> Any:
        return nn.utils.rnn.pack_padded_sequence(x, [3, 1]) if is_packed else x

    expected = here.half()(packed(x.half()))
    with torch.autocast(DEVICE, dtype=torch.bfloat16):  # CUDA casts these to float16 nevertheless
        got = there(packed(x.to(DEVICE)))
    assert_same(got, expected)
    torch.cat(
        [leaf.float().flatten() for leaf in tree_leaves(got) if is_float(leaf)]
    ).sum().backward()
    assert {parameter.grad.dtype for parameter in there.parameters()} == {torch.float32}


# --- Contexts


def product() -> torch.dtype:
    matrix = torch.ones(2, 2, device=DEVICE)
    return (matrix @ matrix).dtype


def test_contexts_nest_and_can_be_off() -> None:
    assert torch.get_autocast_dtype("remote") == torch.float16
    seen = [product()]
    with torch.autocast("remote"):
        assert torch.is_autocast_enabled("remote")
        seen.append(product())
        with torch.autocast("remote", dtype=torch.bfloat16):
            seen.append(product())
            with torch.autocast("remote", enabled=False):
                assert not torch.is_autocast_enabled("remote")
                seen.append(product())
            seen.append(product())
        seen.append(product())
    seen.append(product())
    half, brain, full = torch.float16, torch.bfloat16, torch.float32
    assert seen == [full, half, brain, full, brain, half, full]


def test_a_context_of_another_device_casts_nothing() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product() == torch.float32
    with torch.autocast("remote"):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_an_exception_ends_the_context() -> None:
    with pytest.raises(KeyError), torch.autocast("remote"):
        raise KeyError
    assert product() == torch.float32


def test_autocast_decorates_functions() -> None:
    assert torch.autocast("remote", dtype=torch.bfloat16)(product)() == torch.bfloat16
    assert torch.remote.amp.autocast(dtype=torch.bfloat16)(product)() == torch.bfloat16


def test_other_dtypes_switch_it_off_with_a_warning() -> None:
    assert torch.remote.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    with (
        pytest.warns(UserWarning, match="only supports dtypes of torch.float16, torch.bfloat16"),
        torch.autocast("remote", dtype=torch.float64),
    ):
        assert product() == torch.float32


def test_a_weight_is_cast_once_in_a_context() -> None:
    weight = torch.ones(2, 2, device=DEVICE, requires_grad=True)
    x = torch.ones(2, 2, device=DEVICE, dtype=torch.float16)

    def calls(**options: Any) -> list[int]:
        counts = []
        with torch.autocast(DEVICE, **options):
            for _ in range(3):
                with torch_remote.count() as counted:
                    torch.mm(x, weight)
                counts.append(counted.calls)
            with torch.autocast(DEVICE), torch_remote.count() as counted:
                torch.mm(x, weight)
            counts.append(counted.calls)
        return counts

    assert calls() == [2, 1, 1, 1]
    assert calls() == [2, 1, 1, 1]  # the cache ends with the outermost context
    assert calls(cache_enabled=False) == [2, 2, 2, 2]


def test_changed_weights_are_cast_again_in_the_next_context() -> None:
    layer = nn.Linear(2, 2, bias=False, device=DEVICE)
    for value in (1.0, 3.0):
        with torch.no_grad():
            layer.weight.fill_(value)
        with torch.autocast(DEVICE):
            assert layer(torch.ones(1, 2, device=DEVICE)).tolist() == [[2 * value] * 2]


@pytest.mark.parametrize("own", [False, True])
def test_custom_functions_cast_their_inputs(own: bool) -> None:
    amp: Any = torch.remote.amp if own else torch.amp
    options = {} if own else {"device_type": "remote"}
    seen: list[object] = []

    class Square(torch.autograd.Function):
        @staticmethod
        @amp.custom_fwd(cast_inputs=torch.float32, **options)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append((x.dtype, torch.is_autocast_enabled("remote")))
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @amp.custom_bwd(**options)
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            seen.append((grad.dtype, torch.is_autocast_enabled("remote")))
            (x,) = ctx.saved_tensors
            return grad @ x.T + x.T @ grad

    x = torch.ones(2, 2, device=DEVICE, dtype=torch.float16, requires_grad=True)
    with torch.autocast("remote"):
        y = Square.apply(x)
    y.sum().backward()
    assert seen == [(torch.float32, False), (torch.float32, False)]
    assert y.dtype == torch.float32
    assert x.grad is not None and x.grad.dtype == torch.float16


def test_the_module_has_cudas_names() -> None:
    import torch.remote.amp as module
    from torch.remote.amp import GradScaler, autocast

    assert module is torch.remote.amp
    assert isinstance(autocast(), torch.autocast)
    assert isinstance(GradScaler(), torch.amp.GradScaler)
    assert GradScaler(8.0).state_dict()["scale"] == 8.0
    assert not GradScaler(enabled=False).is_enabled()
    assert torch.remote.is_bf16_supported()
    assert not torch.remote.is_bf16_supported(including_emulation=False)  # a CPU server


def test_autocast_starts_no_server_and_warns_of_nothing() -> None:
    said = assert_runs("""
        import torch, torch_remote, torch.remote.amp
        with torch.autocast("remote"), torch.remote.amp.autocast(dtype=torch.bfloat16):
            torch.ones(2, 2) @ torch.ones(2, 2)
        torch.remote.amp.GradScaler()
        print(torch.remote.is_bf16_supported(), torch.remote.is_initialized())
    """)
    assert said == "True False"


# --- Transformer layers, compiled functions, checkpoints


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_transformer_layers_do_not_take_the_fast_path_which_casts_nothing() -> None:
    x = torch.randn(2, 5, 8, device=DEVICE)
    attention = nn.MultiheadAttention(8, 2, batch_first=True, device=DEVICE).eval()
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device=DEVICE).eval()
    with torch.autocast(DEVICE):
        expected = attention(x, x, x)[0], encoder(x)
        with torch.no_grad():
            got = attention(x, x, x)[0], encoder(x)
    assert expected[0].dtype == torch.float16
    assert_same(got, expected)
    torch.jit.script(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_cast_too(backend: str) -> None:
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)).to(DEVICE)
    x = torch.randn(4, 8, device=DEVICE)

    def inside(x: Tensor) -> Tensor:
        with torch.autocast("remote", dtype=torch.bfloat16):
            return net(x)

    def inside_own(x: Tensor) -> Tensor:
        with torch.remote.amp.autocast():
            return net(x)

    def gradients(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        result = function(x)
        return [result, *torch.autograd.grad(result.float().square().sum(), net.parameters())]

    for function in (inside, inside_own):
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        assert_same(gradients(compiled), gradients(function))
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    for enabled in (True, False, True):
        with torch.autocast("remote", enabled=enabled):
            got, expected = compiled(x), net(x)
        assert_same(got, expected)


@pytest.mark.parametrize("name", RECURRENT)
def test_compiled_recurrent_layers_cast_too(name: str) -> None:
    torch._dynamo.reset()
    layer, x = RECURRENT[name]().to(DEVICE), torch.randn(3, 2, 4, device=DEVICE)
    compiled = torch.compile(layer, backend="aot_eager")
    with torch.autocast("remote"), torch._dynamo.config.patch(allow_rnn=True):
        assert_same(compiled(x), layer(x))


def test_transforms_cast_too() -> None:
    x, w = (torch.randn(4, 4, device=DEVICE) for _ in range(2))
    with torch.autocast("remote"):
        assert torch.func.vmap(lambda row: row @ w)(x).dtype == torch.float16
        assert torch.func.jvp(lambda w: x @ w, (w,), (w,))[1].dtype == torch.float16
        gradient = torch.func.grad(lambda w: (x @ w).float().sum())(w)
        with torch.inference_mode():
            assert (x @ torch.ones(4, 4, device=DEVICE)).dtype == torch.float16
    assert_same(gradient, (x.half().T @ torch.ones(4, 4).half().to(DEVICE)).float())


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpoints_recompute_in_the_same_dtypes(is_reentrant: bool) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 4)).to(DEVICE)
    start = torch.randn(4, 8)

    def run(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        x = start.to(DEVICE).requires_grad_()
        net.zero_grad()
        with torch.autocast(DEVICE):
            result = function(x)
        result.float().square().sum().backward()
        return [result, x.grad, *(parameter.grad for parameter in net.parameters())]

    assert_same(run(lambda x: checkpoint(net, x, use_reentrant=is_reentrant)), run(net))
