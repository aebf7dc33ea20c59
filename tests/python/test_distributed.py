"""torch.distributed on `remote`: ranks with a server each, and collectives between these."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import serving

import torch_remote
from torch_remote import distributed

RANK = Path(__file__).parent / "distributed_rank.py"
CHECKS = re.findall(r"@check\ndef (\w+)", RANK.read_text())


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """By rank, what each check of distributed_rank.py has raised. All run in one start."""
    folder = tmp_path_factory.mktemp("ranks")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*run, str(RANK), str(folder)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", CHECKS)
def test_between_two_ranks(outcomes: list[dict[str, str]], name: str) -> None:
    assert [of_rank[name] for of_rank in outcomes] == ["", ""]


def test_one_program_reduces_over_several_machines(tmp_path: Path) -> None:
    with (
        serving(f"unix://{tmp_path}/a", "--peers") as one,
        serving(f"unix://{tmp_path}/b", "--peers") as other,
        torch_remote.connect(one) as first,
        torch_remote.connect(other) as second,
    ):
        devices = [*first.devices, *second.devices]
        tensors = [torch.full((3,), 1.0 + i, device=each) for i, each in enumerate(devices)]
        distributed.all_reduce(tensors)
        assert [tensor.tolist() for tensor in tensors] == [[3, 3, 3]] * 2
        tensors[1].fill_(5)
        distributed.broadcast(tensors, src=-1)
        assert tensors[0].tolist() == [5, 5, 5]
        tensors[0].fill_(4)
        gathered = distributed.all_gather(tensors)
        assert [[part[0].item() for part in of_one] for of_one in gathered] == [[4, 5]] * 2
        with pytest.raises(ValueError, match="another machine"):
            distributed.all_reduce([tensors[0], tensors[0]])
        with pytest.raises(ValueError, match="on cpu"):
            distributed.all_reduce([torch.ones(1)])


def test_a_server_without_peers_refuses(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/a") as url, torch_remote.connect(url) as machine:
        tensor = torch.ones(1, device=machine.devices[0])
        with pytest.raises(torch_remote.RemoteError, match="serve --peers"):
            distributed.all_reduce([tensor])
        assert tensor.item() == 1
