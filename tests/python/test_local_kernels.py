"""Triton kernels and CUDA source run on this machine: a launch with a remote tensor is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import assert_runs

pytestmark = pytest.mark.slow

WAY_OUT = r"operators.*serve --library"

# The part of Triton that a launch needs; the CPU build of PyTorch comes without it.
JIT = """
class KernelInterface:
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(grid=grid, warmup=False, *args, **kwargs)

class JITFunction(KernelInterface):
    def run(self, *args, grid, warmup, **kwargs):
        return ("launched", grid)
"""

LAUNCH = """
    import sys
    sys.path.insert(0, {folder!r})
    {first}
    {second}
    from triton.runtime.jit import JITFunction
    kernel, x = JITFunction(), torch.ones(2, device="remote")
    print(kernel[(1,)](torch.ones(2), 3, size=2))
    for call in (lambda: kernel[(1,)](x, 3), lambda: kernel[(1,)](torch.ones(2), out=x)):
        try:
            call()
        except NotImplementedError as error:
            print(error)
    """


@pytest.fixture
def triton(tmp_path: Path) -> str:
    """A folder to import it from."""
    package = tmp_path / "triton" / "runtime"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "jit.py").write_text(JIT)
    return str(tmp_path)


@pytest.mark.parametrize("triton_is_first", [True, False])
def test_a_triton_kernel_refuses_a_remote_tensor(triton: str, triton_is_first: bool) -> None:
    imports = ["import triton.runtime.jit", "import torch, torch_remote"]
    first, second = imports if triton_is_first else imports[::-1]
    code = LAUNCH.format(folder=triton, first=first, second=second)
    launched, *refused = assert_runs(code).splitlines()
    assert launched == "('launched', (1,))"
    assert len(refused) == 2
    for message in refused:
        assert "A Triton kernel runs on this machine" in message
        assert "remote:0" in message
        assert "serve --library" in message


def test_a_jiterator_kernel_refuses_a_remote_tensor() -> None:
    source = "template <typename T> T twice(T x) { return x + x; }"
    twice = torch.cuda.jiterator._create_jit_fn(source)
    with pytest.raises(NotImplementedError, match=WAY_OUT):
        twice(torch.ones(2, device="remote"))
    if not torch.cuda.is_available():
        with pytest.raises(AssertionError, match="Jiterator"):  # PyTorch's error for other tensors
            twice(torch.ones(2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA source has a device to run on here")
def test_cuda_source_without_a_cuda_device_is_refused(tmp_path: Path) -> None:
    extension = pytest.importorskip("torch.utils.cpp_extension")
    source = tmp_path / "twice.cu"
    source.write_text("__global__ void twice(float* x) { *x *= 2; }")
    with pytest.raises(NotImplementedError, match=WAY_OUT):
        extension.load_inline(
            "twice", cpp_sources="", cuda_sources=source.read_text(), build_directory=str(tmp_path)
        )
    with pytest.raises(NotImplementedError, match=WAY_OUT):
        extension.load("twice", [str(source)], build_directory=str(tmp_path))
