"""Strided nested tensors: made, moved, looked at, saved and computed with. All as on the CPU."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, assert_same
from nested_parts import apart, assert_both_same

import torch_remote

pytestmark = pytest.mark.filterwarnings("ignore")

LENGTHS = (2, 5, 3)


def parts(width: int = 4, lengths: tuple[int, ...] = LENGTHS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(length, width, generator=generator) for length in lengths]


def nested(device: str, **options: Any) -> torch.Tensor:
    return torch.nested.nested_tensor(parts(), device=device, **options)


def heads(device: str) -> torch.Tensor:
    """(batch, heads, length, width)"""
    return nested(device).view(3, -1, 2, 2).transpose(1, 2)


PADDED = torch.arange(24.0).reshape(2, 3, 4)
MASK = torch.tensor([[True, True, False], [True, False, False]])

# --- making and moving

MAKE: dict[str, Callable[[str], torch.Tensor]] = {
    "of_cpu_parts": nested,
    "of_remote_parts": lambda d: torch.nested.nested_tensor([part.to(d) for part in parts()]),
    "of_lists": lambda d: torch.nested.nested_tensor([[1.0, 2.0], [3.0]], device=d),
    "of_scalars": lambda d: torch.nested.nested_tensor(
        [torch.tensor(1), torch.tensor(2)], device=d
    ),
    "of_nothing": lambda d: torch.nested.nested_tensor([], device=d),
    "of_empty_parts": lambda d: torch.nested.nested_tensor(
        [torch.ones(0, 3), torch.ones(2, 3)], device=d
    ),
    "of_views": lambda d: torch.nested.nested_tensor([part.t().to(d) for part in parts()]),
    "of_half": lambda d: nested(d, dtype=torch.bfloat16),
    "as_nested": lambda d: torch.nested.as_nested_tensor([part.to(d) for part in parts()]),
    "moved": lambda d: nested("cpu").to(d),
    "moved_to_dtype": lambda d: nested("cpu").to(d, torch.float64),
    "of_padded": lambda d: torch._nested_from_padded(PADDED.to(d), torch.tensor([[2, 4], [3, 2]])),
    "of_padded_heads": lambda d: torch._nested_from_padded(
        PADDED.reshape(2, 2, 3, 2).to(d), torch.tensor([[3, 4], [1, 4]]), True
    ),
    "of_mask": lambda d: torch._nested_tensor_from_mask(PADDED.to(d), MASK.to(d)),
    "of_buffer": lambda d: torch._nested_view_from_buffer(
        torch.arange(10.0, device=d),
        torch.tensor([[2, 2], [1, 3]]),
        torch.tensor([[1, 2], [3, 1]]),
        torch.tensor([1, 6]),
    ),
    "empty_like": lambda d: torch.empty_like(nested(d)).fill_(2.0),
    "zeros_like": lambda d: torch.zeros_like(nested(d)),
    "ones_like": lambda d: torch.ones_like(nested(d)),
    "randn_like": lambda d: torch.randn_like(nested(d)),
    "narrowed": lambda d: torch.nested.narrow(PADDED.to(d), 0, 1, 1, layout=torch.strided),
}


@pytest.mark.parametrize("way", MAKE)
def test_a_nested_tensor_is_made_as_on_the_cpu(way: str) -> None:
    made = MAKE[way](DEVICE)
    assert made.is_nested
    assert made.layout == torch.strided
    assert made.device == torch.empty(0, device=DEVICE).device
    assert_both_same(MAKE[way])


def test_a_nested_tensor_is_moved_both_ways() -> None:
    here = nested("cpu")
    there = here.to(DEVICE)
    assert there.to(DEVICE) is there
    for back in (there.cpu(), there.to("cpu"), there.to("cpu", non_blocking=True)):
        torch.get_device_module(DEVICE).synchronize()
        assert back.device.type == "cpu"
        assert_same(apart(back), apart(here))
    target = torch.zeros_like(here)
    target.copy_(there)
    assert_same(apart(target), apart(here))
    assert_same(apart(torch.zeros_like(there).copy_(here)), apart(here))


def test_a_noncontiguous_one_is_moved_as_on_the_cpu() -> None:
    def move(device: str) -> Any:
        try:
            return nested(device).transpose(1, 2).to("cpu", torch.float64)
        except RuntimeError as error:
            return str(error)

    assert_both_same(move)


def test_its_metadata_needs_no_answer(sync_count: Callable[[Callable[[], object]], int]) -> None:
    there = nested(DEVICE)

    def look() -> None:
        assert (there.dim(), there.size(0), there.size(2), there.numel()) == (3, 3, 4, 40)
        assert there.is_contiguous()
        assert [part.shape[0] for part in there.unbind()] == list(LENGTHS)
        with pytest.raises(RuntimeError, match="dimension 1 is irregular"):
            there.size(1)

    assert sync_count(look) == 0


def test_it_prints_as_on_the_cpu() -> None:
    large = torch.nested.nested_tensor([torch.rand(2, 900), torch.rand(3, 700)])
    for here in (nested("cpu"), large):
        shown = re.sub(rf",\s+device='{DEVICE}:0'", "", repr(here.to(DEVICE)))
        assert shown == repr(here)
    assert "requires_grad=True" in repr(nested(DEVICE, requires_grad=True))


@pytest.mark.parametrize("weights_only", [True, False])
def test_it_is_saved_and_loaded(weights_only: bool) -> None:
    there = {"whole": nested(DEVICE), "view": nested(DEVICE).transpose(1, 2)}
    stream = io.BytesIO()
    torch.save(there, stream)
    for place in (None, "cpu"):
        stream.seek(0)
        loaded = torch.load(stream, map_location=place, weights_only=weights_only)
        assert loaded["whole"].device.type == (place or torch.device(DEVICE).type)
        assert_same(apart(loaded["whole"]), apart(nested("cpu")))
        assert_same(apart(loaded["view"]), apart(nested("cpu").transpose(1, 2)))


def test_a_buffer_of_a_module_is_moved() -> None:
    module = torch.nn.Module()
    module.register_buffer("words", nested("cpu"))
    for device in (DEVICE, "cpu"):
        words = module.to(device).words
        assert words.device.type == torch.device(device).type
        assert_same(apart(words), apart(nested("cpu")))


def test_a_nested_tensor_is_moved_to_another_machine() -> None:
    with torch_remote.connect("local") as machine:
        device = machine.devices[0]
        for there in (nested(DEVICE).to(device), nested("cpu").to(device), nested(str(device))):
            product = there @ there.transpose(1, 2)
            assert there.device == product.device == device
            assert_same(apart(there), apart(nested("cpu")))
            assert_same(apart(product), apart(COMPUTE["matmul"]("cpu")))


@pytest.mark.skipif(DEVICE == "cpu", reason="a tensor of the CPU is copied at once")
def test_a_read_of_one_names_the_parts() -> None:
    with pytest.raises(NotImplementedError, match=r"unbind\(\)"):
        torch_remote.read(nested(DEVICE))


# --- views and operators

COMPUTE: dict[str, Callable[[str], Any]] = {
    "unbind": lambda d: list(nested(d).unbind()),
    "select": lambda d: [nested(d)[1], nested(d).select(0, -1)],
    "narrow": lambda d: nested(d).narrow(0, 1, 2),
    "transpose": lambda d: nested(d).transpose(1, 2),
    "contiguous": lambda d: nested(d).transpose(1, 2).contiguous(),
    "view": lambda d: [nested(d).view(3, -1, 2, 2), nested(d).reshape(3, -1, 2, 2)],
    "reshape_copies": lambda d: heads(d).transpose(1, 2).reshape(3, -1, 4),
    "squeeze": lambda d: [nested(d).unsqueeze(1), nested(d).unsqueeze(1).squeeze(1)],
    "chunk": lambda d: [list(nested(d).chunk(2, -1)), list(nested(d).split_with_sizes([1, 3], -1))],
    "values": lambda d: nested(d).values(),
    "clone": lambda d: [nested(d).clone(), nested(d).transpose(1, 2).clone()],
    "padded": lambda d: [nested(d).to_padded_tensor(7.0), nested(d).to_padded_tensor(0, (4, 8, 8))],
    "padded_scalars": lambda d: MAKE["of_nothing"](d).to_padded_tensor(1.0),
    "cat": lambda d: torch.cat([nested(d), nested(d) * 2]),
    "unary": lambda d: [
        function(nested(d))
        for function in (
            *(torch.relu, torch.tanh, torch.neg, torch.abs, torch.sgn, torch.sin, torch.cos),
            *(torch.sqrt, F.gelu, F.silu, torch.isnan, torch.isinf, torch.isposinf),
            *(torch.isneginf, torch.logical_not),
        )
    ],
    "unary_in_place": lambda d: [
        getattr(nested(d), name)() for name in ("relu_", "tanh_", "neg_", "abs_", "sgn_", "zero_")
    ],
    "with_number": lambda d: [nested(d) * 2, nested(d) / 3, nested(d) + 1.5, nested(d) - 1],
    "with_scalar": lambda d: [
        nested(d) * torch.tensor(3.0, device=d),
        torch.tensor(3.0, device=d) * nested(d),
    ],
    "with_cpu_scalar": lambda d: nested(d) * torch.tensor(3.0),
    "with_nested": lambda d: [
        nested(d) + nested(d),
        nested(d) - nested(d),
        nested(d) * nested(d),
        nested(d) / nested(d),
    ],
    "compare": lambda d: [nested(d) == 1, nested(d) > 0, nested(d) >= 0],
    "masked_fill": lambda d: nested(d).masked_fill(nested(d) > 0, 3.0),
    "where": lambda d: torch.where(nested(d) > 0, torch.tensor(1.0).to(d), nested(d)),
    "all": lambda d: torch.all(nested(d) > -9, -1),
    "in_place": lambda d: nested(d).add_(nested(d)).mul_(nested(d)).mul_(2.0),
    "sum": lambda d: [
        nested(d).sum(-1, keepdim=True),
        (nested(d) * 1e3).to(torch.bfloat16).sum(2, True),
        torch.nested.nested_tensor(parts(300), device=d).sum(-1, keepdim=True),
        (nested(d) * 9).long().sum(-1, keepdim=True),
        torch.nested.nested_tensor([torch.rand(2, 0), torch.rand(1, 3)], device=d).sum(-1, True),
    ],
    "linear": lambda d: F.linear(nested(d), torch.linspace(-1, 1, 24).reshape(6, 4).to(d)),
    "linear_bias": lambda d: F.linear(
        nested(d), torch.linspace(-1, 1, 24).reshape(6, 4).to(d), torch.arange(6.0, device=d)
    ),
    "matmul": lambda d: nested(d) @ nested(d).transpose(1, 2),
    "matmul_of_heads": lambda d: heads(d) @ heads(d).transpose(-1, -2),
    "matmul_with_dense": lambda d: (
        nested(d).view(3, -1, 2, 2) @ torch.arange(6.0, device=d).reshape(2, 3)
    ),
    "bmm": lambda d: torch.bmm(nested(d), nested(d).transpose(1, 2)),
    "softmax": lambda d: [torch.softmax(nested(d), -1), torch.softmax(nested(d), 1)],
    "layer_norm": lambda d: F.layer_norm(
        nested(d), (4,), torch.arange(4.0, device=d), torch.ones(4, device=d)
    ),
    "layer_norm_of_two": lambda d: F.layer_norm(
        nested(d).view(3, -1, 2, 2), (2, 2), torch.ones(2, 2, device=d), torch.ones(2, 2, device=d)
    ),
    "of_part_of_a_buffer": lambda d: [
        nested(d).narrow(0, 0, 2).sum(-1, keepdim=True),
        nested(d).narrow(0, 0, 2) * 2,
        F.layer_norm(
            nested(d).narrow(0, 0, 2), (4,), torch.ones(4, device=d), torch.ones(4, device=d)
        ),
    ],
    "dropout": lambda d: [F.dropout(nested(d), 0.5), F.dropout(nested(d), 0.5, training=False)],
    "normal": lambda d: nested(d).normal_(),
    "embedding": lambda d: F.embedding(
        torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], device=d),
        torch.arange(15.0, device=d).reshape(5, 3),
    ),
    "attention": lambda d: F.scaled_dot_product_attention(*[heads(d).contiguous()] * 3),
    "attention_scaled": lambda d: F.scaled_dot_product_attention(
        *[heads(d).contiguous()] * 3, scale=0.3
    ),
    "attention_dropped": lambda d: F.scaled_dot_product_attention(
        *[heads(d).contiguous()] * 3, dropout_p=0.4
    ),
}


@pytest.mark.parametrize("name", COMPUTE)
def test_an_operator_does_as_on_the_cpu(name: str) -> None:
    assert_both_same(COMPUTE[name])


def test_views_share_memory() -> None:
    there = nested(DEVICE)
    there.unbind()[1].zero_()
    there.transpose(1, 2).unbind()[2].fill_(5.0)
    assert_same(list(there.unbind())[1:], [torch.zeros(5, 4), torch.full((3, 4), 5.0)])
    there.values()[0] = 8.0
    assert there[0][0, 0].item() == 8.0


# --- errors

WRONG: dict[str, Callable[[str], Any]] = {
    "parts_of_other_dimensions": lambda d: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(2, 2)], device=d
    ),
    "shape": lambda d: nested(d).shape,
    "other_sizes": lambda d: nested(d) + torch.nested.nested_tensor(parts(4, (1, 2, 3)), device=d),
    "with_dense": lambda d: nested(d) + torch.ones(4, device=d),
    "matmul_of_other_widths": lambda d: nested(d) @ nested(d),
    "matmul_with_dense": lambda d: nested(d) @ torch.ones(4, 3, device=d),
    "linear_of_other_width": lambda d: F.linear(nested(d), torch.ones(2, 3, device=d)),
    "linear_of_view": lambda d: F.linear(nested(d).transpose(1, 2), torch.ones(2, 3, device=d)),
    "softmax_of_batch": lambda d: torch.softmax(nested(d), 0),
    "sum_of_batch": lambda d: nested(d).sum(0),
    "sum_without_keepdim": lambda d: nested(d).sum(-1),
    "sum_of_bools": lambda d: (nested(d) > 0).sum(-1, keepdim=True),
    "layer_norm_without_weight": lambda d: F.layer_norm(nested(d), (4,)),
    "layer_norm_of_irregular": lambda d: F.layer_norm(
        nested(d), (5, 4), torch.ones(5, 4, device=d), torch.ones(5, 4, device=d)
    ),
    "padded_view": lambda d: nested(d).transpose(1, 2).to_padded_tensor(0.0),
    "padded_too_small": lambda d: nested(d).to_padded_tensor(0.0, (1, 1, 1)),
    "mask_with_gaps": lambda d: torch._nested_tensor_from_mask(
        PADDED.to(d), torch.tensor([[True, False, True], [True, True, True]], device=d)
    ),
    "sizes_beyond_padding": lambda d: torch._nested_from_padded(
        PADDED.to(d), torch.tensor([[2, 5], [3, 4]])
    ),
    "buffer_too_small": lambda d: torch._nested_view_from_buffer(
        torch.ones(3, device=d), torch.tensor([[2]]), torch.tensor([[1]]), torch.tensor([9])
    ).unbind(),
    "attention_of_views": lambda d: F.scaled_dot_product_attention(*[heads(d)] * 3),
    "dense_in_its_place": lambda d: torch.ones(2, device=d).to_padded_tensor(0.0),
    "unbind_of_rows": lambda d: nested(d).unbind(1),
    "transpose_of_batch": lambda d: nested(d).transpose(0, 1),
    "index_outside": lambda d: nested(d)[3],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_as_on_the_cpu(name: str) -> None:
    def message(device: str) -> str:
        with pytest.raises(Exception) as caught:
            WRONG[name](device)
        return f"{type(caught.value).__name__}: {caught.value}"

    assert message(DEVICE) == message("cpu")


@pytest.mark.skipif(DEVICE == "cpu", reason="the CPU has a text of its own")
@pytest.mark.parametrize("function", [torch.exp, torch.cumsum, torch.Tensor.sum, torch.max])
def test_what_strided_nested_tensors_lack_is_a_sentence_that_names_jagged(
    function: Callable[..., Any],
) -> None:
    more = (1,) if function is torch.cumsum else ()
    with pytest.raises(NotImplementedError):
        function(nested("cpu"), *more)
    with pytest.raises(NotImplementedError, match=r"unbind\(\).*torch\.jagged"):
        function(nested(DEVICE), *more)


@pytest.mark.skipif(DEVICE == "cpu", reason="there is one device")
def test_sizes_on_the_device_are_refused() -> None:
    there = torch.tensor([[2, 4], [3, 2]], device=DEVICE)
    with pytest.raises(RuntimeError, match="to be on the CPU"):
        torch._nested_from_padded(PADDED.to(DEVICE), there)
    with pytest.raises(RuntimeError, match="to be on the CPU"):
        torch._nested_view_from_buffer(torch.ones(9, device=DEVICE), there, there, there)


@pytest.mark.skipif(DEVICE == "cpu", reason="there is one device")
def test_a_nested_tensor_of_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        nested(DEVICE) + nested("cpu")
    with pytest.raises(RuntimeError, match="same device"):
        F.linear(nested(DEVICE), torch.ones(2, 4))
