"""Settings of PyTorch that change results change remote results, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from helpers import DEADLINE, assert_matches_cpu, assert_same
from sent import payload
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_remote
from torch_remote import _C

# How to change each setting, and how to restore it.
CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {}
# Settings that need another build or machine.
NOT_HERE = {
    "cudnn_benchmark_limit": "a torch built with cuDNN; torch has no such setter otherwise",
    "linalg_backend": "a torch built with cuSOLVER or MAGMA; others are refused by the setter",
    "blas_backend": "a torch built with cuBLAS; what another one has is the default by either name",
    "fp16_reduction_cpu": "a processor with half-precision arithmetic; refused by the setter",
}


def _change(name: str, set_it: Callable[[], object], reset: Callable[[], object]) -> None:
    CHANGES[name] = (set_it, reset)


def _toggle(name: str, owner: object, attribute: str, value: object, before: object) -> None:
    _change(
        name, lambda: setattr(owner, attribute, value), lambda: setattr(owner, attribute, before)
    )


def _call(name: str, function: Callable[..., object], value: object, before: object) -> None:
    _change(name, lambda: function(value), lambda: function(before))


_matmul, _cudnn, _mkldnn = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
_order = torch._C._get_sdp_priority_order()
_call("threads", torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads())
_call("default_dtype", torch.set_default_dtype, torch.float64, torch.float32)
_call("deterministic", torch.use_deterministic_algorithms, True, False)
_toggle("fill_uninitialized", torch.utils.deterministic, "fill_uninitialized_memory", False, True)
_toggle("fp16_reduction", _matmul, "allow_fp16_reduced_precision_reduction", (False, False), True)
_toggle("bf16_reduction", _matmul, "allow_bf16_reduced_precision_reduction", (False, True), True)
_toggle("fp16_accumulation", _matmul, "allow_fp16_accumulation", True, False)
_toggle("cudnn_enabled", _cudnn, "enabled", False, True)
_toggle("cudnn_benchmark", _cudnn, "benchmark", True, False)
_toggle("cudnn_deterministic", _cudnn, "deterministic", True, False)
_toggle("cudnn_tf32", _cudnn, "allow_tf32", False, True)
if hasattr(_cudnn, "depthwise_kernel"):
    _toggle("cudnn_depthwise", _cudnn, "depthwise_kernel", "native", "auto")
else:
    NOT_HERE["cudnn_depthwise"] = "a torch that has the choice"
_toggle("mkldnn_enabled", _mkldnn, "enabled", False, True)
_toggle("mkldnn_deterministic", _mkldnn, "deterministic", True, False)
_call("flash_sdp", torch.backends.cuda.enable_flash_sdp, False, True)
_call("efficient_sdp", torch.backends.cuda.enable_mem_efficient_sdp, False, True)
_call("math_sdp", torch.backends.cuda.enable_math_sdp, False, True)
_call("cudnn_sdp", torch.backends.cuda.enable_cudnn_sdp, False, True)
_call("overrideable_sdp", torch._C._set_sdp_use_overrideable, False, True)
_call("math_sdp_reduction", torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp, True, False)
_call("sdp_order", torch._C._set_sdp_priority_order, [2, 0, 1, 3, 4], _order)
_change(
    "matmul_precision",
    lambda: torch.set_float32_matmul_precision("medium"),
    lambda: _reset_matmul_precision(),
)
_call("nnpack_enabled", torch.backends.nnpack.set_flags, False, True)
_call("sm_carveout", torch._C._set_sm_carveout_experimental, 3, None)
_call("flush_denormal", torch.set_flush_denormal, True, False)
_toggle("precision", torch.backends, "fp32_precision", "tf32", "none")
_toggle("cuda_precision", _cudnn, "fp32_precision", "tf32", "none")
_toggle("cuda_conv_precision", _cudnn.conv, "fp32_precision", "ieee", "tf32")
_toggle("cuda_rnn_precision", _cudnn.rnn, "fp32_precision", "ieee", "tf32")
_toggle("cuda_matmul_precision", _matmul, "fp32_precision", "tf32", "none")
_toggle("mkldnn_conv_precision", _mkldnn.conv, "fp32_precision", "ieee", "none")
_toggle("mkldnn_rnn_precision", _mkldnn.rnn, "fp32_precision", "ieee", "none")
_toggle("mkldnn_matmul_precision", _mkldnn.matmul, "fp32_precision", "bf16", "none")
_change(  # torch.backends.mkldnn.fp32_precision sets the general one
    "mkldnn_precision",
    lambda: torch._C._set_fp32_precision_setter("mkldnn", "all", "bf16"),
    lambda: torch._C._set_fp32_precision_setter("mkldnn", "all", "none"),
)


def _reset_matmul_precision() -> None:
    torch.set_float32_matmul_precision("highest")
    _matmul.fp32_precision = _mkldnn.matmul.fp32_precision = "none"  # it was "ieee" by the setter


@contextmanager
def changed(*names: str) -> Iterator[None]:
    """Changes the settings for a block."""
    for name in names:
        CHANGES[name][0]()
    try:
        yield
    finally:
        for name in reversed(names):
            CHANGES[name][1]()


def contexts_after_a_call() -> tuple[dict[str, int], dict[str, int]]:
    """The settings of this process, and those of the server after a call from here."""
    torch.ones(2, device="remote").neg()
    return _C.context(), _C.server_context(0)


def test_every_setting_can_be_tested_or_says_why_not() -> None:
    assert set(_C.context()) == {*CHANGES, *NOT_HERE}
    assert not {*CHANGES} & {*NOT_HERE}


def test_the_server_starts_with_what_this_process_has() -> None:
    here, there = contexts_after_a_call()
    assert there == here


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore")
def test_a_change_arrives_at_the_server_and_goes_away_again(name: str) -> None:
    before, _ = contexts_after_a_call()
    with changed(name):
        during, there = contexts_after_a_call()
        assert during[name] != before[name]
        assert there == during
    here, there = contexts_after_a_call()
    assert there == here
    assert here[name] != during[name]


def test_older_and_newer_precision_settings_that_disagree_reach_the_server_as_they_are() -> None:
    with changed("cuda_matmul_precision"):  # PyTorch's getter of the older one now raises
        with pytest.raises(RuntimeError, match="legacy"):
            torch.get_float32_matmul_precision()
        here, there = contexts_after_a_call()
    assert there == here


def test_a_setting_that_does_not_change_is_not_sent_again() -> None:
    x = torch.ones(2, device="remote")
    x.neg().cpu()
    sent = payload(lambda: [x.neg() for _ in range(10)])
    assert sent < 10 * 20  # a name may be a byte longer or shorter


# --- where a CPU run shows it


def test_denormal_numbers_are_flushed_there_too() -> None:
    tiny = torch.full((8,), 1e-39)

    def halve(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5

    assert_matches_cpu(halve, tiny)
    with changed("flush_denormal"):
        assert_matches_cpu(halve, tiny)
        assert (tiny.to("remote") * 0.5).cpu().view(torch.int32).count_nonzero() == 0
    assert (tiny.to("remote") * 0.5).cpu().view(torch.int32).count_nonzero() == 8


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sums_are_split_over_as_many_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_matches_cpu(lambda x: (x.sum(), x.norm()), torch.randn(400_000))
    finally:
        torch.set_num_threads(before)


def test_the_default_dtype_is_that_of_results() -> None:
    with changed("default_dtype"):
        assert_matches_cpu(lambda x: x / 3, torch.arange(5))


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_an_operator_without_a_deterministic_form_is_refused_there_too(warn_only: bool) -> None:
    def put(x: torch.Tensor) -> torch.Tensor:
        return x.put_(torch.tensor([0], device=x.device), torch.ones(1, device=x.device))

    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        if warn_only:
            assert_matches_cpu(put, torch.zeros(3))
            return
        with pytest.raises(RuntimeError, match="put_ does not have a deterministic"):
            put(torch.zeros(3))
        with pytest.raises(RuntimeError, match="put_ does not have a deterministic"):
            put(torch.zeros(3, device="remote")).cpu()
    finally:
        torch.use_deterministic_algorithms(False)


def test_uninitialised_memory_is_filled_as_locally() -> None:
    def make(like: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.empty(3, device=like.device),
            torch.empty(2, 2, dtype=torch.int32, device=like.device),
            torch.empty_strided((2, 3), (1, 2), device=like.device),
            torch.empty_like(like),
        ]

    with changed("deterministic"):
        assert_matches_cpu(make, torch.zeros(4))


@pytest.mark.parametrize("names", [(), ("mkldnn_enabled",), ("nnpack_enabled",)])
def test_convolutions_take_the_same_kernel(names: tuple[str, ...]) -> None:
    with changed(*names):
        assert_matches_cpu(torch.conv2d, torch.randn(2, 8, 17, 17), torch.randn(8, 8, 3, 3))


@pytest.mark.parametrize("name", ["mkldnn_precision", "mkldnn_matmul_precision"])
def test_matrices_are_multiplied_with_the_precision_asked_for(name: str) -> None:
    with changed(name):
        assert_matches_cpu(torch.mm, torch.randn(64, 65), torch.randn(65, 66))


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_attention_takes_the_backend_asked_for(backend: SDPBackend) -> None:
    with sdpa_kernel([backend]):
        assert_matches_cpu(
            torch.nn.functional.scaled_dot_product_attention,
            *(torch.randn(2, 2, 40, 16) for _ in range(3)),
        )


def test_backward_runs_with_the_threads_of_whoever_called_it() -> None:
    # Autograd's thread is started by the first backward; settings made later do not reach it.
    seen = []
    weight = torch.ones(4, device="remote", requires_grad=True)
    weight.mul(2).sum().backward()
    with changed("threads", "flush_denormal"):
        product = weight.mul(2)
        product.register_hook(lambda gradient: seen.append((gradient * 2, _C.server_context(0))))
        product.sum().backward()
        here = _C.context()
    assert [(there["threads"], there["flush_denormal"]) for _, there in seen] == [
        (here["threads"], 1)
    ]


# The number of threads and flush-denormal are a thread's own. Autograd's threads have others than
# the caller of a backward, unless nobody has changed one.
OF_A_THREAD = ("threads", "flush_denormal")


def train(device: str) -> list[torch.Tensor]:
    """Gradients whose bits depend on the number of threads, forward and backward."""
    torch.manual_seed(0)
    layer = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.LayerNorm(64)
    )
    layer.to(device)
    result = layer(torch.randn(5, 3, 6, 6).to(device))
    result.square().sum().backward()
    return [result, *(p.grad for p in layer.parameters() if p.grad is not None)]


def in_a_thread(function: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result(DEADLINE)


def test_what_was_changed_for_a_backward_is_changed_back_after_it() -> None:
    train("remote")  # starts autograd's threads, with the settings of now
    with changed(*OF_A_THREAD):
        assert_same(train("remote"), train("cpu"))
    assert_same(train("remote"), train("cpu"))
    here, there = contexts_after_a_call()
    assert there == here


def test_a_backward_in_a_thread_with_other_settings_leaves_the_callers_alone() -> None:
    train("remote")

    def work() -> None:
        with changed(*OF_A_THREAD):
            assert_same(train("remote"), train("cpu"))

    in_a_thread(work)
    here, there = contexts_after_a_call()
    assert there == here
    assert_same(train("remote"), train("cpu"))


def test_a_backward_has_its_callers_settings_after_a_call_of_another_thread() -> None:
    def other() -> None:
        with changed(*OF_A_THREAD):
            here, there = contexts_after_a_call()
            assert there == here

    seen = []
    product = torch.ones(4, device="remote", requires_grad=True).mul(2)

    def hook(gradient: torch.Tensor) -> None:
        in_a_thread(other)
        gradient.neg()
        seen.append(_C.server_context(0))

    product.register_hook(hook)
    product.sum().backward()
    assert seen == [_C.context()]


def test_a_backward_that_uses_a_machine_first_has_its_callers_settings_there() -> None:
    train("remote")  # starts autograd's threads
    product = torch.ones(4, device="remote", requires_grad=True).mul(2)
    seen = []

    def hook(gradient: torch.Tensor) -> None:
        with torch_remote.connect("local") as machine:
            (device,) = machine.devices
            torch.ones(2, device=device).neg()
            seen.append(_C.server_context(device.index))

    product.register_hook(hook)
    with changed(*OF_A_THREAD):
        product.sum().backward()
        assert seen == [_C.context()]


def test_the_same_settings_give_the_same_numbers_after_many_changes() -> None:
    with changed("mkldnn_enabled"), changed("deterministic"), changed("math_sdp"):
        x = torch.randn(30, 30)
        assert_same((x.to("remote") @ x.to("remote")).softmax(0), (x @ x).softmax(0))
