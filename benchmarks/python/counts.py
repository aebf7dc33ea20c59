"""Figures that are counts, equal on every machine: CI checks them."""

from __future__ import annotations

import torch
from figure import Figure
from models import gpt2_shaped_step, mlp, mlp_step, repeat
from torch import nn

import torch_remote

WARM_UP = 4
STEPS = 10
DEVICE = "remote"


def syncs_of_a_training_step() -> list[Figure]:
    step = mlp_step(DEVICE)
    repeat(step, WARM_UP)
    with torch_remote.count() as unread:
        repeat(step, STEPS)
    with torch_remote.count() as read:
        for _ in range(STEPS):
            step().item()
    return [
        Figure("syncs per step, nothing read", unread.syncs / STEPS, 0, "=="),
        Figure("syncs per step, loss.item()", read.syncs / STEPS, 1, "=="),
    ]


def calls_of_an_adamw_step() -> list[Figure]:
    return [
        Figure(f"calls per AdamW step, {count} parameters", _adamw_calls(count), 16)
        for count in (4, 40, 160)
    ]


def _adamw_calls(parameters: int) -> float:
    values = [nn.Parameter(torch.ones(4, 4, device=DEVICE)) for _ in range(parameters)]
    for value in values:
        value.grad = torch.ones_like(value)
    optimizer = torch.optim.AdamW(values)
    for _ in range(WARM_UP):
        optimizer.step()
    with torch_remote.count() as counted:
        optimizer.step()
    return counted.calls


def signatures_of_a_learning_rate_schedule() -> list[Figure]:
    model = mlp(DEVICE)
    inputs = torch.ones(8, 16, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        schedule.step()

    for _ in range(WARM_UP):
        step()
    with torch_remote.count() as counted:
        for _ in range(STEPS):
            step()
    return [Figure("new signatures, learning-rate schedule", counted.signatures_sent, 0, "==")]


def signatures_of_a_kv_cache() -> list[Figure]:
    """Each token is written at a growing offset and attends to the whole cache, with a mask."""
    heads, length, width = 4, 64, 8
    keys = torch.zeros(1, heads, length, width, device=DEVICE)
    values = torch.zeros_like(keys)
    mask = torch.full((1, 1, 1, length), float("-inf"), device=DEVICE)
    token = torch.ones(1, heads, 1, width, device=DEVICE)

    def decode(position: int) -> None:
        keys[:, :, position : position + 1] = token
        values.narrow(2, position, 1).copy_(token)
        mask[..., position] = 0.0
        torch.softmax(token @ keys.transpose(-2, -1) + mask, dim=-1) @ values

    for position in range(WARM_UP):
        decode(position)
    with torch_remote.count() as counted:
        for position in range(WARM_UP, length):
            decode(position)
    return [Figure("new signatures, KV cache", counted.signatures_sent, 0, "==")]


def bytes_per_call() -> list[Figure]:
    step = gpt2_shaped_step(DEVICE)
    repeat(step, WARM_UP)
    torch_remote.synchronize()
    with torch_remote.count() as counted:
        repeat(step, STEPS)
        torch_remote.synchronize()  # so that frees and acknowledgements are counted
    sent_and_received = counted.bytes_sent + counted.bytes_received
    return [Figure("bytes per call, GPT-2-shaped step", sent_and_received / counted.calls, 40)]
