"""A small part of `make soak`."""

from __future__ import annotations

from soak import soak


def test_a_short_soak_leaves_nothing_behind() -> None:
    soak(0.002)
