"""`tensor.type()` returns the class names of `torch.remote`, as with `torch.cuda`."""

from __future__ import annotations

import pickle

import pytest
import torch

PREFIXES = "Float Double Half BFloat16 Byte Char Short Int Long Bool"
KINDS = {f"{prefix}Tensor": getattr(torch, f"{prefix}Tensor").dtype for prefix in PREFIXES.split()}


@pytest.mark.parametrize("name", KINDS)
def test_a_tensor_is_of_the_type_it_names(name: str) -> None:
    x = torch.ones(3, device="remote", dtype=KINDS[name])
    kind = getattr(torch.remote, name)
    assert x.type() == f"torch.remote.{name}"
    assert x.type(x.type()) is x
    assert x.type(kind) is x
    assert isinstance(x, kind)
    assert not isinstance(x.cpu(), kind)
    assert not isinstance(x, getattr(torch, name))
    assert not isinstance(1, kind)
    assert sum(isinstance(x, getattr(torch.remote, other)) for other in KINDS) == 1


def test_a_tensor_is_moved_and_cast_to_a_type() -> None:
    moved = torch.tensor([1.5, 2]).type(torch.remote.IntTensor)
    assert (moved.device.type, moved.dtype, moved.tolist()) == ("remote", torch.int32, [1, 2])
    assert moved.type("torch.remote.HalfTensor").dtype == torch.half
    assert moved.type(torch.FloatTensor).device.type == "cpu"


def test_a_type_looks_like_cudas() -> None:
    kind = torch.remote.FloatTensor
    assert torch.remote.FloatTensor is kind
    assert (kind.__name__, kind.__module__) == ("FloatTensor", "torch.remote")
    assert repr(kind) == "<class 'torch.remote.FloatTensor'>"
    assert kind.dtype == torch.float32


def test_the_old_constructor_makes_remote_tensors() -> None:
    kind = torch.remote.FloatTensor
    assert kind(2, 3).shape == (2, 3)
    assert kind().shape == (0,)
    assert kind(torch.Size([4])).is_remote
    assert kind([1, 2]).tolist() == [1, 2]
    made = kind([3])
    kind(made).add_(1)
    assert made.tolist() == [4]
    assert kind(2, device="remote:0").shape == (2,)
    with pytest.raises(RuntimeError, match="expects device type: remote but device type: cpu"):
        kind(2, device="cpu")
    with pytest.raises(TypeError):
        kind("a")


def test_a_type_that_cuda_has_not_either_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="ComplexFloatTensor"):
        _ = torch.remote.ComplexFloatTensor


STORED = [torch.float32, torch.float64, torch.half, torch.bfloat16, torch.uint8, torch.int64]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("dtype", [*STORED, torch.bool, torch.complex64])
def test_the_storage_of_a_tensor_is_of_the_type_it_names(dtype: torch.dtype) -> None:
    x = torch.ones(3, device="remote", dtype=dtype)
    local = x.cpu().storage_type()
    kind = x.storage_type()
    assert kind is getattr(torch.remote, local.__name__)
    assert (kind.__module__, kind.dtype) == ("torch.remote", dtype)
    assert isinstance(x.storage(), kind) and not isinstance(x.cpu().storage(), kind)
    assert not isinstance(x.storage(), local)
    assert x.storage().type() == f"torch.remote.{local.__name__}"
    made = kind(2)
    assert (len(made), made.device.type, made.dtype) == (2, "remote", dtype)
    assert pickle.loads(pickle.dumps(kind)) is kind


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_type_refuses_what_is_elsewhere() -> None:
    kind = torch.remote.FloatStorage
    assert kind([1.0, 2.0]).tolist() == [1.0, 2.0]
    with pytest.raises(RuntimeError, match="from_buffer: Not available for remote storage"):
        kind.from_buffer(bytes(8), "native")
    with pytest.raises(RuntimeError, match="must be remote, but got cpu"):
        kind(wrap_storage=torch.UntypedStorage(4))
