"""A training script for CUDA, as people write them: it knows nothing of torch-remote.

    python -c 'import TorchDevice, runpy; runpy.run_path("examples/cuda_training.py")'

runs it on the accelerator there is. AMP=1 trains with autocast and a GradScaler.
"""

import os
import tempfile
from array import array
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

AMP = os.environ.get("AMP") == "1"


def make_loader() -> DataLoader:
    samples = array("f", (-1 + index / 127.5 for index in range(256)))
    features = torch.frombuffer(samples, dtype=torch.float32).reshape(64, 4)
    labels = (features.sum(dim=1) > 0).long()
    shuffled = torch.Generator().manual_seed(1)
    return DataLoader(
        TensorDataset(features, labels),
        batch_size=16,
        shuffle=True,
        pin_memory=True,
        generator=shuffled,
    )


def main() -> None:
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    print("device:", torch.cuda.get_device_name(0), torch.cuda.device_count())

    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    scaler = torch.amp.GradScaler("cuda", enabled=AMP)
    loss_of = nn.CrossEntropyLoss().cuda()

    copies = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.reset_peak_memory_stats()
    start.record()
    for epoch in range(3):
        for features, labels in make_loader():
            with torch.cuda.stream(copies):
                features = features.cuda(non_blocking=True)
                labels = labels.to(device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(copies)
            features.record_stream(torch.cuda.current_stream())
            with torch.autocast("cuda", dtype=torch.float16, enabled=AMP):
                loss = loss_of(model(features), labels)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.9g}")
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0
    assert torch.cuda.max_memory_allocated() > 0

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        state = torch.load(file, map_location="cuda")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    model.eval()
    with torch.no_grad():
        scores = model(torch.ones(1, 4, device="cuda")).softmax(dim=1)
    print("scores", [f"{score:.9g}" for score in scores.cpu().tolist()[0]])
    print("on", next(model.parameters()).device.type)
    torch.cuda.empty_cache()


if __name__ in ("__main__", "<run_path>"):
    main()
