"""Why a test of PyTorch fails, or does not run, on `remote`, and passes on the CPU."""

from __future__ import annotations

from reports import Difference

# The test goes by the device's name: what is not "cuda" must be as on the CPU.
BY_NAME = "the test expects the CPU's class of what is not named cuda"
# The test knows by the name "cpu" what a CPU's kernel refuses, or calls another operator for it.
IS_CPU = "a CPU server is a CPU"

DIFFERENCES = [
    Difference(r"", "for the CPU only", r"(Only runs|is only supported) on (cpu|CPU)"),
    # @dtypesIfCPU, @dtypesIfCUDA, and operators whose list of dtypes for the CPU is another.
    Difference(r"", "PyTorch makes no such test for a private device", r"^not collected$"),
    Difference(r"", "quantized tensors", r"a remote device holds dense, .*, not quantized"),
    Difference(r"test_upsampling\w+_nonsupported_dtypes\w+_uint8", IS_CPU, r"not raised"),
    Difference(r"int4_mm", IS_CPU, r"int4pack' with .* the 'CPU' backend"),
    Difference(r"TestFFT", IS_CPU, r"(MKL FFT doesn't support|dtype) .*Half"),
    Difference(r"test_view_as_real_complex32", IS_CPU, r"not implemented for 'ComplexHalf'"),
    # A lazy clone is a clone on the server, and its storages have no address that two share.
    Difference(r"test_(lazy_clone|const_data_ptr|parallel_cow)", "copy-on-write"),
    # arange and fftfreq with out=: PyTorch's meta function warns of the resize, not the kernel.
    Difference(
        r"", "the warning has other words", r"does not match .An output with one or more elements"
    ),
    # Of tensors of complex32 the client's factories warn, not the results of calls.
    Difference(r"test_complex_half_experimental_warning", "a factory warns", r"no warning caught"),
    # block_diag and linalg.pinv are one call here, checked as all calls are.
    Difference(r"", "the error has other words", r"on the same device.* does not match"),
    Difference(r"", "DLPack needs memory in this process", r"to share through DLPack"),
    # The list of PyTorch's optimizers; tests/python/test_optimizers.py tests fused=True.
    Difference(r"", "the test has a list of devices", r"is not supported for fused on"),
    # An operator that trusts its caller, or what is in a tensor's bytes: the server refuses it.
    Difference(r"", "refused for a client", r"may not be called by a client"),
    Difference(
        r"test_broadcast_fn_map2?$", "a Python function for each element", r"map2?_ is only"
    ),
    # torch.remote.FloatStorage and torch.remote.FloatTensor, as torch.cuda has them. The last one
    # makes torch.cpu.amp.GradScaler and expects torch.remote's warning of it.
    Difference(r"test_(tensor_storage_type|grad_scaling_state_dict)", BY_NAME),
    Difference(r"test_grad_scaler_deprecated_warning", BY_NAME),
    # test_sort_and_select.py:358: not done if the device's name is "cuda", which refuses it too.
    Difference(r"test_stable_sort_against_numpy", "an index on the CPU, which CUDA refuses too"),
]
