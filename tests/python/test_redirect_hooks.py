"""What TorchDevice leaves as it is, and what works under it: the errors of others, each a test."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections import Counter, OrderedDict, defaultdict
from typing import Any, ClassVar, Optional

import numpy as np
import pytest
import torch
from redirecting import TARGETS, redirected

import TorchDevice


def test_every_constructor_of_torch_follows(used: str) -> None:
    shapes: dict[str, Any] = {
        "arange": (3,), "eye": (2,), "full": ((2,), 1.0), "linspace": (0, 1, 3), "tensor": ([1.0],),
        "logspace": (0, 1, 3), "randint": (3, (2,)), "randperm": (3,), "tril_indices": (2, 2),
        "triu_indices": (2, 2), "scalar_tensor": (1.0,), "as_tensor": ([1.0],), "asarray": ([1.0],),
        "empty_strided": ((2,), (1,)), "empty_permuted": ((2, 2), (0, 1)), "range": (0, 2),
        "sparse_coo_tensor": ([[0]], [1.0], (2,)), "normal": (0.0, 1.0, (2,)),
        "sparse_csr_tensor": ([0, 1], [0], [1.0], (1, 1)),
    }  # fmt: skip
    simple = (
        "empty ones zeros rand randn bartlett_window blackman_window hann_window hamming_window"
    )
    calls = {**dict.fromkeys(simple.split(), (3,)), **shapes}
    for name, args in calls.items():
        for options in ({}, {"device": "cuda"}, {"device": torch.device("cuda", 0)}):
            made = getattr(torch, name)(*args, **options)
            assert str(made.device) == used, (name, options)
    assert str(torch.fft.fftfreq(4, device="cuda").device) == used
    assert str(torch.fft.rfftfreq(4).device) == used
    nested = torch.nested.nested_tensor([[1.0]], layout=torch.jagged, device="cuda")
    assert str(nested.device) == used


def test_legacy_constructors_follow(used: str) -> None:
    assert str(torch.Tensor(2, 3).device) == used
    assert torch.Tensor([1.0, 2.0]).tolist() == [1.0, 2.0]
    assert str(torch.Tensor([1.0], device="cuda").device) == used
    assert str(torch.FloatTensor(2, 3).device) == used
    made = torch.cuda.HalfTensor([1.0, 2.0])
    assert (str(made.device), made.dtype, made.tolist()) == (used, torch.float16, [1.0, 2.0])
    source = torch.from_numpy(np.ones(2, dtype=np.float32))
    assert torch.Tensor(source).data_ptr() == source.data_ptr()


def test_types_of_cuda_have_the_tensors_of_the_accelerator(remote: str) -> None:
    x = torch.ones(2, device="cuda")
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.HalfTensor)
    assert isinstance(x.half(), torch.cuda.HalfTensor)
    assert isinstance(x.to_sparse(), torch.cuda.sparse.FloatTensor)
    assert not isinstance(x.to_sparse(), torch.cuda.FloatTensor)
    assert not isinstance(torch.from_numpy(np.ones(2, dtype=np.float32)), torch.cuda.FloatTensor)
    assert x.type() == "torch.remote.FloatTensor"
    with redirected("remote", read_as="cuda"):
        assert x.type() == "torch.cuda.FloatTensor"
        assert x.half().to_sparse().type() == "torch.cuda.sparse.HalfTensor"
        assert x.type(x.half().type()).dtype == torch.float16
    with redirected("cpu"):
        assert not isinstance(torch.ones(2, device="cuda"), torch.cuda.FloatTensor)


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize("policy", ["full", "foreign"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_default_type_of_cuda_means_the_accelerator(target: str, policy: str) -> None:
    with redirected(target, policy) as used:
        for kind in (torch.cuda.DoubleTensor, "torch.cuda.DoubleTensor"):
            torch.set_default_tensor_type(kind)
            made = (
                torch.zeros(2),
                torch.tensor([1.0]),
                torch.Tensor(2),
                torch.nn.Linear(1, 1).bias,
            )
            assert {(str(each.device), each.dtype) for each in made} == {(used, torch.float64)}
            torch.cuda.set_device(0)
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device="cuda:7")  # counts the devices anew
            assert str(torch.zeros(2).device) == used
            there = used if policy == "full" else "cpu"
            assert str(torch.zeros(2, device="cpu").device) == there
            torch.set_default_tensor_type(torch.FloatTensor)
            assert (str(torch.zeros(2).device), torch.zeros(2).dtype) == (there, torch.float32)


CPP = {device: torch.device(device) for device in ("cuda", "cuda:0")}  # made without a redirect


@pytest.mark.parametrize("device", CPP)
def test_cpp_callers_get_the_accelerator(used: str, device: str) -> None:
    x = torch.arange(3.0)
    moved = torch.ops.aten.to.device(x, CPP[device], torch.float64)
    assert (str(moved.device), moved.dtype, moved.tolist()) == (used, torch.float64, [0, 1, 2])
    assert str(torch.ops.aten._to_copy(x, device=CPP[device]).device) == used
    assert str(torch.ops.aten.zeros([2], device=CPP[device]).device) == used
    assert str(torch.ops.aten.randperm(3, device=CPP[device]).device) == used
    with pytest.raises(RuntimeError, match=r"cuda|CUDA"):
        TorchDevice.disable()
        torch.ops.aten.to.device(torch.ones(1), CPP[device], torch.float64)


def test_keywords_that_a_subclass_keeps_or_changes_are_its_own(used: str) -> None:
    seen: list[dict[str, Any]] = []

    class Keeps(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(kwargs)
            kwargs["seen"] = kwargs.pop("device")
            return 1

    mine = torch.ones(2).as_subclass(Keeps)
    for _ in range(3):
        assert torch.zeros_like(mine, device="cuda") == 1
        assert str(torch.zeros(2, device="cuda").device) == used
    assert [str(each["seen"]) for each in seen] == [used] * 3
    assert len({id(each) for each in seen}) == 3


def test_what_follows_a_tensor_keeps_its_device(remote: str) -> None:
    host = torch.from_numpy(np.ones(3, dtype=np.float32))
    assert host.device.type == "cpu"
    assert torch.zeros_like(host).device.type == "cpu"
    assert host.new_zeros(2).device.type == "cpu"
    assert torch.tensor(host.clone()).device.type == "cpu"
    assert torch.as_tensor(host) is host
    assert str(torch.zeros_like(host, device="cuda").device) == remote
    assert str(host.new_ones(2, device="cuda").device) == remote
    there = host.cuda()
    assert str(torch.empty_like(there).device) == str(there.new_full((2,), 1.0).device) == remote
    assert torch.zeros(3, out=host).device.type == "cpu"


def test_shared_memory_stays_on_the_cpu(remote: str) -> None:
    assert torch.from_numpy(np.ones(2)).device.type == "cpu"
    assert torch.frombuffer(bytearray(8), dtype=torch.float32).device.type == "cpu"
    assert torch.from_dlpack(np.ones(2)).device.type == "cpu"


def test_to_keeps_identity_and_dtype(used: str) -> None:
    x = torch.ones(2, device="cuda")
    assert x.to("cuda") is x
    assert x.cuda() is x
    assert x.cpu().device == x.device
    assert x.to("cuda", torch.float64).dtype == x.to(torch.float64).dtype == torch.float64
    assert x.to(device="cuda", dtype=torch.int32, copy=True).dtype == torch.int32
    assert x.to(x) is x
    module = torch.nn.Linear(2, 2)
    assert module.to(torch.float64).weight.dtype == torch.float64
    assert module.to("cuda", torch.bfloat16).weight.dtype == torch.bfloat16
    assert str(module.cuda().weight.device) == str(module.cpu().weight.device) == used


def test_values_reach_the_host(used: str) -> None:
    x = torch.arange(3.0, device="cuda")
    assert x.cpu().numpy().tolist() == np.asarray(x).tolist() == x.tolist() == [0.0, 1.0, 2.0]
    assert np.asarray(x.detach(), dtype=np.float64).dtype == np.float64
    assert x.numpy(force=True).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.ones(2, device="cuda", requires_grad=True).numpy()


def test_type_means_a_device_and_a_dtype(used: str) -> None:
    x = torch.ones(2)
    for asked in ("torch.cuda.HalfTensor", torch.cuda.HalfTensor, torch.HalfTensor):
        made = x.type(asked)
        assert (str(made.device), made.dtype) == (used, torch.float16)
    assert x.type(torch.float64).dtype == torch.float64


def test_a_generator_decides_where_its_numbers_are_made(remote: str) -> None:
    there, here = torch.Generator("cuda"), torch.Generator()
    assert str(there.device) == remote
    assert here.device.type == "cpu"
    assert there.manual_seed(1) is there
    assert str(torch.randn(2, generator=there).device) == remote
    assert torch.randn(2, generator=here).device.type == "cpu"
    assert torch.manual_seed(3) is torch.default_generator


def test_pinned_memory_is_memory_of_the_host(used: str) -> None:
    host = torch.from_numpy(np.ones(2, dtype=np.float32))
    assert host.pin_memory().device.type == "cpu"
    assert host.pin_memory("cuda").device.type == "cpu"
    assert torch.empty(2, pin_memory=True).device.type == "cpu"
    x = torch.ones(2, device="cuda")
    assert x.pin_memory() is x
    assert str(host.pin_memory().to("cuda", non_blocking=True).device) == used
    assert not host.is_pinned("cuda")
    assert host.pin_memory().is_pinned("cuda") == host.pin_memory().is_pinned()


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_storages_streams_and_events_are_made_there(used: str) -> None:
    assert str(torch.UntypedStorage(4, device="cuda").device) == used
    assert str(torch.UntypedStorage(4).cuda().device) == used
    assert str(torch.cuda.FloatStorage(3).device) == used
    assert str(torch.Stream("cuda").device).split(":")[0] == used.split(":")[0]
    assert isinstance(torch.Event("cuda"), torch.Event)
    assert isinstance(torch.Stream(), torch.Stream)


WRONG: list[Any] = [
    lambda x: x.cuda(foo=1),
    lambda x: x.cuda(0, True, 3, 4),
    lambda x: x.cuda(0, device=0),
    lambda x: x.cpu(foo=1),
    lambda x: x.cpu(torch.contiguous_format),
    lambda x: x.pin_memory(1, 2, 3),
    lambda x: x.is_pinned(foo=3),
    lambda x: x.type("torch.cuda.HalfTensor", foo=1),
    lambda x: x.record_stream(),
    lambda x: x.record_stream(torch.cuda.current_stream(), 1),
    lambda x: torch.get_autocast_dtype(),
    lambda x: torch.is_autocast_enabled("cuda", device_type="cuda"),
]


def test_wrong_arguments_are_refused_as_torch_does(used: str) -> None:
    x = torch.zeros(2)
    for number, call in enumerate(WRONG):
        with pytest.raises((TypeError, RuntimeError)):
            print(f"call {number} of WRONG is not refused:", call(x))
    right = x.type("torch.cuda.HalfTensor", non_blocking=True)
    assert (str(right.device), right.dtype) == (used, torch.float16)
    assert str(x.cuda(None, True, memory_format=torch.preserve_format).device) == used


class Reports(torch.Tensor):  # type: ignore[misc]
    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.seen.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_subclasses_see_the_calls_that_are_made(used: str) -> None:
    class Plain(torch.Tensor):  # type: ignore[misc]
        pass

    for kind in (Reports, Plain):
        x = torch.zeros(2, device="cuda").as_subclass(kind)
        Reports.seen.clear()
        assert x.is_cuda == (used != "cpu")
        moved = [x.cuda(), x.cpu(), x.pin_memory(), x.type("torch.cuda.HalfTensor")]
        values = x.numpy()
        seen = list(Reports.seen)
        assert [type(each) for each in moved] == [kind] * 4
        assert {str(torch.Tensor.device.__get__(each)) for each in moved} == {used}
        assert values.tolist() == [0.0, 0.0]
        expected = ["__get__", "cuda", "cpu", "pin_memory", "type", "numpy"]
        assert seen == (expected if kind is Reports else [])


def test_a_device_that_raises_is_an_error(remote: str) -> None:
    class Raises(torch.Tensor):  # type: ignore[misc]
        @staticmethod
        def __new__(cls, x: torch.Tensor) -> Any:
            return torch.Tensor._make_wrapper_subclass(
                cls, x.shape, dtype=x.dtype, device=x.device, dispatch_device=True
            )

        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, function: Any, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("no device")

    x = Raises(torch.zeros(2))
    with pytest.raises(ValueError, match="no device"):
        x.is_cuda  # noqa: B018
    with pytest.raises(ValueError, match="no device"):
        x.pin_memory()


def test_tables_of_functions_still_find_them() -> None:
    class Table(dict):  # type: ignore[type-arg]
        pass

    tables: list[Any] = [
        {torch.zeros: 1}, Table({torch.zeros: 1}), OrderedDict({torch.zeros: 1, torch.ones: 2}),
        Counter([torch.zeros, torch.zeros]), {torch.zeros}, type("Set", (set,), {})([torch.zeros]),
        defaultdict(int, {torch.zeros: 1}),
    ]  # fmt: skip
    before = [list(each) for each in tables]
    with redirected("cpu"):
        assert all(torch.zeros in each for each in tables)
    assert all(torch.zeros in each for each in tables)
    assert [list(each) for each in tables] == before
    assert tables[3][torch.zeros] == 2


def test_is_cuda_is_true_on_the_accelerator(remote: str) -> None:
    assert torch.ones(1).is_cuda
    assert not torch.from_numpy(np.ones(1)).is_cuda
    with redirected("cpu"):
        assert not torch.ones(1).is_cuda


def test_default_devices_and_meta_are_honoured(used: str) -> None:
    with torch.device("meta"):
        assert torch.zeros(2).device.type == "meta"
        assert torch.nn.Linear(2, 2).weight.device.type == "meta"
    with torch.device("cuda"):
        assert str(torch.zeros(2).device) == used
    torch.set_default_device("cuda")
    try:
        assert str(torch.zeros(2).device) == used
    finally:
        torch.set_default_device(None)
    module = torch.nn.Linear(2, 2, device="meta").to_empty(device="cuda")
    assert str(module.weight.device) == used


def test_fake_tensors_stay_fake(used: str) -> None:
    from torch._subclasses import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(2, device="cuda")
        y = torch.ones(2).to("cuda") + x
    assert isinstance(y, FakeTensor)
    assert str(y.device) == used


def test_annotations_accept_devices(used: str) -> None:
    assert Optional[torch.device] is not None  # noqa: UP045
    union = torch.device | None
    assert isinstance(torch.device("cuda"), union)  # type: ignore[arg-type]


def test_devices_and_tensors_can_be_copied(used: str) -> None:
    device = torch.device("cuda")
    assert copy.deepcopy(device) == device == pickle.loads(pickle.dumps(device))
    x = torch.ones(2, device="cuda", requires_grad=True)
    twin = copy.deepcopy(torch.nn.ParameterList([x]))[0]
    assert twin.device == x.device
    assert pickle.loads(pickle.dumps(x.detach())).device == x.device
