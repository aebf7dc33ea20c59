"""The server's log of the operators that it ran; only who runs the server can ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import assert_runs, run_python, serving

pytestmark = pytest.mark.slow

PROGRAM = """
import torch, torch_remote
x = torch.ones(3, device="remote")
y = (x + x).relu()
torch_remote.synchronize()
"""
OPERATORS = ["aten::fill_.Scalar", "aten::add.Tensor", "aten::relu"]


def logs_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("calls.*"))


def test_every_executed_operator_is_logged_in_order_by_the_next_synchronize(tmp_path: Path) -> None:
    prefix = tmp_path / "calls"
    read = f"import glob; print(open(glob.glob({str(prefix)!r} + '.*')[0]).read())"

    printed = assert_runs(PROGRAM + read, TORCH_REMOTE_LOG_CALLS=str(prefix))

    assert printed.split() == OPERATORS


def test_every_session_has_a_file_of_its_own_for_the_servers_user_alone(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s", "--log-calls", f"{tmp_path}/calls") as url:
        assert_runs(PROGRAM, TORCH_REMOTE=url)
        assert_runs(PROGRAM, TORCH_REMOTE=url)

    files = logs_of(tmp_path)
    assert [path.read_text().split() for path in files] == [OPERATORS, OPERATORS]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_clients_environment_does_not_make_another_server_log(tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/s") as url:
        assert_runs(PROGRAM, TORCH_REMOTE=url, TORCH_REMOTE_LOG_CALLS=f"{tmp_path}/calls")

    assert logs_of(tmp_path) == []


def test_a_log_that_cannot_be_written_is_said_to_the_client(tmp_path: Path) -> None:
    done = run_python(PROGRAM, TORCH_REMOTE_LOG_CALLS=f"{tmp_path}/missing/calls")

    assert done.returncode != 0
    assert "cannot write its log of calls" in done.stderr


def test_a_call_that_is_discarded_is_not_logged(tmp_path: Path) -> None:
    code = """
    import torch, torch_remote
    table = torch.ones(3, 2, device="remote")
    bad = torch.nn.functional.embedding(torch.tensor([7]).to("remote"), table)
    bad.relu()
    try:
        torch_remote.synchronize()
    except torch_remote.RemoteError:
        pass
    """
    assert_runs(code, TORCH_REMOTE_LOG_CALLS=f"{tmp_path}/calls")

    (log,) = logs_of(tmp_path)
    assert log.read_text().split() == ["aten::fill_.Scalar", "aten::embedding"]
