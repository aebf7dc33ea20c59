"""Where the network fails: plans for the fault proxy, each from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from proxy import BACK, HEADER, THERE, Fault

Plan = Callable[[int], Fault | None]

HANDSHAKE = (
    260  # bytes of either direction, at most, before the frames of a session that is resumed
)


def at_random_bytes(seed: int, cuts: int, kinds: tuple[str, ...] = ("cut",)) -> Plan:
    """Every connection is cut, at a byte of either direction: some in the handshake, most in a frame, near or far."""
    chance = random.Random(seed)

    def plan(number: int) -> Fault | None:
        if number >= cuts:
            return None
        in_handshake = number > 0 and chance.random() < 0.1
        far = math.exp(chance.uniform(math.log(2), math.log(40_000)))
        after = chance.randrange(HANDSHAKE) if in_handshake else int(far)
        if number > 0 and not in_handshake:
            after += HANDSHAKE
        return Fault(chance.choice(kinds), chance.choice((THERE, BACK)), after)

    return plan


def at_header_bytes(seed: int, rounds: int) -> Plan:
    """At every byte boundary of a frame's header, in both directions, in one of the first frames of a connection."""
    chance = random.Random(seed)
    places = [(side, byte) for byte in range(HEADER + 1) for side in (THERE, BACK)] * rounds

    def plan(number: int) -> Fault | None:
        if number >= len(places):
            return None
        side, byte = places[number]
        return Fault("cut", side, byte, frame=chance.randrange(4))

    return plan
