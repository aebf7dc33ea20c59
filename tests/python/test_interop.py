"""Interfaces to memory in this process: refused with a sentence that says what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch


def test_dlpack_says_what_to_do() -> None:
    x = torch.ones(2, device="remote")
    for share in (
        torch.from_dlpack,
        torch.utils.dlpack.to_dlpack,
        np.from_dlpack,
        lambda t: t.__dlpack__(),
        lambda t: t.__dlpack_device__(),
    ):
        with pytest.raises(BufferError, match=r"remote:0 .* use tensor\.cpu\(\)"):
            share(x)
    assert torch.from_dlpack(x.cpu()).tolist() == [1, 1]


def test_the_cuda_array_interface_says_what_to_do_and_is_absent() -> None:
    x = torch.ones(2, device="remote")
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match=r"remote:0 .* use tensor\.cpu\(\)"):
        x.__cuda_array_interface__  # noqa: B018
    assert "__cuda_array_interface__" not in dir(x)
    with pytest.raises(AttributeError, match="on non-CUDA tensor"):
        torch.ones(2).__cuda_array_interface__  # noqa: B018


def test_numpy_says_what_to_do() -> None:
    x = torch.ones(2, device="remote", requires_grad=True)
    for convert in (lambda t: t.detach().numpy(), lambda t: np.asarray(t.detach())):
        with pytest.raises(TypeError, match=r"remote:0 .* Use Tensor\.cpu\(\)"):
            convert(x)
    assert x.numpy(force=True).tolist() == [1, 1] and x.tolist() == [1, 1]


def test_sharing_memory_with_processes_is_a_no_op_as_with_cuda() -> None:
    model = torch.nn.Linear(2, 2).to("remote")
    assert model.share_memory() is model and model.weight.is_shared()


def test_a_python_function_for_each_element_is_refused_with_what_to_do() -> None:
    x, y = torch.ones(2, device="remote"), torch.ones(2)
    calls = {
        "apply_": lambda x, y: x.apply_(lambda a: a + 1),
        "map_": lambda x, y: x.map_(y, lambda a, b: a + b),
        "map2_": lambda x, y: x.map2_(y, y, lambda a, b, c: a + b + c),
    }
    for name, call in calls.items():
        for other in (x, y):
            with pytest.raises(TypeError, match=rf"{name} is only .*tensor\.cpu\(\)\.{name}"):
                call(x, other)
    for name in ("map_", "map2_"):  # a tensor of the CPU is changed by one that is not
        with pytest.raises(TypeError, match=rf"{name} is only .* on remote:0"):
            calls[name](y, x)
    assert [call(y.clone(), y).tolist() for call in calls.values()] == [[2, 2], [2, 2], [3, 3]]
    assert x.tolist() == [1, 1]


def test_the_bytes_of_a_remote_storage_are_not_swapped_here() -> None:
    x, y = torch.ones(2, device="remote"), torch.ones(2)
    with pytest.raises(
        NotImplementedError, match=r"byteswap\(\) .* on remote:0; use storage\.copy_"
    ):
        x.untyped_storage().byteswap(torch.float32)
    assert x.tolist() == [1, 1]
    y.untyped_storage().byteswap(torch.float32)
    y.untyped_storage().byteswap(torch.float32)
    assert y.tolist() == [1, 1]
