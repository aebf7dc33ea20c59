"""Plans for the fault proxy, each from a seed: where the network fails."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from proxy import BACK, HEADER, THERE, Fault

Plan = Callable[[int], Fault | None]

HANDSHAKE = 260  # the most bytes of either direction before the frames of a resumed session


def at_random_bytes(seed: int, cuts: int, kinds: tuple[str, ...] = ("cut",)) -> Plan:
    """Cuts every connection, in either direction: some in the handshake, most in a frame."""
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
    """Cuts at every byte of a frame header, in both directions, in one of the first frames."""
    chance = random.Random(seed)
    places = [(side, byte) for byte in range(HEADER + 1) for side in (THERE, BACK)] * rounds

    def plan(number: int) -> Fault | None:
        if number >= len(places):
            return None
        side, byte = places[number]
        return Fault("cut", side, byte, frame=chance.randrange(4))

    return plan
