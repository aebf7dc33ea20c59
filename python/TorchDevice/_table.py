"""Every public name of `torch.cuda`, and what becomes of it while something else stands in.

KEPT      types, modules and constants that need no CUDA
ANSWERED  attributes of the target (`_target.py`), which know the device in use
REFUSED   NotImplementedError, with what to use instead

`tests/python/test_redirect_masquerade.py` compares the table with `dir(torch.cuda)`.
"""

from __future__ import annotations


def words(text: str) -> set[str]:
    return set(text.split())


KEPT = words(
    """
    AcceleratorError Any Callable CudaError DEVICE_REQUIREMENT DeferredCudaCallError Device
    NewType Optional OutOfMemoryError PYTORCH_RELEASES_CODE_CC TYPE_CHECKING cast classproperty
    cudaStatus has_half has_magma importlib lru_cache os platform threading torch traceback
    warnings BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage
    ComplexFloatStorage DoubleStorage FloatStorage HalfStorage IntStorage LongStorage
    ShortStorage BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor
    HalfTensor IntTensor LongTensor ShortTensor amp gds graphs green_contexts jiterator memory
    nccl nvtx profiler random sparse streams tunable
    """
)

ANSWERED = words(
    """
    is_available device_count current_device set_device device device_of synchronize init
    is_initialized can_device_access_peer ipc_collect get_device_name get_device_capability
    get_device_properties is_bf16_supported is_tf32_supported get_arch_list get_gencode_flags
    empty_cache memory_allocated max_memory_allocated memory_reserved max_memory_reserved
    memory_cached max_memory_cached memory_stats memory_stats_as_nested_dict memory_summary
    mem_get_info reset_peak_memory_stats reset_accumulated_memory_stats
    reset_max_memory_allocated reset_max_memory_cached host_memory_stats
    host_memory_stats_as_nested_dict reset_peak_host_memory_stats
    reset_accumulated_host_memory_stats device_memory_used set_per_process_memory_fraction
    get_per_process_memory_fraction get_allocator_backend manual_seed manual_seed_all seed
    seed_all initial_seed get_rng_state set_rng_state get_rng_state_all set_rng_state_all
    default_generators Stream Event StreamContext stream current_stream default_stream
    set_stream CUDAGraph graph graph_pool_handle make_graphed_callables
    is_current_stream_capturing get_sync_debug_mode set_sync_debug_mode caching_allocator_enable
    cudart check_error memory_snapshot utilization temperature power_draw memory_usage
    clock_rate list_gpu_processes
    """
)

REFUSED = {
    "CUDAPluggableAllocator": "the memory of the device in use has its own allocator",
    "ExternalStream": "make a stream with torch.cuda.Stream()",
    "GreenContext": "there are no parts of a CUDA device here; use a stream",
    "MemPool": "the memory of the device in use has one pool",
    "caching_allocator_alloc": "allocate a tensor with torch.empty()",
    "caching_allocator_delete": "delete the tensor",
    "caching_allocator_disabled": "the memory of the device in use has its own allocator",
    "change_current_allocator": "the memory of the device in use has its own allocator",
    "current_blas_handle": "there is no cuBLAS here; use torch.mm() and the like",
    "current_solver_handle": "there is no cuSOLVER here; use torch.linalg",
    "get_stream_from_external": "make a stream with torch.cuda.Stream()",
    "use_mem_pool": "the memory of the device in use has one pool",
}

# In `torch.cuda.<module>`, besides the answers that it has too.
_NCCL = "there is no NCCL here; use torch.distributed"
REFUSED_BELOW = {
    "nccl": dict.fromkeys(
        words("version unique_id init_rank all_reduce reduce broadcast all_gather reduce_scatter"),
        _NCCL,
    ),
    "jiterator": {
        "_create_jit_fn": "CUDA source does not run here; write the function with torch operators",
        "_create_multi_output_jit_fn": "CUDA source does not run here; use torch operators",
    },
}
# Private names of torch.cuda.memory that programs call to find what fills the memory.
SNAPSHOTS = words(
    """
    _record_memory_history _snapshot _dump_snapshot _save_segment_usage _save_memory_usage
    """
)
KERNELS = "CUDA source does not run on this device; write it with torch operators, or torch.compile"
