"""Which operators a client sends to a CUDA server, with a CPU server that claims to be one.

From PyTorch's sources: if CUDA has its own kernel, that kernel's operator must be sent.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import run_python
from pretending import pretended_cuda

SETUP = """
import warnings
import torch, torch_remote
from torch import nn
from torch.nn import functional as F
def at(*sizes, dtype=None):
    return torch.rand(*sizes).to("remote", dtype)
def tried(function):
    # A kernel that only CUDA has fails: at once, or when it is waited for.
    try:
        function()
        torch_remote.synchronize()
    except RuntimeError:
        pass
"""

# What runs, the CUDA operators that must be sent, and those that must not.
CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "lstm": ("nn.LSTM(3, 4).to('remote')(at(5, 2, 3))", ["_cudnn_rnn"], ["_thnn_fused_lstm_cell"]),
    "gru": ("nn.GRU(3, 4, batch_first=True).to('remote')(at(5, 2, 3))", ["_cudnn_rnn"], ["mm"]),
    "rnn": ("nn.RNN(3, 4).to('remote').eval()(at(5, 2, 3))", ["_cudnn_rnn"], ["addmm"]),
    "rnn_relu": (
        "nn.RNN(3, 4, nonlinearity='relu').to('remote')(at(5, 2, 3))",
        ["_cudnn_rnn"],
        ["relu"],
    ),
    "lstm_bfloat16": (
        "nn.LSTM(3, 4).to('remote', torch.bfloat16)(at(5, 2, 3, dtype=torch.bfloat16))",
        ["_cudnn_rnn"],
        ["_thnn_fused_lstm_cell"],
    ),
    "lstm_dropout": (
        "nn.LSTM(3, 4, 2, dropout=0.5).to('remote')(at(5, 2, 3))",
        ["random_", "_cudnn_init_dropout_state"],
        ["native_dropout"],
    ),
    "lstm_packed": (
        "nn.LSTM(3, 4).to('remote')(nn.utils.rnn.pack_padded_sequence(at(5, 2, 3), [5, 3]))",
        ["_cudnn_rnn"],
        ["_thnn_fused_lstm_cell"],
    ),
    "lstm_without_cudnn": (
        "with torch.backends.cudnn.flags(enabled=False): nn.LSTM(3, 4).to('remote')(at(5, 2, 3))",
        ["mm", "mm", "_thnn_fused_lstm_cell"],
        ["_cudnn_rnn"],
    ),
    "lstm_cell": (
        "nn.LSTMCell(3, 4).to('remote')(at(2, 3))",
        ["_thnn_fused_lstm_cell"],
        ["sigmoid_"],
    ),
    "gru_cell": ("nn.GRUCell(3, 4).to('remote')(at(2, 3))", ["_thnn_fused_gru_cell"], ["sigmoid_"]),
    "rms_norm": ("nn.RMSNorm(4).to('remote')(at(2, 4))", ["_fused_rms_norm"], ["rsqrt"]),
    "batch_norm": (
        "nn.BatchNorm2d(3).to('remote')(at(2, 3, 4, 4))",
        ["cudnn_batch_norm"],
        ["native_batch_norm"],
    ),
    "batch_norm_empty": (
        "nn.BatchNorm2d(3).to('remote')(at(0, 3, 4, 4))",
        ["mul.Tensor"],
        ["cudnn_batch_norm"],
    ),
    "dropout": ("F.dropout(at(4))", ["native_dropout"], ["bernoulli_.float"]),
    "softmax": (
        "F.softmax(at(2, 4, dtype=torch.half), 1, dtype=torch.float)",
        ["_softmax"],
        ["_to_copy", "copy_"],
    ),
    "log_softmax": (
        "F.log_softmax(at(2, 4, dtype=torch.half), 1, dtype=torch.float)",
        ["_log_softmax"],
        ["_to_copy", "copy_"],
    ),
    "group_norm": (
        "F.group_norm(at(2, 4, 3, 3).contiguous(memory_format=torch.channels_last), 2)",
        ["clone", "clone", "native_group_norm"],
        [],
    ),
    "grid_sampler": (
        "F.grid_sample(at(1, 2, 4, 4), at(1, 3, 3, 2), align_corners=True)",
        ["cudnn_grid_sampler"],
        ["grid_sampler_2d"],
    ),
    "grid_sampler_other_corners": (
        "F.grid_sample(at(1, 2, 4, 4), at(1, 3, 3, 2), align_corners=False)",
        ["grid_sampler_2d"],
        ["cudnn_grid_sampler"],
    ),
    "ctc_loss": (
        "F.ctc_loss(at(5, 2, 4).log_softmax(2),"
        "torch.tensor([1, 2, 1, 3], dtype=torch.int).to('remote'),"
        "torch.tensor([5, 5], dtype=torch.int), torch.tensor([2, 2], dtype=torch.int),"
        "reduction='sum')",
        ["_cudnn_ctc_loss.Tensor"],
        ["_ctc_loss", "_ctc_loss.Tensor"],
    ),
}


@pytest.fixture(scope="module")
def calls_by_case(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """All cases in one client, each after a marker: a call that nothing else makes."""
    folder: Path = tmp_path_factory.mktemp("cuda")
    steps = [
        f"torch.ones(1, device='remote').erfinv()\ntried(lambda: exec({code!r}))"
        for code, _, _ in CASES.values()
    ]
    with pretended_cuda(folder) as (url, read_calls):
        done = run_python(SETUP + "\n".join(steps), TORCH_REMOTE=url, TORCH_REMOTE_LOG="error")
        assert done.returncode == 0, done.stderr
        text = " ".join(call.removeprefix("aten::") for call in read_calls())
    parts = text.split("erfinv")[1:]
    return dict(zip(CASES, (part.split() for part in parts), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_cuda_server_is_sent_the_operators_that_cuda_runs(
    case: str, calls_by_case: dict[str, list[str]]
) -> None:
    _, wanted, unwanted = CASES[case]
    calls = calls_by_case[case]
    assert [call for call in calls if call in wanted] == wanted, calls
    assert not set(unwanted) & set(calls), calls
