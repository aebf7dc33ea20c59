"""A call of a replay that fails."""

from __future__ import annotations

import pytest
import torch
from failures import held_server
from graphing import recorded
from helpers import assert_runs


def failing(index: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.add_(1)
    picked = torch.ones(4, device="remote")[index]  # line of the recording
    return picked * 2


LINE = failing.__code__.co_firstlineno + 2


def test_the_error_of_a_replay_names_the_operator_and_the_line_that_recorded_it() -> None:
    index, y = torch.zeros(2, dtype=torch.long, device="remote"), torch.zeros(1, device="remote")
    graph, result = recorded(failing, index, y)
    graph.replay()
    assert result.tolist() == [2, 2]
    index.fill_(9)
    with pytest.raises(IndexError, match="out of bounds") as raised:
        graph.replay()
        result.tolist()
    text = str(raised.value)
    assert "aten::index" in text and f"test_graph_errors.py:{LINE}" in text
    assert "in a graph replayed at" in text
    with pytest.raises(RuntimeError):
        result.tolist()  # missing
    assert y.tolist() == [2]  # the step before the failing one was made
    index.fill_(1)
    graph.replay()
    assert (result.tolist(), y.tolist()) == ([2, 2], [3])


def test_what_a_discarded_replay_would_have_made_is_missing_not_that_of_an_earlier_one() -> None:
    x, index = torch.ones(4, device="remote"), torch.zeros(1, dtype=torch.long, device="remote")
    graph, (total, picked) = recorded(lambda: (x.add_(1).sum(), x[index]))
    graph.replay()
    assert (total.item(), picked.tolist()) == (8, [2])
    with held_server():
        x[torch.full((1,), 9, device="remote")]  # fails, which stops this thread
        graph.replay()
    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.remote.synchronize()
    for made in (total, picked):
        with pytest.raises(RuntimeError, match="out of bounds"):
            made.tolist()
    assert x.tolist() == [2, 2, 2, 2]
    graph.replay()
    assert (total.item(), picked.tolist()) == (12, [3])


def test_in_blocking_mode_the_replay_itself_raises() -> None:
    assert_runs(
        """
        import torch, torch_remote
        index = torch.zeros(2, dtype=torch.long, device="remote")
        graph = torch_remote.Graph()
        with graph:
            torch.ones(4, device="remote")[index]
        graph.replay()
        index.fill_(9)
        try:
            graph.replay()
        except IndexError as error:
            assert "out of bounds" in str(error), error
        else:
            raise AssertionError("nothing raised")
        index.fill_(0)
        graph.replay()
        """,
        TORCH_REMOTE_BLOCKING="1",
    )


def test_a_missing_input_of_a_replay_is_the_first_calls_error() -> None:
    x = torch.ones(4, device="remote")
    graph, y = recorded(lambda: x + 1)
    bad = torch.full((2,), 9, device="remote")
    with pytest.raises(RuntimeError, match=r"aten::index.* out of bounds"):
        x.copy_(x[bad].repeat(2))
        graph.replay()
        y.tolist()
    x.fill_(1)
    graph.replay()
    assert y.tolist() == [2, 2, 2, 2]
