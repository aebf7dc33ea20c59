"""Sparse tensors on a remote device: gradients, embeddings and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sparse_parts import DENSE, OTHER, WEIGHT, assert_both_same, coo

pytestmark = pytest.mark.filterwarnings("ignore")

# --- autograd


GRADIENTS: dict[str, Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]] = {
    "sparse_mm": lambda s, w, d: torch.sparse.mm(s, w),
    "mm": lambda s, w, d: torch.mm(s, w),
    "to_dense": lambda s, w, d: s.to_dense() @ w,
    "sparse_sum": lambda s, w, d: torch.sparse.sum(s) * w,
    "sparse_sum_dim": lambda s, w, d: torch.sparse.sum(s, dim=0).to_dense() @ w,
    "softmax": lambda s, w, d: torch.sparse.softmax(s, dim=1).to_dense() @ w,
    "coalesce": lambda s, w, d: s.coalesce().to_dense() @ w,
    "mul": lambda s, w, d: (s * 2).to_dense() @ w,
    "add_dense": lambda s, w, d: (torch.ones(3, 4, device=d) + s) @ w,
    "to_sparse": lambda s, w, d: torch.sparse.sum((w * 2).to_sparse()),
    "values": lambda s, w, d: s.coalesce().values().sum() * w,
}


@pytest.mark.parametrize("use", GRADIENTS)
def test_gradients_of_sparse_operators(use: str) -> None:
    def run(device: str) -> list[torch.Tensor | None]:
        sparse = coo(device, coalesced=True).requires_grad_()
        weight = WEIGHT.clone().to(device).requires_grad_()
        result = GRADIENTS[use](sparse, weight, device)
        result.sum().backward()
        return [result, sparse.grad, weight.grad]

    assert_both_same(run)


def test_sparse_mask_and_construction_have_gradients() -> None:
    def run(device: str) -> list[torch.Tensor | None]:
        values = torch.arange(3.0, device=device).requires_grad_()
        made = torch.sparse_coo_tensor(
            torch.tensor([[0, 1, 1], [0, 0, 2]], device=device), values, (2, 3)
        )
        (made.to_dense() ** 2).sum().backward()
        dense = OTHER.clone().to(device).requires_grad_()
        mask = coo(device, coalesced=True)
        (dense.sparse_mask(mask).to_dense() * 3).sum().backward()
        return [values.grad, dense.grad]

    assert_both_same(run)


# --- embeddings and optimizers


def embedding_gradient(device: str, **options: Any) -> list[torch.Tensor | None]:
    weight = torch.linspace(-1, 1, 12).reshape(4, 3).to(device).requires_grad_()
    indices = torch.tensor([[1, 3], [1, 0]], device=device)
    result = torch.nn.functional.embedding(indices, weight, sparse=True, **options)
    result.pow(2).sum().backward()
    return [result, weight.grad]


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}])
def test_an_embedding_has_a_sparse_gradient(options: dict[str, Any]) -> None:
    assert_both_same(lambda device: embedding_gradient(device, **options))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_an_embedding_bag_has_a_sparse_gradient(mode: str) -> None:
    def run(device: str) -> list[torch.Tensor | None]:
        weight = torch.linspace(-1, 1, 12).reshape(4, 3).to(device).requires_grad_()
        indices = torch.tensor([1, 3, 1, 0], device=device)
        offsets = torch.tensor([0, 3], device=device)
        result = torch.nn.functional.embedding_bag(indices, weight, offsets, mode=mode, sparse=True)
        result.pow(2).sum().backward()
        return [result, weight.grad]

    assert_both_same(run)


def test_gather_has_a_sparse_gradient() -> None:
    def run(device: str) -> torch.Tensor | None:
        dense = DENSE.clone().to(device).requires_grad_()
        index = torch.tensor([[0, 1], [2, 2], [3, 0]], device=device)
        dense.gather(1, index, sparse_grad=True).pow(2).sum().backward()
        return dense.grad

    assert_both_same(run)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sparse_adam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
    "sparse_adam_maximize": lambda p: torch.optim.SparseAdam(p, lr=0.1, maximize=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_sparse_embedding_is_trained_to_the_bytes_of_the_cpu(name: str) -> None:
    def run(device: str) -> list[Any]:
        torch.manual_seed(3)
        embedding = torch.nn.Embedding(7, 4, sparse=True).to(device)
        optimizer = OPTIMIZERS[name](embedding.parameters())
        target = torch.linspace(0, 1, 4).to(device)
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            words = torch.tensor([[1, 5, 1], [step, 0, 6]], device=device)
            loss = (embedding(words) - target).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        state = optimizer.state[embedding.weight]
        return [losses, embedding.weight, [v for v in state.values() if torch.is_tensor(v)]]

    assert_both_same(run)


def test_a_step_of_sparse_adam_waits_once(
    sync_count: Callable[[Callable[[], object]], int],
) -> None:
    """For coalesce(), as on CUDA, also where every step has another number of rows."""
    embedding = torch.nn.Embedding(50, 4, sparse=True, device="remote")
    optimizer = torch.optim.SparseAdam(embedding.parameters())

    def step(rows: int) -> None:
        optimizer.zero_grad()
        embedding(torch.arange(rows, device="remote")).pow(2).sum().backward()
        optimizer.step()

    step(3)
    assert sync_count(lambda: [step(rows) for rows in (4, 5, 6)]) == 3


def test_gradients_accumulate() -> None:
    def run(device: str) -> list[torch.Tensor | None]:
        weight = torch.ones(4, 3, device=device, requires_grad=True)
        for indices in ([0, 1], [1, 3]):
            there = torch.tensor(indices, device=device)
            torch.nn.functional.embedding(there, weight, sparse=True).sum().backward()
        first = weight.grad
        (weight * 2).sum().backward()
        return [first, weight.grad]

    assert_both_same(run)
