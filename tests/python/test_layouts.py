"""Layouts that a remote device lacks are refused at the call; jagged nested tensors work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import assert_same

COO = torch.tensor([[1.0, 0, 2], [0, 3, 0]])


def dense() -> torch.Tensor:
    return COO.to("remote")


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="remote")


WAYS: dict[str, Callable[[], object]] = {
    "quantize_per_tensor": lambda: torch.quantize_per_tensor(dense(), 0.1, 0, torch.quint8),
    "quantize_per_channel": lambda: torch.quantize_per_channel(
        dense(), torch.ones(2, device="remote"), indices(0, 0), 0, torch.qint8
    ),
    "quantize_dynamic": lambda: torch.quantize_per_tensor_dynamic(dense(), torch.quint8, False),
    "quantized_to": lambda: torch.quantize_per_tensor(COO, 0.1, 0, torch.quint8).to("remote"),
    "empty_quantized": lambda: torch.empty(2, dtype=torch.quint8, device="remote"),
    "to_quantized_dtype": lambda: dense().to(torch.qint8),
    "nested_of_cpu_parts": lambda: torch.nested.nested_tensor([COO[0], COO[1]], device="remote"),
    "nested_of_remote_parts": lambda: torch.nested.nested_tensor([dense()[0], dense()[1]]),
    "as_nested": lambda: torch.nested.as_nested_tensor([dense()[0], dense()[1]]),
    "nested_to": lambda: torch.nested.nested_tensor([COO[0], COO[1]]).to("remote"),
    "to_mkldnn": lambda: dense().to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_another_layout_is_refused_at_the_call_with_the_way_out(way: str) -> None:
    with pytest.raises(NotImplementedError, match=r"dense and sparse tensors.*\.cpu\(\)"):
        WAYS[way]()


@pytest.mark.filterwarnings("ignore")
def test_an_encoder_that_would_nest_padded_input_names_the_switch() -> None:
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    x, padding = torch.randn(2, 3, 4), torch.tensor([[False, False, True], [False, False, False]])

    def encode(nests: bool, device: str) -> torch.Tensor:
        encoder = (
            torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=nests).to(device).eval()
        )
        with torch.no_grad():
            return encoder(x.to(device), src_key_padding_mask=padding.to(device)).cpu()

    with pytest.raises(NotImplementedError, match="enable_nested_tensor=False"):
        encode(nests=True, device="remote")
    assert_same(encode(nests=False, device="remote"), encode(nests=False, device="cpu"))


def test_the_session_lives_after_a_refusal() -> None:
    with pytest.raises(NotImplementedError):
        dense().to_mkldnn()
    assert dense().sum().item() == 6.0


@pytest.mark.filterwarnings("ignore")
def test_an_mkldnn_tensor_cannot_be_moved() -> None:
    with pytest.raises(NotImplementedError, match="mkldnn"):
        COO.to_mkldnn().to("remote")


@pytest.mark.filterwarnings("ignore")
def test_other_layouts_still_work_on_the_cpu() -> None:
    assert torch.nested.nested_tensor([COO[0], COO[1, :2]]).size(0) == 2
    assert COO.to_sparse_csr().to_dense().equal(COO)


@pytest.mark.filterwarnings("ignore")
def test_jagged_nested_tensors_work() -> None:
    def use(device: str) -> list[torch.Tensor]:
        parts = [torch.arange(8.0).reshape(2, 4), torch.ones(3, 4)]
        made = torch.nested.nested_tensor(parts, layout=torch.jagged, device=device)
        weight = torch.ones(4, 4, device=device, requires_grad=True)
        result = (made * 2).sin() @ weight
        result.values().sum().backward()
        assert weight.grad is not None
        return [made.to_padded_tensor(0.0), *result.unbind(), result.cpu().values(), weight.grad]

    assert_same(use("remote"), use("cpu"))
