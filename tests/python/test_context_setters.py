"""Every setter of PyTorch is mirrored to the server, or listed here with the reason why not."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import types
from pathlib import Path

import torch
import torch.backends

from torch_remote import _C


def names(text: str) -> list[str]:
    return text.split()


_CLIENT = "acts in the client, before a call is made"
_MESSAGES = "changes what is printed or warned of, no result"
_PRIVATE = (
    "of torch's own machinery in this process (compiler, modes, workers), no setting of results"
)
_SPARSE = "sparse tensors are not carried"
_QUANTIZED = "quantized tensors are not carried"
_OTHER = "for another kind of device (ROCm, XPU, mobile), which no server has"
_SPEED = "a cache or memory size, no result; and a torch built with CUDA only"

MIRRORED_IN_C = {
    "setFlushDenormal": ["flush_denormal"],
    "setUserEnabledCuDNN": ["cudnn_enabled"],
    "setUserEnabledMkldnn": ["mkldnn_enabled"],
    "setBenchmarkCuDNN": ["cudnn_benchmark"],
    "setBenchmarkLimitCuDNN": ["cudnn_benchmark_limit"],
    "setDeterministicCuDNN": ["cudnn_deterministic"],
    "setDeterministicMkldnn": ["mkldnn_deterministic"],
    "setUserEnabledNNPACK": ["nnpack_enabled"],
    "setCuDNNDepthwiseKernel": ["cudnn_depthwise"],
    "setSDPPriorityOrder": ["sdp_order"],
    "setSDPUseFlash": ["flash_sdp"],
    "setSDPUseMemEfficient": ["efficient_sdp"],
    "setSDPUseMath": ["math_sdp"],
    "setSDPUseCuDNN": ["cudnn_sdp"],
    "setSDPUseOverrideable": ["overrideable_sdp"],
    "setAllowFP16BF16ReductionMathSDP": ["math_sdp_reduction"],
    "setLinalgPreferredBackend": ["linalg_backend"],
    "setBlasPreferredBackend": ["blas_backend"],
    "setDeterministicAlgorithms": ["deterministic"],
    "setDeterministicFillUninitializedMemory": ["fill_uninitialized"],
    "setFloat32MatmulPrecision": [
        "matmul_precision",
        "cuda_matmul_precision",
        "mkldnn_matmul_precision",
    ],
    "setFloat32Precision": [
        "precision",
        *(f"cuda_{part}precision" for part in ("", "conv_", "rnn_", "matmul_")),
        *(f"mkldnn_{part}precision" for part in ("", "conv_", "rnn_", "matmul_")),
    ],
    "setAllowTF32CuDNN": ["cudnn_tf32", "cuda_conv_precision", "cuda_rnn_precision"],
    "setAllowTF32CuBLAS": ["matmul_precision", "cuda_matmul_precision"],
    "setAllowFP16ReductionCuBLAS": ["fp16_reduction"],
    "setAllowBF16ReductionCuBLAS": ["bf16_reduction"],
    "setAllowFP16AccumulationCuBLAS": ["fp16_accumulation"],
    "setAllowFP16ReductionCPU": ["fp16_reduction_cpu"],
    "_setSMCarveout_EXPERIMENTAL": ["sm_carveout"],
}
NOT_MIRRORED_IN_C = {
    "setImmediateMiopen": _OTHER,
    "setROCmFAPreferredBackend": _OTHER,
    "setAllowTF32OneDNN": _OTHER,
    "setReleaseWeightsWhenPrepacking": _OTHER,
    "setDefaultMobileCPUAllocator": _OTHER,
    "unsetDefaultMobileCPUAllocator": _OTHER,
    "setSDPUseFA3": "its kernels are registered by Python in one process; a server has no Python",
    "setQEngine": _QUANTIZED,
    "setCheckSparseTensorInvariants": _SPARSE,
    "setDisplayVmapFallbackWarnings": _MESSAGES,
    "setWarnOnAccumulateGradStreamMismatch": _MESSAGES,
    "setOverrideStaleCaptureStream": "for CUDA graphs, which are not captured remotely",
}
# Settings that are not in at::Context.
ELSEWHERE_IN_C = {"threads": "ATen/Parallel.h", "default_dtype": "c10/core/DefaultDtype.h"}


def setters_in_the_header() -> set[str]:
    header = Path(torch.__file__).parent / "include" / "ATen" / "Context.h"
    return set(re.findall(r"(?:void|bool) (_?(?:un)?set[A-Z]\w*)\(", header.read_text()))


def test_every_setter_of_at_context_is_mirrored_or_listed_with_a_reason() -> None:
    found = setters_in_the_header()
    assert len(found) > 30
    assert found - {*MIRRORED_IN_C} - {*NOT_MIRRORED_IN_C} == set()
    assert not {*MIRRORED_IN_C} & {*NOT_MIRRORED_IN_C}


def test_every_setting_has_a_setter_in_the_list() -> None:
    listed = {name for each in MIRRORED_IN_C.values() for name in each}
    assert {*_C.context()} == listed | {*ELSEWHERE_IN_C}


MIRRORED_IN_PYTHON = names("""
    _set_blas_preferred_backend _set_cpu_allow_fp16_reduced_precision_reduction
    _set_cublas_allow_bf16_reduced_precision_reduction _set_cublas_allow_fp16_accumulation
    _set_cublas_allow_fp16_reduced_precision_reduction _set_cublas_allow_tf32 _set_cudnn_allow_tf32
    _set_cudnn_benchmark _set_cudnn_depthwise_kernel _set_cudnn_deterministic _set_cudnn_enabled
    _set_default_dtype _set_default_tensor_type _set_deterministic_algorithms
    _set_deterministic_fill_uninitialized_memory _set_float32_matmul_precision
    _set_fp32_precision_setter _set_linalg_preferred_backend _set_math_sdp_allow_fp16_bf16_reduction
    _set_mkldnn_deterministic _set_mkldnn_enabled _set_nnpack_enabled _set_sdp_priority_order
    _set_sdp_use_cudnn _set_sdp_use_flash _set_sdp_use_math _set_sdp_use_mem_efficient
    _set_sdp_use_overrideable _set_sm_carveout_experimental set_flush_denormal set_num_threads
    set_default_dtype set_default_tensor_type set_deterministic_debug_mode
    set_float32_matmul_precision use_deterministic_algorithms
    backends.fp32_precision backends.cuda.matmul.allow_tf32
    backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    backends.cuda.matmul.allow_fp16_accumulation backends.cuda.matmul.fp32_precision
    backends.cuda.allow_fp16_bf16_reduction_math_sdp backends.cuda.enable_cudnn_sdp
    backends.cuda.enable_flash_sdp backends.cuda.enable_math_sdp
    backends.cuda.enable_mem_efficient_sdp backends.cuda.preferred_blas_library
    backends.cuda.preferred_linalg_library backends.cudnn.allow_tf32 backends.cudnn.benchmark
    backends.cudnn.benchmark_limit backends.cudnn.conv.fp32_precision
    backends.cudnn.rnn.fp32_precision backends.cudnn.depthwise_kernel backends.cudnn.deterministic
    backends.cudnn.enabled backends.cudnn.fp32_precision backends.cudnn.set_flags
    backends.mkldnn.conv.fp32_precision backends.mkldnn.rnn.fp32_precision
    backends.mkldnn.matmul.fp32_precision backends.mkldnn.deterministic backends.mkldnn.enabled
    backends.mkldnn.fp32_precision backends.mkldnn.set_flags backends.nnpack.set_flags
""")
NOT_MIRRORED_IN_PYTHON = {
    _CLIENT: """
        _set_autograd_fallback_mode _set_conj _set_fwd_grad_enabled _set_grad_enabled _set_neg
        _set_multithreading_enabled _set_view_replay_enabled _set_grad_layout_enforcement_enabled
        set_anomaly_enabled set_autocast_cache_enabled set_autocast_cpu_dtype
        set_autocast_cpu_enabled set_autocast_dtype set_autocast_enabled set_autocast_gpu_dtype
        set_autocast_ipu_dtype set_autocast_ipu_enabled set_autocast_xla_dtype
        set_autocast_xla_enabled set_default_device set_grad_enabled set_rng_state
        _set_backcompat_broadcast_warn _set_backcompat_keepdim_warn
        backends.mha.set_fastpath_enabled backends.opt_einsum.set_flags
        backends.opt_einsum.enabled backends.opt_einsum.strategy
        backends.python_native.enable_dispatch_keys backends.python_native.enable_operations
    """,
    _MESSAGES: """
        _set_print_stack_traces_on_fatal_signal _set_should_use_format_with_string_table
        _set_warnAlways _set_warn_on_accumulate_grad_stream_mismatch set_printoptions
        set_warn_always
    """,
    _PRIVATE: """
        _set_cached_tensors_enabled _set_dispatch_mode _set_dtensor_allow_implicit_replication
        _set_generator_metaclass _set_graph_exec_group _set_graph_executor_optimize
        _set_meta_in_tls_dispatch_include _set_only_lift_cpu_tensors
        _set_skip_next_torch_function _set_tensor_metadata _set_thread_name
        _set_throw_on_mutable_data_ptr _set_torch_function_state _set_tracing_state
        _set_value_trace _set_warn_deprecated_on_mutable_data_ptr _set_worker_pids
        _set_worker_signal_handlers set_num_interop_threads
    """,
    _SPARSE: "_set_check_sparse_tensor_invariants",
    _QUANTIZED: """
        _set_qengine backends.quantized.engine backends.quantized.supported_engines
        backends.xnnpack.enabled
    """,
    _OTHER: """
        _set_default_mobile_cpu_allocator _set_miopen_immediate _set_onednn_allow_tf32
        _set_rocm_fa_preferred_backend backends.cuda.preferred_rocm_fa_library
        backends.miopen.immediate backends.miopen.set_flags backends.mkldnn.allow_tf32
    """,
    _SPEED: """
        backends.cuda.blas_workspace_size backends.cuda.cublas_workspace_size
        backends.cuda.cublaslt_workspace_size
    """,
    NOT_MIRRORED_IN_C["setSDPUseFA3"]: "_set_sdp_use_fa3",
    NOT_MIRRORED_IN_C["setOverrideStaleCaptureStream"]: "_set_override_stale_capture_stream",
}
_LOOKS_LIKE_A_SETTER = re.compile(r"set_|enable_|preferred_|allow_|\w+_workspace_size$")


def _settings_of_backend(module: object, path: str) -> set[str]:
    """Properties and functions of a module of torch.backends that set something."""
    found = set()
    for name in {*dir(module), *dir(type(module))} - {*dir(types.ModuleType)}:
        value = inspect.getattr_static(module, name, None)
        if isinstance(value, types.ModuleType) and value.__name__ == f"torch.{path}.{name}":
            found |= _settings_of_backend(value, f"{path}.{name}")
        kind = type(value).__name__
        if kind == "_FP32Precision":
            found.add(f"{path}.{name}.fp32_precision")
            continue
        is_property = inspect.isdatadescriptor(value) and getattr(value, "fset", True) is not None
        if is_property or (callable(value) and _LOOKS_LIKE_A_SETTER.match(name)):
            found.add(f"{path}.{name}")
    return found


def setters_in_python() -> set[str]:
    found = {name for name in dir(torch._C) if re.match(r"_?set_", name)}
    found |= {name for name in dir(torch) if re.match(r"set_|use_deterministic", name)}
    found.add("backends.fp32_precision")
    matmul = type(torch.backends.cuda.matmul)
    found |= {
        f"backends.cuda.matmul.{name}"
        for name in re.findall(r'name == "(\w+)"', inspect.getsource(matmul.__setattr__))
    }
    for each in pkgutil.iter_modules(torch.backends.__path__):
        path = f"backends.{each.name}"
        module = importlib.import_module(f"torch.{path}")
        # A stand-in and the module that it hides.
        for each_module in {module, getattr(module, "m", module)}:
            found |= _settings_of_backend(each_module, path)
    return found


def test_every_setter_in_python_is_mirrored_or_listed_with_a_reason() -> None:
    not_mirrored = {name for each in NOT_MIRRORED_IN_PYTHON.values() for name in names(each)}
    found = setters_in_python()
    assert len(found) > 100
    assert found - {*MIRRORED_IN_PYTHON} - not_mirrored == set()
    assert not {*MIRRORED_IN_PYTHON} & not_mirrored
