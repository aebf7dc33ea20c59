"""A training script as people write them for several GPUs, for test_launch.py.

    torchrun --nproc-per-node 2 launched_training.py cuda FOLDER          by its environment
    python launched_training.py cuda FOLDER --spawn 2                     by mp.spawn

The first argument is the device: `cuda`, with NCCL, or `remote`, with `import torch_remote`. Each
rank writes what it has seen to FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH, SAMPLES, RANKS = 2, 4, 32, 2


def dataset() -> TensorDataset:
    numbers = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 6, generator=numbers)
    return TensorDataset(inputs, inputs[:, 0] > 0)


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return torch.nn.Sequential(*layers)


def expected_losses() -> list[list[float]]:
    """By rank: the training on the CPU, in one process. Halves and sums of two are exact."""
    model, data = make_model(), dataset()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    samplers = [DistributedSampler(data, RANKS, rank) for rank in range(RANKS)]
    losses: list[list[float]] = [[] for _ in samplers]
    for epoch in range(EPOCHS):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        loaders = [DataLoader(data, BATCH, sampler=sampler) for sampler in samplers]
        for batches in zip(*loaders, strict=True):
            optimizer.zero_grad()
            for rank, (inputs, labels) in enumerate(batches):
                loss = torch.nn.functional.cross_entropy(model(inputs), labels.long())
                (loss / RANKS).backward()
                losses[rank].append(loss.item())
            optimizer.step()
    return losses


def use_every_index(gpu: int) -> None:
    """All of these name the rank's device by its local rank, as programs do."""
    name = torch.cuda.get_device_name(gpu)
    assert name == torch.cuda.get_device_properties(f"cuda:{gpu}").name
    assert name == torch.cuda.get_device_name(torch.device("cuda", gpu))
    assert torch.cuda.get_device_capability(gpu) is not None
    held = torch.ones(1000, device=gpu)
    assert torch.cuda.memory_allocated(gpu) >= held.nbytes
    assert torch.cuda.mem_get_info(gpu)[1] > 0
    torch.cuda.reset_peak_memory_stats(device=gpu)
    torch.cuda.memory_summary(gpu)
    torch.cuda.synchronize(gpu)
    with torch.cuda.device(gpu):
        assert torch.ones(1, device="cuda").device == held.device
    stream = torch.cuda.Stream(device=gpu)
    assert isinstance(stream, torch.cuda.Stream) and stream.device == held.device
    stream.wait_stream(torch.cuda.current_stream(gpu))
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
    torch.cuda.set_rng_state(torch.cuda.get_rng_state(gpu), gpu)
    torch.cuda.can_device_access_peer(0, gpu)
    assert torch.cuda.current_device() == held.device.index
    assert torch.zeros(1).to(gpu).device == torch.zeros(1).cuda(gpu).device == held.device
    assert torch.cuda.device_count() >= 1
    torch.accelerator.set_device_index(gpu)
    torch.accelerator.synchronize(gpu)


def use_collectives(rank: int, gpu: int, device: torch.device) -> None:
    kind = "nccl" if device.type == "cuda" else device.type
    mixed = dist.new_group(backend=f"cpu:gloo,{device.type}:{kind}")
    for group in (None, mixed):
        dist.barrier(group, device_ids=[gpu])
    total = torch.tensor([1.0 + rank], device=device)
    dist.all_reduce(total)
    assert total.item() == 3
    objects: list[Any] = [None] * RANKS
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]


def train(device: torch.device, gpu: int, folder: Path) -> list[float]:
    model = make_model().to(device)
    model = DistributedDataParallel(model, device_ids=[gpu])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=1, pin_memory=True)
    losses = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs = inputs.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels.long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), folder / "model.pt")
    dist.barrier()
    model.load_state_dict(torch.load(folder / "model.pt", map_location=device))
    return losses


def run_rank(gpu: int, options: argparse.Namespace) -> None:
    """One rank. `gpu` is its local rank, as in the examples of PyTorch."""
    folder = Path(options.folder)
    if options.device == "cuda":
        if options.spawn is None:  # torchrun
            gpu %= torch.cuda.device_count()
            assert torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
            assert torch.accelerator.device_count() == torch.cuda.device_count()
        torch.cuda.set_device(gpu)
        backend = "nccl" if dist.is_nccl_available() else "gloo"
    else:
        backend = options.device if options.spawn else None  # None: torch chooses
    torch.ones(1, device=options.device).item()  # uses the server before the ranks have met
    where = {}
    if options.spawn:
        store = dist.TCPStore("127.0.0.1", options.port, is_master=False)
        where = {"store": store, "rank": gpu, "world_size": options.spawn}
    dist.init_process_group(backend, **where)
    rank = dist.get_rank()
    assert (dist.get_world_size(), rank) == (RANKS, gpu)
    if options.device == "cuda":
        device = torch.device(f"cuda:{gpu}")
        use_every_index(gpu)
    else:
        device = torch.device(options.device)
    use_collectives(rank, gpu, device)
    losses = train(device, gpu, folder)
    used = torch.zeros(1, device=device).device
    seen = {"losses": losses, "device": str(used)}
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("folder")
    parser.add_argument("--spawn", type=int)
    options = parser.parse_args()
    if options.spawn is None:
        run_rank(int(os.environ["LOCAL_RANK"]), options)
        return
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    options.port = store.port
    mp.spawn(run_rank, nprocs=options.spawn, args=(options,))


if __name__ in ("__main__", "__mp_main__"):
    import sys

    if "remote" in sys.argv[1:2]:
        import torch_remote  # noqa: F401
if __name__ == "__main__":
    main()
