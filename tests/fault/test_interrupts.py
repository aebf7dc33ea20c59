"""Ctrl-C at a terminal: a wait returns at once, and session and server go on.

Waits look for signals every 50 ms. The interrupted waits would end by themselves only after 30 s
or more (keepalive, patience), with another error.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import DEADLINE, assert_runs
from proxy import FaultProxy
from terminal import Terminal

START = """
import os, signal, threading, time
import torch, torch_remote

x = torch.zeros((), dtype=torch.long, device="remote")
assert x.item() == 0
server = int(torch_remote.machines()[0].status()["pid"])

def stop_server():
    os.kill(server, signal.SIGSTOP)

def go_on():
    os.kill(server, signal.SIGCONT)

def interrupted(wait):
    try:
        say("waiting")
        wait()
    except KeyboardInterrupt:
        say("interrupted")
        return
    raise AssertionError("it was not interrupted")

say("begun")
"""

ZEROS = "x.zero_()\nassert x.item() == 0\n"


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    """With a program that has an open session: each test must leave it usable."""
    with Terminal() as made:
        made.run(START)
        made.wait_for("begun")
        yield made


WAITS = {
    "read": """
        x.add_(1)
        interrupted(x.item)
        go_on()
        assert x.item() == 1
    """,
    "synchronize": """
        x.add_(1)
        interrupted(torch_remote.synchronize)
        go_on()
        assert x.item() == 1
    """,
    "upload": """
        big = torch.ones(20_000_000)
        interrupted(lambda: big.to("remote"))
        go_on()
        assert big.to("remote").sum().item() == 20_000_000
    """,
    "download": """
        remote = torch.ones(20_000_000, device="remote")
        torch.zeros(20_000_000).copy_(remote)  # waits for it
        stop_server()
        local = torch.zeros(20_000_000)
        interrupted(lambda: local.copy_(remote))
        local.fill_(2)
        go_on()
        assert remote.sum().item() == 20_000_000
        torch_remote.synchronize()
        assert local.min().item() == local.max().item() == 2  # the late bytes went elsewhere
    """,
    "back_pressure": """
        done = 0
        def run():
            global done
            while True:
                x.add_(1)
                done += 1
        def tell():
            last = -1
            while done != last or done == 0:  # then it is far ahead, and waits
                last = done
                time.sleep(1)
            say("far ahead")
        threading.Thread(target=tell, daemon=True).start()
        interrupted(run)
        go_on()
        assert x.item() == done, (x.item(), done)  # the call that was interrupted has not happened
    """,
    "wait_of_another_thread": """
        results, is_done = [], threading.Event()
        x.add_(1)
        def work():
            results.append(x.item())
            is_done.set()
        threading.Thread(target=work).start()
        interrupted(is_done.wait)
        assert results == []
        go_on()
        is_done.wait()
        assert results == [1]
    """,
}


@pytest.mark.parametrize("wait", WAITS)
def test_control_c_ends_a_wait_and_leaves_session_and_server_as_they_were(
    wait: str, terminal: Terminal
) -> None:
    terminal.run(ZEROS + ("" if wait == "download" else "stop_server()"))
    terminal.run(WAITS[wait])
    terminal.wait_for("waiting")
    if wait == "back_pressure":
        terminal.wait_for("far ahead")
    terminal.press_control_c()
    terminal.wait_for("interrupted")
    terminal.run(ZEROS + "say('usable')")
    terminal.wait_for("usable")


def test_control_c_reaches_the_client_only(terminal: Terminal) -> None:
    terminal.run(ZEROS + "interrupted(lambda: time.sleep(600))")
    terminal.wait_for("waiting")
    terminal.press_control_c()
    terminal.wait_for("interrupted")
    terminal.run("""
        os.kill(server, signal.SIGINT)  # not even this one
        x.add_(1)
        assert x.item() == 1
        assert os.getsid(server) != os.getsid(0)
        say("usable")
    """)
    terminal.wait_for("usable")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """A listener that accepts connections and sends nothing."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()
        yield f"unix://{tmp_path}/s"


def test_control_c_ends_connecting_and_other_machines_can_be_used(
    silent: str, terminal: Terminal
) -> None:
    terminal.run(ZEROS + f"interrupted(lambda: torch_remote.connect({silent!r}))")
    terminal.wait_for("waiting")
    terminal.press_control_c()
    terminal.wait_for("interrupted")
    terminal.run("x.add_(1)\nassert x.item() == 1\nsay('usable')")
    terminal.wait_for("usable")


def test_control_c_ends_a_wait_while_resuming(server: str, terminal: Terminal) -> None:
    with FaultProxy(server, lambda number: None) as proxy:
        terminal.run(f"""
            machine = torch_remote.connect({proxy.url!r})
            y = torch.zeros((), device=machine.devices[0])
            assert y.item() == 0
            say("connected")
        """)
        terminal.wait_for("connected")
        proxy.closed.set()
        proxy.hang_up()
        terminal.run("y.add_(1)\ninterrupted(y.item)")
        terminal.wait_for("waiting")
        terminal.press_control_c()
        terminal.wait_for("interrupted")
        proxy.closed.clear()
        terminal.run("assert y.item() == 1\nmachine.stop()\nsay('usable')")
        terminal.wait_for("usable")


def test_after_control_c_a_daemon_threads_wait_does_not_hold_up_the_exit() -> None:
    with Terminal() as terminal:
        terminal.run(START)
        terminal.run("""
            stop_server()
            x.add_(1)
            threading.Thread(target=x.item, daemon=True).start()
            interrupted(threading.Event().wait)
            sys.exit()
        """)
        terminal.wait_for("waiting")
        terminal.press_control_c()
        terminal.wait_for("torch_remote: waiting for 1 call to finish (Ctrl-C ends the wait)")
        terminal.press_control_c()
        terminal.wait_for("torch_remote: 1 call was not waited for, and may have failed")
        assert terminal.process.wait(timeout=3 * DEADLINE) == 1


LONG_WAITS = {
    "read": ("x.item()", "add_ at <string>:4, 4 of 4 calls left"),
    "synchronize": ("torch_remote.synchronize()", "add_ at <string>:4, 4 of 4 calls left"),
    "upload": ("torch.ones(15_000_000).to('remote')", "add_ at <string>:4, "),
    "stream": ("torch.remote.current_stream().synchronize()", "add_ at <string>:4, "),
}


@pytest.mark.parametrize("wait", LONG_WAITS)
def test_a_long_wait_tells_the_terminal_what_it_is_for(wait: str, terminal: Terminal) -> None:
    code, text = LONG_WAITS[wait]
    terminal.run(
        f"{ZEROS}stop_server()\nx.add_(1)\nx.mul_(2)\nx.mul_(3)\nx.mul_(4)\n"
        f"interrupted(lambda: {code})"
    )
    terminal.wait_for("waiting")
    terminal.wait_for_text(f"torch_remote: waiting for {text}")
    terminal.press_control_c()
    terminal.wait_for("interrupted")
    # So is a wait after a Ctrl-C.
    terminal.run("interrupted(x.item)")
    terminal.wait_for("waiting")
    terminal.wait_for_text("torch_remote: waiting for add_ at <string>:")
    terminal.press_control_c()
    terminal.wait_for("interrupted")
    terminal.run("go_on()\nassert x.item() == 24\nsay('usable')")
    terminal.wait_for("usable")


def test_what_control_c_leaves_running_can_be_dropped(terminal: Terminal) -> None:
    """The server is a hundred products behind, of which each takes a while."""
    terminal.run(f"{ZEROS}large = torch.rand(1500, 1500, device='remote')\nlarge.sum().item()")
    terminal.run("""
        products = [large @ large for _ in range(100)]
        x.add_(1)
        try:
            x.item()
        except KeyboardInterrupt as error:
            said = str(error)
    """)
    terminal.wait_for_text("torch_remote: waiting for mm at <string>:2, ")
    terminal.press_control_c()
    terminal.run("""
        assert said.startswith("while waiting for mm at <string>:"), said
        assert said.endswith(
            "calls left; what was sent goes on (torch_remote.cancel() drops it)"), said
        torch_remote.cancel()
        assert x.item() == 0
        try:
            products[-1].sum().item()
        except RuntimeError as error:
            assert "dropped by torch_remote.cancel()" in str(error)
            say("dropped")
    """)
    terminal.wait_for("dropped")


def test_a_long_wait_says_nothing_where_there_is_no_terminal() -> None:
    assert_runs(f"""
def say(text): pass
{START}
x.add_(1)
stop_server()
x.mul_(2)
threading.Timer(2.5, go_on).start()
assert x.item() == 2
""")
