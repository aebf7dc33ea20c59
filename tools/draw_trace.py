#!/usr/bin/env python3
"""Draws a Chrome trace of torch.profiler as an SVG: the picture in docs/profiling.md.

tools/draw_trace.py --record trace.json   # runs two training steps on `remote` under a profile
tools/draw_trace.py trace.json docs/trace.svg
"""

from __future__ import annotations

import argparse
import html
import json
from pathlib import Path
from typing import Any

WIDTH, LEFT, ROW, GAP = 960, 8, 16, 26
COLOURS = {"cpu_op": "#9ec5fe", "user_annotation": "#c5b3e6", "kernel": "#a3cfbb"}
WAIT_COLOUR = "#f1aeb5"
FONT = 'font-family="sans-serif" font-size="10"'


def record(path: Path) -> None:
    """Two steps of a small model; the second reads its loss."""
    import torch

    import torch_remote  # noqa: F401

    torch.set_num_threads(1)  # of the server too: a busy machine does not change the picture much
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    ).to("remote")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(128, 256, device="remote")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        step().item()
    with torch.profiler.profile() as profile:
        with torch.profiler.record_function("step 1"):
            step()
        with torch.profiler.record_function("step 2"):
            step().item()
    profile.export_chrome_trace(str(path))


def rows_of(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The slices that are drawn, by process and thread, in the order of their beginnings."""
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in sorted(events, key=lambda each: (each.get("ts", 0), -each.get("dur", 0))):
        if event["ph"] == "X" and event.get("cat") in COLOURS:
            rows.setdefault((event["pid"], event["tid"]), []).append(event)
    # Threads of the program first; the device's process has its small index as its number.
    return dict(sorted(rows.items(), key=lambda item: (item[1][0]["cat"] == "kernel", item[0])))


def depths(slices: list[dict[str, Any]]) -> list[int]:
    """How many slices each one is inside of."""
    ends: list[float] = []
    found = []
    for each in slices:
        while ends and ends[-1] <= each["ts"]:
            ends.pop()
        found.append(len(ends))
        ends.append(each["ts"] + each["dur"])
    return found


def draw_slice(event: dict[str, Any], begin: float, scale: float, top: float) -> str:
    left, width = LEFT + (event["ts"] - begin) * scale, max(event["dur"] * scale, 0.6)
    colour = WAIT_COLOUR if event["name"] == "torch_remote::wait" else COLOURS[event["cat"]]
    name = html.escape(event["name"])
    box = (
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 2}" fill="{colour}">'
        f"<title>{name}, {event['dur']:.0f} µs</title></rect>"
    )
    letters = int((width - 4) / 5.6)
    if letters < 3:
        return box
    text = html.escape(event["name"][:letters])
    return f'{box}<text x="{left + 2:.1f}" y="{top + 11}" {FONT}>{text}</text>'


def row_title(events: list[dict[str, Any]], pid: int, tid: int, category: str) -> str:
    if category != "kernel":
        return f"this process, thread {tid}"
    labels = [
        each["args"]["labels"]
        for each in events
        if each["ph"] == "M" and each["pid"] == pid and each["name"] == "process_labels"
    ]
    device = labels[-1].split(" ")[0] if labels else f"device {pid}"
    return f"{device}, stream {tid}"


def draw(trace: dict[str, Any]) -> str:
    events = trace["traceEvents"]
    rows = rows_of(events)
    everything = [each for slices in rows.values() for each in slices]
    begin = min(each["ts"] for each in everything)
    end = max(each["ts"] + each["dur"] for each in everything)
    scale = (WIDTH - 2 * LEFT) / (end - begin)
    parts, top = [], 4
    for number, ((pid, tid), slices) in enumerate(rows.items()):
        category = slices[0]["cat"]
        title = row_title(events, pid, number if category != "kernel" else tid, category)
        parts.append(f'<text x="{LEFT}" y="{top + 11}" {FONT} font-weight="bold">{title}</text>')
        top += ROW
        levels = depths(slices)
        for event, depth in zip(slices, levels, strict=True):
            parts.append(draw_slice(event, begin, scale, top + depth * ROW))
        top += (max(levels) + 1) * ROW + GAP - ROW
    axis = f"{(end - begin) / 1000:.1f} ms"
    parts.append(f'<text x="{WIDTH - 60}" y="{top + 8}" {FONT}>{axis}</text>')
    size = f'width="{WIDTH}" height="{top + 14}" viewBox="0 0 {WIDTH} {top + 14}"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    body = "\n".join([background, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the trace instead")
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path, nargs="?")
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.trace)
        return
    if arguments.picture is None:
        parser.error("name the picture to write")
    arguments.picture.write_text(draw(json.loads(arguments.trace.read_text())))


if __name__ == "__main__":
    main()
