"""A server with a long round trip: a client that does not read does not wait for it."""

from __future__ import annotations

from helpers import assert_runs

ROUND_TRIP_S = 0.3


def test_a_burst_after_a_pause_does_not_wait_for_the_line() -> None:
    """The loop takes longer than a round trip, so that the client hears from the server."""
    longest = assert_runs(
        """
        import time
        import torch

        import torch_remote

        x = torch.ones(8, device="remote")

        def burst() -> float:
            global x
            longest = 0.0
            for _ in range(100):
                begin = time.perf_counter()
                for _ in range(50):
                    x = x * 1.0001
                longest = max(longest, time.perf_counter() - begin)
                time.sleep(0.005)
            x.sum().item()
            return longest

        burst()
        time.sleep(1.5)
        print(burst())
        """,
        TORCH_REMOTE_NET=f"{ROUND_TRIP_S * 1000:g}",
    )
    assert float(longest) < ROUND_TRIP_S / 2
