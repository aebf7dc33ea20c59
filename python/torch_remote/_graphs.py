"""`torch_remote.Graph`: calls recorded once, then run again and again by one message each time."""

from __future__ import annotations

from typing import Any

from . import _C


class Graph(_C.Graph):
    """Records the calls of a block, and replays them by one message.

    What `torch.cuda.CUDAGraph` is for CUDA: while the block is open, nothing runs; `replay()` runs
    everything that was recorded, on the tensors that the block used. New values go in by writing to
    those tensors (`x.copy_(batch)`), and results come out of the tensors that the block made, which
    each replay gives new values::

        x = torch.zeros(8, 3, device="remote")
        graph = torch_remote.Graph()
        with graph:
            y = model(x)
        for batch in batches:
            x.copy_(batch)
            graph.replay()
            print(y.sum().item())

    What waits for the server cannot be recorded: reading a value, `synchronize()`, and operators
    whose results have sizes that depend on data. They raise what CUDA raises, and the program goes
    on, without a graph. Nor can a tensor be sent from this process's memory.

    A replay draws new random numbers from the generators, as the calls would.
    """

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Starts to record. Both arguments are CUDA's, and change nothing here."""
        self._begin()

    def capture_end(self) -> None:
        self._end()

    def instantiate(self) -> None:
        """Does nothing: a graph can be replayed when it is captured."""

    def pool(self) -> tuple[int, int]:
        """A graph has no memory of its own: its temporaries live while it runs."""
        return 0, 0

    def enable_debug_mode(self) -> None:
        """Does nothing."""

    def __enter__(self) -> Graph:
        self.capture_begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            self.capture_end()
        else:
            self._abandon()  # the block's own error is raised

    def __repr__(self) -> str:
        state = "recording" if self._is_recording else f"{self._calls} calls"
        return f"<torch_remote.Graph: {state}>"
