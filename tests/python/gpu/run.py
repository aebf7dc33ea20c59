"""The smoke test for a GPU machine: `remote`, on a CUDA server, computes what local CUDA computes.

    python tests/python/gpu/run.py [--results FOLDER]

Local CUDA and `remote` run in separate processes and save every tensor; the bytes are compared.
With --results, it also measures client time per call and large copies, and writes them there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[3]
STEPS = 5
TIMEOUT_S = 240
SIDES = ("cuda", "remote")
# cuBLAS is deterministic only with a fixed workspace; the embedded server inherits this.
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

Tensors = dict[str, Tensor]


def train(model: nn.Module, inputs: Tensor, targets: Tensor, device: str) -> Tensors:
    """Losses and final parameters of a few steps. Inputs and weights are made on the CPU."""
    model.to(device)
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    tensors = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    return tensors | {"losses": torch.stack(losses).cpu()}


def train_mlp(device: str) -> Tensors:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10))
    return train(model, torch.randn(32, 64), torch.randint(10, (32,)), device)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(dim=1))


def train_transformer(device: str) -> Tensors:
    return train(Classifier(), torch.randn(8, 32, 64), torch.randint(10, (8,)), device)


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 15 * 15, 10),
    )


def train_conv_net(device: str) -> Tensors:
    return train(conv_net(), torch.randn(8, 3, 32, 32), torch.randint(10, (8,)), device)


def train_amp(model: nn.Module, shape: tuple[int, ...], device: str) -> Tensors:
    """Losses, scales and parameters of ten mixed precision steps, one of them with overflow."""
    found = {}
    start = {name: value.clone() for name, value in model.state_dict().items()}
    inputs, targets = torch.randn(shape).to(device), torch.randint(10, shape[:1]).to(device)
    for dtype in (torch.float16, torch.bfloat16):
        model.load_state_dict(start)
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=3)
        history = []
        for step in range(10):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=dtype):
                loss = F.cross_entropy(model(inputs), targets)
            scaler.scale(loss * float("inf") if step == 4 else loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            history += [loss.detach(), torch.tensor(scaler.get_scale(), device=device)]
        tensors = {"history": torch.stack(history), **model.state_dict()}
        found |= {f"{dtype} {name}": value.detach().cpu() for name, value in tensors.items()}
    return found


def train_mlp_with_amp(device: str) -> Tensors:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10))
    return train_amp(model, (32, 64), device)


def train_conv_net_with_amp(device: str) -> Tensors:
    return train_amp(conv_net(), (8, 3, 32, 32), device)


def train_transformer_with_amp(device: str) -> Tensors:
    return train_amp(Classifier(), (8, 32, 64), device)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(32, 48, 2), nn.GRU(48, 32), nn.RNN(32, 32)])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(x.mean(dim=0))


def train_recurrent_with_amp(device: str) -> Tensors:
    """cuDNN's layers. The dtypes of their results are compared too."""
    model = Recurrent()
    found = train_amp(model, (8, 12, 32), device)
    x = torch.randn(12, 8, 32).to(device)
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast(device, dtype=dtype), torch.no_grad():
            found[f"{dtype} of a layer"] = model.layers[0](x)[0].cpu()
    return found


def infer_with_amp(device: str) -> Tensors:
    """Without gradients: transformer layers do not take their fast path under autocast."""
    model = Classifier().to(device).eval()
    x = torch.randn(8, 32, 64).to(device)
    with torch.no_grad(), torch.autocast(device):
        return {"layer": model.layer(x).cpu(), "result": model(x).cpu()}


def attend(device: str, dtype: torch.dtype, width: int, options: dict[str, object]) -> list[Tensor]:
    """Attention's result and the gradients of its inputs."""
    inputs = [torch.randn(2, 4, 24, width).to(device, dtype).requires_grad_() for _ in range(3)]
    options = {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in options.items()
    }
    output = F.scaled_dot_product_attention(*inputs, **options)
    return [output.detach(), *torch.autograd.grad(output.float().square().sum(), inputs)]


def attend_in_all_ways(device: str) -> Tensors:
    """Every kernel that PyTorch chooses from. Most do not accept heads of 20."""
    mask = torch.rand(24, 24) > 0.3
    mask[:, 0] = True
    ways: dict[str, dict[str, object]] = {
        "plain": {},
        "causal": {"is_causal": True},
        "masked": {"attn_mask": mask},
    }
    return {
        f"{way}, {dtype}, {width} wide, {index}": tensor.cpu()
        for way, options in ways.items()
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
        for width in (20, 32)
        for index, tensor in enumerate(attend(device, dtype, width, options))
    }


def attend_between_jagged(device: str) -> Tensors:
    """Sequences of several lengths: flash attention in half precision, math attention in double."""
    found = {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        parts = [torch.randn(length, 64).to(device, dtype) for length in (9, 24, 17)]
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged).requires_grad_()
        heads = jagged.unflatten(-1, [2, 32]).transpose(1, 2)
        output = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).values()
        output.float().square().sum().backward()
        found[f"{dtype}"] = output.detach().cpu()
        found[f"{dtype} gradient"] = jagged.grad.values().cpu()
    return found


def use_sparse(device: str) -> Tensors:
    """Sparse layouts: conversions, products with gradients, embeddings with SparseAdam."""
    found = {}
    dense = torch.randn(48, 64) * (torch.rand(48, 64) > 0.8)
    right = torch.randn(64, 24)
    for layout in (torch.sparse_coo, torch.sparse_csr):
        moved = dense.to(device).to_sparse(layout=layout).requires_grad_()
        factor = right.to(device).requires_grad_()
        product = moved @ factor
        product.square().sum().backward()
        found[f"{layout} product"] = product.detach()
        found[f"{layout} gradient"] = moved.grad.to_dense()
        found[f"{layout} gradient of the factor"] = factor.grad
        found[f"{layout} back"] = moved.detach().cpu().to_dense()
    for layout in (torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        blocks = {} if layout == torch.sparse_csc else {"blocksize": (4, 4)}
        moved = dense.to_sparse(layout=layout, **blocks).to(device)
        found[f"{layout} values"] = moved.values()
        found[f"{layout} dense"] = moved.to_dense()
    embedding = nn.Embedding(100, 16, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        embedding(torch.randint(100, (32,)).to(device)).square().sum().backward()
        optimizer.step()
    found["embedding"] = embedding.weight.detach()
    return {name: tensor.cpu() for name, tensor in found.items()}


def compile_for_three_sizes(device: str) -> Tensors:
    """Batches of changing size: the second size is compiled for any."""
    layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, batch_first=True)
    net = nn.Sequential(layer, nn.RMSNorm(64)).to(device)
    compiled = torch.compile(net, backend="aot_eager")
    found = {}
    for size in (2, 5, 7):
        output = compiled(torch.randn(size, 16, 64).to(device))
        found[f"{size}"] = output.detach().cpu()
        gradients = torch.autograd.grad(output.square().sum(), list(net.parameters()))
        found |= {f"{size} {index}": grad.cpu() for index, grad in enumerate(gradients)}
    return found


def draw(device: str) -> Tensors:
    """Random numbers, from the default generator and from a new one."""
    own = torch.Generator(device).manual_seed(7)
    return {
        "randn": torch.randn(1000, device=device).cpu(),
        "own": torch.rand(1000, device=device, generator=own).cpu(),
        "randperm": torch.randperm(1000, device=device).cpu(),
        "bernoulli": torch.full((1000,), 0.3, device=device).bernoulli().cpu(),
        "state": torch.get_device_module(device).get_rng_state(),
    }


def copy_much(device: str) -> Tensors:
    """Large copies both ways: to a whole tensor, to parts, from pinned and from pageable memory,
    between calls that use the same tensor."""
    size = 64 << 20
    found = {}
    x = torch.zeros(size, dtype=torch.uint8, device=device)
    kept = []
    for i in range(1, 7):
        part = slice(None) if i % 3 == 1 else slice(i << 20, size - (i << 21))
        source = torch.randint(0, 255, (size,), dtype=torch.uint8)[part]
        source = source.pin_memory() if i % 2 else source
        kept.append(source)
        found[f"{i} before"] = x[:: 1 << 12] + 1
        x[part].copy_(source, non_blocking=True)
        found[f"{i} after"] = x[:: 1 << 12] * 2
    local = torch.empty(size, dtype=torch.uint8)
    found["copy_"] = local.copy_(x)
    found["cpu"] = x.cpu()
    found["strided"] = x.view(8192, -1).t().cpu()
    pinned = torch.empty(size, dtype=torch.uint8).pin_memory()
    found["pinned"] = pinned.copy_(x, non_blocking=True)
    torch.get_device_module(device).synchronize()
    torch.get_device_module(device).empty_cache()
    found["after empty_cache"] = x.clone()
    return {name: tensor.cpu() for name, tensor in found.items()}


def describe(device: str) -> Tensors:
    """The device's properties: the server's are CUDA's own."""
    found = torch.get_device_module(device).get_device_properties(0)
    numbers = [found.total_memory, found.major, found.minor, found.multi_processor_count]
    return {"name": torch.tensor(list(found.name.encode())), "numbers": torch.tensor(numbers)}


CASES: dict[str, Callable[[str], Tensors]] = {
    "mlp": train_mlp,
    "transformer": train_transformer,
    "conv_net": train_conv_net,
    "mlp, AMP": train_mlp_with_amp,
    "transformer, AMP": train_transformer_with_amp,
    "conv_net, AMP": train_conv_net_with_amp,
    "recurrent, AMP": train_recurrent_with_amp,
    "inference, AMP": infer_with_amp,
    "attention": attend_in_all_ways,
    "jagged": attend_between_jagged,
    "sparse": use_sparse,
    "compiled": compile_for_three_sizes,
    "random": draw,
    "large_copies": copy_much,
    "properties": describe,
}


def run_side(device: str, path: Path) -> None:
    if device == "remote":
        import torch_remote  # noqa: F401  names the backend
    torch.use_deterministic_algorithms(True)
    results = {}
    for name, case in CASES.items():
        torch.manual_seed(0)
        results[name] = case(device)
    torch.save(results, path)


def start_side(device: str, path: Path) -> None:
    command = [sys.executable, str(Path(__file__)), "--device", device, "--out", str(path)]
    subprocess.run(command, env=os.environ | ENVIRONMENT, check=True, timeout=TIMEOUT_S)


def bytes_of(tensor: Tensor) -> bytes:
    """Its bytes; numpy has no bfloat16."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def differences(want: Tensors, got: Tensors) -> Iterator[str]:
    for name, tensor in want.items():
        if tensor.shape != got[name].shape or tensor.dtype != got[name].dtype:
            yield f"{name}: {got[name].dtype} {tuple(got[name].shape)}"
        elif bytes_of(tensor) != bytes_of(got[name]):
            error = (tensor.double() - got[name].double()).abs().max().item()
            yield f"{name}: other bytes, apart by up to {error:g}"


def compare(sides: tuple[str, str]) -> int:
    """Returns the number of cases that differ."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{index}.pt" for index in range(2)]
        for side, path in zip(sides, paths, strict=True):
            start_side(side, path)
        want, got = map(torch.load, paths)
    failed = 0
    for name in CASES:
        found = list(differences(want[name], got[name]))
        failed += bool(found)
        print(f"{'FAILED' if found else 'passed'} {name}", *found, sep="\n  ")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Training on remote equals training on CUDA.")
    parser.add_argument("--results", type=Path, help="also measure")
    parser.add_argument("--against", default="remote", help="cuda checks the test itself")
    parser.add_argument("--device", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device:
        run_side(options.device, options.out)
        return 0
    failed = compare(("cuda", options.against))
    if options.results:
        for name in ("gpu_calls.py", "gpu_bulk.py"):
            script = ROOT / "benchmarks" / "python" / name
            subprocess.run([sys.executable, str(script), str(options.results)], check=True)
    print(f"{len(CASES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
