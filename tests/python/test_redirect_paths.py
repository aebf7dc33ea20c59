"""The modules of the original TorchDevice can be imported; most are a table: _paths.py."""

from __future__ import annotations

import importlib
import os
import pickle

import pytest
import torch
from helpers import assert_runs
from redirecting import QUIET, TorchDevice

pytestmark = pytest.mark.slow

_CUDA_STREAMS = "Stream StreamContext current_stream default_stream set_stream stream"
_FIGURES = (
    "max_memory_allocated max_memory_reserved mem_get_info memory_allocated memory_reserved "
    "memory_stats memory_summary reset_peak_memory_stats"
)

# Every path, and names that programs take from it.
PATHS = {
    "core": "device hardware_info logger modules patch tensors",
    "core.device": "DeviceManager TorchDevice cpu_override get_default_device",
    "core.hardware_info": "Hardware core_count cpu_name free_bytes is_remote_configured order "
    "probe resident_bytes total_bytes",
    "core.logger": "Report Site auto_log log_info logger report set_level sites warn_once",
    "core.modules": "module_to_replacement",
    "core.patch": "apply_patches disable enable ensure_patched is_enabled",
    "core.tensors": "tensor_to_replacement",
    "cuda": f"Event is_available device_count synchronize {_CUDA_STREAMS} {_FIGURES}",
    "ops": "autograd events memory nn streams",
    "ops.autograd": "function grad_mode variable",
    "ops.autograd.function": "Function",
    "ops.autograd.grad_mode": "enable_grad inference_mode no_grad set_grad_enabled",
    "ops.autograd.variable": "Variable",
    "ops.events": "cuda mps sync",
    "ops.events.cuda": "Event",
    "ops.events.mps": "Event",
    "ops.events.sync": "synchronize",
    "ops.memory": "management stats",
    "ops.memory.management": "empty_cache memory_budget parse_bytes "
    "set_per_process_memory_fraction",
    "ops.memory.stats": _FIGURES,
    "ops.nn": "Linear Module activation attention containers init layers normalization",
    "ops.nn.activation": "GELU MultiheadAttention ReLU Softmax",
    "ops.nn.attention": "MultiheadAttention scaled_dot_product_attention",
    "ops.nn.containers": "ModuleDict ModuleList ParameterList Sequential",
    "ops.nn.init": "kaiming_normal_ normal_ xavier_uniform_ zeros_",
    "ops.nn.layers": "Conv2d Dropout Embedding LSTM Linear MaxPool2d Transformer",
    "ops.nn.normalization": "BatchNorm2d GroupNorm InstanceNorm1d LayerNorm",
    "ops.streams": "cuda mps sync",
    "ops.streams.cuda": _CUDA_STREAMS,
    "ops.streams.mps": "synchronize",
    "ops.streams.sync": "synchronize",
    "utils": "compile device_utils error_handling profiling type_utils",
    "utils.compile": "compile",
    "utils.device_utils": "get_current_device_type is_cpu_override_active "
    "is_cuda_effectively_available is_mps_effectively_available same_device",
    "utils.error_handling": "cuda_errors is_out_of_memory",
    "utils.profiling": "Measured measure",
    "utils.type_utils": "index_of is_device_like",
}

PROGRAM = """
import {path}
import importlib.util, pickle, sys
module = sys.modules["{path}"]
assert importlib.import_module("{path}") is module is {path}
from {path} import {listed}
from {path} import *
taken = {{name: value for name, value in globals().items() if name in "{names}".split()}}
assert importlib.util.find_spec("{path}") is module.__spec__
for name, value in taken.items():
    assert name in dir(module) and value is getattr(module, name) is not None, name
    by_path = pickle.loads(f"c{path}\\n{{name}}\\n.".encode())  # as an older version wrote it
    assert by_path is value, name
assert module.__spec__.name == module.__name__
print(*sorted(taken))
"""


@pytest.mark.parametrize("path", PATHS)
def test_a_fresh_process_can_import_it(path: str) -> None:
    names = PATHS[path]
    code = PROGRAM.format(path=f"TorchDevice.{path}", names=names, listed=", ".join(names.split()))
    assert assert_runs(code, **QUIET).split() == sorted(names.split())


def test_it_can_be_imported_before_torch() -> None:
    code = "import TorchDevice.ops.nn.layers as layers; print(layers.Linear(2, 3).out_features)"
    assert assert_runs(code, anew=True, **QUIET) == "3"


def test_a_name_is_the_one_that_torch_has() -> None:
    nn = TorchDevice.ops.nn
    assert nn.Linear is nn.layers.Linear is torch.nn.Linear
    assert nn.init.normal_ is torch.nn.init.normal_ and nn.init is not torch.nn.init
    assert TorchDevice.ops.autograd.variable.Variable is torch.autograd.Variable
    assert TorchDevice.TDLogger is importlib.import_module("TorchDevice.core.logger")
    assert TorchDevice.__version__
    assert os.environ.get("TORCHDEVICE_LOG_LEVEL") == "ERROR"


def test_a_name_answers_for_the_device_in_use(remote: str) -> None:
    assert TorchDevice.ops.memory.stats.memory_allocated is torch.cuda.memory_allocated
    assert isinstance(TorchDevice.cuda.current_stream(), TorchDevice.ops.streams.cuda.Stream)
    assert TorchDevice.cuda.get_device_name() == torch.cuda.get_device_name()
    x = torch.ones(4, device="cuda")
    assert TorchDevice.ops.memory.stats.memory_allocated() >= x.nbytes
    TorchDevice.ops.memory.management.empty_cache()
    TorchDevice.disable()
    assert TorchDevice.cuda.is_available is torch.cuda.is_available


def test_the_helpers_are_pickled() -> None:
    core, utils = TorchDevice.core, TorchDevice.utils
    helpers = (
        core.device.DeviceManager,
        core.modules.module_to_replacement,
        core.patch.apply_patches,
        core.tensors.tensor_to_replacement,
        TorchDevice.ops.memory.management.empty_cache,
        utils.profiling.measure,
        utils.type_utils.is_device_like,
    )
    for helper in helpers:
        assert pickle.loads(pickle.dumps(helper)) is helper


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    for path in ("cuda", "ops", "ops.nn", "ops.nn.layers", "ops.streams.mps"):
        module = importlib.import_module(f"TorchDevice.{path}")
        with pytest.raises(AttributeError, match=rf"'TorchDevice\.{path}' has no .*'no_such_name'"):
            _ = module.no_such_name
    with pytest.raises(ModuleNotFoundError, match=r"TorchDevice\.ops\.no_such_path"):
        importlib.import_module("TorchDevice.ops.no_such_path")


def test_every_path_of_the_table_is_in_this_list() -> None:
    table = importlib.import_module("TorchDevice._paths").PATHS
    assert set(table) <= set(PATHS)
