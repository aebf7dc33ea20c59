"""torch.utils.checkpoint: recomputed forwards have the same values, masks and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import assert_same
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torch_remote


def layers() -> list[torch.nn.Module]:
    torch.manual_seed(2)
    return [
        torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5), torch.nn.GELU())
        for _ in range(4)
    ]


def run(device: str, **options: Any) -> Any:
    blocks = [layer.to(device) for layer in layers()]
    x = torch.linspace(-1, 1, 30).reshape(5, 6).to(device).requires_grad_()
    torch.manual_seed(9)
    y = x
    for block in blocks:
        y = checkpoint(block, y, **options) if options else block(y)
    y.square().sum().backward()
    return y.detach(), x.grad, [p.grad for block in blocks for p in block.parameters()]


@pytest.mark.parametrize("reentrant", [True, False])
def test_values_masks_and_gradients_are_those_without_a_checkpoint(reentrant: bool) -> None:
    expected = run("cpu")
    assert_same(run("remote"), expected)
    assert_same(run("remote", use_reentrant=reentrant), expected)
    assert_same(run("cpu", use_reentrant=reentrant), expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_without_preserved_random_state_the_masks_differ(reentrant: bool) -> None:
    kept = run("remote", use_reentrant=reentrant, preserve_rng_state=False)
    assert_same(kept[0], run("cpu")[0])
    assert not torch.equal(kept[1].cpu(), run("cpu")[1])


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_does_not_wait(reentrant: bool) -> None:
    run("remote", use_reentrant=reentrant)
    with torch_remote.count() as counted:
        run("remote", use_reentrant=reentrant)
    assert counted.syncs == 0


def test_a_sequence_is_checkpointed() -> None:
    def sequence(device: str) -> Any:
        model = torch.nn.Sequential(*layers()).to(device)
        x = torch.ones(3, 6).to(device).requires_grad_()
        torch.manual_seed(1)
        checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()
        return x.grad, [p.grad for p in model.parameters()]

    assert_same(sequence("remote"), sequence("cpu"))


def test_saved_tensors_may_be_kept_on_the_cpu() -> None:
    def offloaded(device: str, pin: bool) -> Any:
        x = torch.linspace(-1, 1, 12).to(device).requires_grad_()
        with torch.autograd.graph.save_on_cpu(pin_memory=pin):
            y = (x * 2).sin() * x.exp()
        y.sum().backward()
        return x.grad

    for pin in (False, True):
        assert_same(offloaded("remote", pin), offloaded("cpu", False))


def test_selective_checkpoints_keep_chosen_operators() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def selective(device: str) -> Any:
        return run(
            device,
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(policy),
        )

    assert_same(selective("remote"), run("cpu"))
