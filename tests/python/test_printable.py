"""What a server, a provider or a neighbour wrote cannot change the terminal that shows it."""

from __future__ import annotations

import re
import unicodedata

from torch_remote.providers import common, ssh_errors
from torch_remote_cli import figures
from torch_remote_cli.commands import status, top
from torch_remote_cli.output import printable, printable_lines, table

EVIL = "a\x1b]0;owned\x07\x9b2J\x7f\r\u202eb"


def is_plain(text: str) -> bool:
    direction = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return not any(
        (unicodedata.category(c) == "Cc" and c not in "\n\t")
        or unicodedata.bidirectional(c) in direction
        or c in "\u061c\u200e\u200f"
        for c in text
    )


# Promise 13a.
def test_every_control_character_is_replaced_and_every_other_kept() -> None:
    for code in range(0x3000):
        c = chr(code)
        kept = is_plain(c)
        assert printable_lines(c) == (c if kept else "\ufffd"), hex(code)
        assert printable(c) == (c if kept and c not in "\n\t" else "\ufffd"), hex(code)
    assert printable_lines("\udc9b") == "\ufffd"
    assert is_plain(table(("name", "text"), [[EVIL, EVIL]]))


# Promise 13a.
def test_figures_of_a_session_that_was_taken_over_are_shown_without_controls() -> None:
    text = (
        f'torch_remote_info{{host="{EVIL}",torch="{EVIL}",pid="1",protocol="1",'
        f'sandbox="{EVIL}"}} 1\n'
        f'torch_remote_session_info{{session="{EVIL}",peer="{EVIL}",device="{EVIL}",pid="1",'
        f'devices="1",sandbox="x{EVIL}"}} 1\n'
        f'torch_remote_operator_calls_total{{operator="{EVIL}"}} 1\n'
    ).replace("\r", "")
    now = figures.parse(text)
    assert now.sessions and now.operators and now.host
    assert is_plain(status.describe(now))
    assert is_plain("\n".join(top.lines_of(None, now, 1.0, 50)))


# Promise 13a.
def test_what_a_providers_program_printed_is_told_without_controls() -> None:
    said = common.advise("k8s://pod", EVIL, (), "failed")
    assert is_plain(said) and re.search("a.*b", said)
    assert is_plain(ssh_errors.explain("host", "failed", EVIL))
