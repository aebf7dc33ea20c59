"""TorchDevice on a machine with CUDA: native objects stay, and a hidden GPU is no CUDA.

Each test is a process of its own: torch_remote, which other tests import, breaks local autograd.
"""

from __future__ import annotations

import os
import subprocess
import sys

QUIET = {"TORCHDEVICE_LOG_LEVEL": "ERROR"}


def run(code: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **QUIET, **environment}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_native_cuda_stays_native() -> None:
    code = """
import torch
names = ("Stream", "Event", "synchronize", "is_available", "memory_allocated", "CUDAGraph")
before = [getattr(torch.cuda, name) for name in names]
import TorchDevice
print(all(getattr(torch.cuda, name) is each for name, each in zip(names, before)))
x = torch.ones(2, device="cuda")
print(x.device, torch.ones(2).device, torch.ones(2, device="cpu").device, torch.device("cuda"))
print(torch.ones(2, device="mps").device, x.is_cuda, x.cpu().numpy().tolist())
print(torch.ones(2, device="cpu:-1").device, torch.ones(2, device="cuda").device)
"""
    assert run(code) == [
        "True",
        "cuda:0 cuda:0 cuda:0 cuda",
        "cuda:0 True [1.0, 1.0]",
        "cpu cpu",
    ]


def test_results_of_native_code_are_the_same() -> None:
    code = """
import torch
{}
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
model = torch.nn.Linear(8, 8, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(4, 8, device="cuda")).square().sum()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print(loss.item())
"""
    redirect = 'import TorchDevice; TorchDevice.enable("{}")'
    plain = run(code.format(""))
    assert run(code.format(redirect.format("full"))) == plain
    assert run(code.format(redirect.format("foreign"))) == plain


def test_a_hidden_gpu_is_no_cuda() -> None:
    code = """
import TorchDevice, torch
x = torch.ones(2, device="cuda") + torch.ones(2).cuda() + torch.ones(2).to("cuda")
print(x.device, torch.device("cuda"), torch.Generator("cuda").device, torch.cuda.is_available())
f = torch.jit.CompilationUnit(
    "def f(x):\\n    return x.to('cuda') + torch.ones([2], device='cuda')\\n").f
print(f(x).tolist())
print(torch.compile(lambda x: x + torch.zeros(2, device="cuda"), backend="eager")(x).device)
TorchDevice.disable()
print(torch.device("cuda"))
"""
    assert run(code, CUDA_VISIBLE_DEVICES="") == ["cpu cpu cpu False", "[4.0, 4.0]", "cpu", "cuda"]
