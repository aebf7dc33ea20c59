"""Trains as examples/train_mlp.py does, with the whole step as one graph: one message each time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import build_on_device, parse_options, print_losses
from torch import nn
from train_mlp import make_model, make_rings


def main() -> None:
    options = parse_options(__doc__, steps=50)
    model = build_on_device(make_model, options)
    inputs, targets = (each.to(options.device) for each in make_rings(256, options.seed))
    # Fused, since a graph needs the count of steps on its device.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    loss_of = nn.CrossEntropyLoss()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss: torch.Tensor = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [step(), step()]  # what a step needs is made once, before the graph
    replay = step if options.device == "cpu" else captured(step)
    losses += [replay().clone() for _ in range(options.steps - len(losses))]
    print_losses(torch.stack(losses).tolist())


def captured(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Records the step. The function that this gives replays it."""
    import torch_remote

    graph = torch_remote.Graph()
    with graph:  # nothing runs
        loss = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return loss

    return replay


if __name__ == "__main__":
    main()
