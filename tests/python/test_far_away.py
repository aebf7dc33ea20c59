"""A server with a long round trip: a client that does not read does not wait for it."""

from __future__ import annotations

from helpers import assert_runs

ROUND_TRIP_S = 0.3


def test_a_burst_after_a_pause_does_not_wait_for_the_line() -> None:
    """The loop takes longer than a round trip, so that the client hears from the server."""
    waited = assert_runs(
        """
        import time
        import torch

        from torch_remote import _waits

        x = torch.ones(8, device="remote")

        def burst() -> int:
            global x
            before = _waits.waits_by_line()
            for _ in range(100):
                for _ in range(50):
                    x = x * 1.0001
                time.sleep(0.005)
            waited = sum(line.count for line in _waits.waits_since(before))
            x.sum().item()
            return waited

        burst()
        for _ in range(4):  # a burst waits too if the server's process gets no processor
            time.sleep(1.5)
            if not (waited := burst()):
                break
        print(waited)
        """,
        TORCH_REMOTE_NET=f"{ROUND_TRIP_S * 1000:g}",
    )
    assert int(waited) == 0
