"""What an acceptance test of TorchDevice found: each test failed before it was mended."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

import pytest
import torch
from helpers import assert_runs, run_python

import torch_remote
import TorchDevice
from TorchDevice.core.device import DeviceManager


def test_a_device_of_the_cpu_can_be_given_to_cuda(used: str) -> None:
    device = torch.device("cuda")
    assert str(torch.zeros(2).cuda(device).device) == used
    assert (
        str(torch.nn.Linear(2, 2).cuda(torch.zeros(1, device="cuda").device).weight.device) == used
    )


def is_overridden_after(call: Any) -> list[bool]:
    found = []
    for _ in range(4):
        call()
        found.append(bool(TorchDevice.cpu_override))
    return found


def test_each_run_of_a_line_toggles_the_override_once(used: str) -> None:
    alternating = [True, False, True, False]
    module = torch.nn.Linear(2, 2)
    assert is_overridden_after(lambda: module.to("cpu:-1")) == alternating
    assert is_overridden_after(lambda: torch.nn.LSTM(2, 2, 2, device="cpu:-1")) == alternating
    assert is_overridden_after(lambda: torch.zeros(1, device="cpu:-1")) == alternating
    assert is_overridden_after(
        lambda: DeviceManager.torch_device_replacement("cpu", -1)
    ) == alternating  # fmt: skip
    try:
        assert is_overridden_after(lambda: torch.set_default_device("cpu:-1")) == alternating
    finally:
        torch.set_default_device(None)


def test_an_exported_program_is_saved_and_loaded(used: str) -> None:
    module = torch.nn.Linear(2, 2).cuda()
    x = torch.ones(1, 2, device="cuda")
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, (x,)), file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(x), module(x))


def test_enabling_again_is_not_noticed_by_other_threads(used: str) -> None:
    function, wrong, stop = torch.cuda.synchronize, [], threading.Event()

    def look() -> None:
        while not stop.is_set():
            device = torch.zeros(1, device="cuda").device
            if str(device) != used or torch.cuda.current_device() != 0:
                wrong.append(device)

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(20):
        TorchDevice.enable(TorchDevice.policy())
    stop.set()
    thread.join()
    assert wrong == []
    assert torch.cuda.synchronize is function


def test_states_of_random_numbers_that_were_moved_are_restored(used: str) -> None:
    states = [state.cpu() for state in torch.cuda.get_rng_state_all()]
    drawn = torch.randn(3, device="cuda")
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(torch.randn(3, device="cuda"), drawn)


def test_under_the_override_torch_cuda_works_for_the_cpu(used: str) -> None:
    with TorchDevice.cpu_override():
        assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).tolist() == [2]
        with torch.cuda.stream(torch.cuda.Stream()):
            assert (torch.ones(1, device="cuda") + 1).device.type == "cpu"
        torch.cuda.Event(enable_timing=True).record()
        torch.cuda.manual_seed(1)
        drawn = torch.randn(2, device="cuda")
        torch.cuda.manual_seed(1)
        assert torch.equal(torch.randn(2, device="cuda"), drawn)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_compiled_code_gets_the_answers_that_the_program_gets(used: str) -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.cuda.is_available() else x + 2

    def device_in_use(x: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()
        with torch.autocast("cuda", enabled=False):
            return x + torch.cuda.current_device() + torch.cuda.is_current_stream_capturing()

    x = torch.zeros(1, device="cuda")
    assert torch.equal(torch.compile(branch, backend="eager")(x), branch(x))
    compiled = torch.compile(device_in_use, backend="eager", fullgraph=used == "cpu")
    assert torch.equal(compiled(x), x)


def test_inductor_compiles_for_the_cpu() -> None:
    code = """
import TorchDevice, torch
print(torch.compile(lambda x: torch.sin(x.to("cuda")) * 2)(torch.zeros(3)).tolist())
"""
    environment = {"TORCHDEVICE_LOG_LEVEL": "ERROR"}
    environment["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"  # one kernel: costs less
    done = run_python(code, **environment)
    assert (done.returncode, done.stdout) == (0, "[0.0, 0.0, 0.0]\n"), done.stderr


def test_autocast_of_functions_and_of_mps(used: str) -> None:
    class Function(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.float32
            return x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    with torch.autocast("cuda"):
        Function.apply(torch.ones(2, device="cuda", dtype=torch.float16))
    x = torch.ones(2, 2, device="cuda")
    with torch.autocast("mps", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16


def test_names_that_did_not_answer(used: str) -> None:
    import TorchDevice.cuda
    from TorchDevice.cuda import Stream

    assert Stream is torch.cuda.Stream
    assert TorchDevice.cuda.is_available() == torch.cuda.is_available()
    assert torch.float16 in torch.cuda.get_amp_supported_dtype()
    assert isinstance(torch.cuda.memory_snapshot(), list)
    torch.cuda.init()
    assert torch.cuda.is_initialized()
    for name in torch.cuda.tunable.__all__:
        with pytest.raises(NotImplementedError, match="tunes"):
            getattr(torch.cuda.tunable, name)()


def test_pinned_copies_of_a_layout_are_made_where_nothing_can_be_pinned() -> None:
    code = """
import TorchDevice, torch
x = torch.ones(2)
print(torch.zeros_like(x, pin_memory=True).device, x.new_empty(2, pin_memory=True).device)
"""
    assert assert_runs(code, TORCHDEVICE_LOG_LEVEL="ERROR").strip() == "cpu cpu"


def test_a_gradient_scaler_keeps_its_branch(used: str) -> None:
    """torch.amp compares with the device mps:0, which is not to be taken for the one in use."""
    before = {(each.api, each.asked) for each in TorchDevice.sites()}
    scaler = torch.amp.GradScaler("cuda")
    weight = torch.ones(2, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    assert weight.grad is not None and weight.grad.tolist() == [1.0, 1.0]
    new = {(each.api, each.asked) for each in TorchDevice.sites()} - before
    assert not any("mps" in asked for _, asked in new)


def test_the_report_has_every_kind_of_call_and_each_line_once(used: str, tmp_path: Any) -> None:
    torch.save(torch.ones(1), tmp_path / "file")
    x = torch.load(tmp_path / "file", map_location="cuda")
    with torch.autocast("cuda"):
        _ = torch.ones(1, device="cuda"), torch.ones(1, device="cuda"), x
    torch.amp.GradScaler("cuda")
    torch.cuda.synchronize()
    here = [each for each in TorchDevice.sites() if each.file == __file__]
    apis = {"torch.load", "torch.autocast", "torch.GradScaler", "torch.cuda.synchronize"}
    assert apis <= {each.api for each in here}
    places = [(each.line, each.api, each.asked, each.used, each.reason) for each in here]
    assert len(places) == len(set(places))


def test_the_report_for_tools_is_returned_too(
    used: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.zeros(1, device="cuda")
    returned = TorchDevice.report(as_json=True)
    assert isinstance(returned, str)
    assert json.loads(returned) == json.loads(capsys.readouterr().out)


def test_empty_variables_are_as_none_and_the_decorator_needs_no_parentheses() -> None:
    code = """
import TorchDevice

@TorchDevice.auto_log
def double(x):
    return 2 * x

print(TorchDevice.policy(), double(2))
"""
    done = run_python(code, TORCHDEVICE_POLICY="", TORCHDEVICE_LOG_LEVEL="")
    assert (done.returncode, done.stdout) == (0, "full 4\n"), done.stderr
    assert "double() is called" in done.stderr


def test_waits_name_the_line_of_the_program(remote: str) -> None:
    with torch_remote.count() as counted:
        torch.cuda.get_device_name()
        torch.cuda.memory_allocated()
    assert counted.syncs
    lines = [each.line for each in torch_remote.waits()]
    assert any(__file__ in line for line in lines)
    assert not any("/TorchDevice/" in line for line in lines)


def test_types_of_sparse_tensors_make_them(used: str) -> None:
    indices, values = torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0])
    for kind in (torch.cuda.sparse.FloatTensor, torch.sparse.FloatTensor):
        made = kind(indices, values, torch.Size([2, 2]))
        assert (str(made.device), made.to_dense().tolist()) == (used, [[0.0, 1.0], [2.0, 0.0]])
        assert kind(2, 3).shape == (2, 3)
        assert kind(indices, values).shape == (2, 2)
    double = torch.cuda.sparse.DoubleTensor(2, 3)
    assert (double.dtype, double.layout) == (torch.float64, torch.sparse_coo)
    assert isinstance(double, torch.cuda.sparse.DoubleTensor) == (used != "cpu")


def test_a_legacy_type_of_a_tensor_shares_its_memory(used: str) -> None:
    x = torch.ones(2)
    shared = [torch.FloatTensor(x)]
    if used != "cpu":  # there x is no tensor of CUDA's, which torch refuses
        shared.append(torch.cuda.FloatTensor(x.cuda()))
    x.add_(1)
    assert all(each.tolist() == [2.0, 2.0] for each in shared)
    with pytest.raises(TypeError) as raised:
        torch.DoubleTensor(x)
    assert "FloatType" not in str(raised.value) or used == "cpu"


def test_functions_of_several_devices_take_indices_that_do_not_exist(used: str) -> None:
    from torch.cuda import comm

    parallel = torch.nn.parallel
    x = torch.arange(8.0, device="cuda").reshape(4, 2).requires_grad_()
    model = torch.nn.Linear(2, 3).cuda()
    expected = model(x).detach().tolist()
    second = torch.device("cuda", 1)
    for ids in ([0, 1], [0, "cuda:1"], [torch.device("cuda:0"), second]):
        copies = comm.broadcast(x.detach(), ids)
        assert [(str(each.device), each.tolist()) for each in copies] == [(used, x.tolist())] * 2
        assert [each.shape for each in comm.scatter(x.detach(), ids)] == [(2, 2)] * 2
        assert len(comm.broadcast_coalesced([x.detach()], ids)) == 2
        chunks = parallel.scatter(x, ids)
        assert [(str(each.device), each.shape) for each in chunks] == [(used, (2, 2))] * 2
        replicas = parallel.replicate(model, ids)
        outputs = parallel.parallel_apply(replicas, chunks, devices=ids)
        for destination in (1, 0, ids[1]):
            y = parallel.gather(outputs, destination)
            assert (str(y.device), y.tolist()) == (used, expected)
        y.sum().backward()
        assert model.weight.grad is not None and model.bias.grad is not None
        assert model.bias.grad.tolist() == [4.0] * 3 and x.grad is not None
        model.bias.grad = None
        whole = parallel.data_parallel(model, x, ids)
        assert (str(whole.device), whole.tolist()) == (used, expected)
        assert parallel.data_parallel(model, x, ids, output_device=ids[1]).tolist() == expected
    assert str(comm.gather([x.detach()] * 2, destination=1).device) == used
    assert comm.gather([x.detach()] * 2, 1, second).shape == (4, 4)
    assert comm.reduce_add([x.detach()] * 2, destination=1).tolist() == (2 * x).tolist()
    ((added,),) = [comm.reduce_add_coalesced([[x.detach()]] * 2, destination=1)]
    assert added.tolist() == (2 * x).tolist()
    with pytest.raises(ValueError, match="invalid size: got 2x2, but expected 4x2"):
        comm.reduce_add([x.detach(), x.detach()[:2]])


def test_functions_of_several_devices_answer(used: str) -> None:
    import torch.cuda.comm

    x = torch.arange(4.0)
    (copy,) = torch.cuda.comm.broadcast(x, devices=[0])
    assert (str(copy.device), copy.tolist()) == (used, x.tolist())
    (chunk,) = torch.cuda.comm.scatter(x, devices=[0])
    assert (str(chunk.device), chunk.tolist()) == (used, x.tolist())
    assert torch.cuda.comm.gather([x, x], destination=0).shape == (8,)
    for destination in ({}, {"destination": 0}):
        added = torch.cuda.comm.reduce_add([copy, chunk], **destination)
        assert added.tolist() == [0.0, 2.0, 4.0, 6.0]
    ((coalesced,),) = torch.cuda.comm.broadcast_coalesced([x], devices=[0])
    assert str(coalesced.device) == used
