"""Which operators a client sends to a CUDA server, with a CPU server that claims to be one.

From PyTorch's sources: if CUDA has its own kernel, that kernel's operator must be sent.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import run_python
from pretending import pretended_cuda

pytestmark = pytest.mark.slow

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

# What runs under torch.use_deterministic_algorithms(True), and which of CUDA's kernels alerts.
ALERTS: dict[str, str] = {
    "index = torch.zeros(2, dtype=torch.long, device='remote')\n"
    "at(3).put_(index, at(2), accumulate=True)": "put_",
    "gradient(F.avg_pool3d, at(1, 1, 4, 4, 4), 2)": "avg_pool3d_backward_cuda",
    "gradient(F.adaptive_avg_pool2d, at(1, 1, 5, 5), 2)": "adaptive_avg_pool2d_backward_cuda",
    "gradient(F.adaptive_avg_pool3d, at(1, 1, 5, 5, 5), 2)": "adaptive_avg_pool3d_backward_cuda",
    "gradient(F.adaptive_max_pool2d, at(1, 1, 5, 5), 2)": "adaptive_max_pool2d_backward_cuda",
    "gradient(F.max_pool3d, at(1, 1, 4, 4, 4), 2)": "max_pool3d_with_indices_backward_cuda",
    "gradient(F.pad, at(1, 1, 4), [1, 1], 'reflect')": "reflection_pad1d_backward_out_cuda",
    "gradient(F.pad, at(1, 1, 4, 4, 4), [1] * 6, 'reflect')": "reflection_pad3d_backward_out_cuda",
    "gradient(F.pad, at(1, 1, 4), [1, 1], 'replicate')": "replication_pad1d_backward_cuda",
    "gradient(F.pad, at(1, 1, 4, 4), [1] * 4, 'replicate')": "replication_pad2d_backward_cuda",
    "gradient(F.pad, at(1, 1, 4, 4, 4), [1] * 6, 'replicate')": "replication_pad3d_backward_cuda",
    "gradient(F.interpolate, at(1, 1, 4), 8, mode='linear')": "upsample_linear1d_backward_out_cuda",
    "gradient(F.interpolate, at(1, 1, 4, 4), 8, mode='bicubic')": (
        "upsample_bicubic2d_backward_out_cuda"
    ),
    "gradient(F.grid_sample, at(1, 1, 4, 4), at(1, 2, 2, 2), align_corners=False)": (
        "grid_sampler_2d_backward_cuda"
    ),
    "F.nll_loss(at(1, 2, 3, 3), torch.zeros(1, 3, 3, dtype=torch.long).to('remote'))": (
        "nll_loss2d_forward_out_cuda_template"
    ),
    "F.nll_loss(at(1, 2, 3, 3), torch.zeros(1, 3, 3, dtype=torch.long).to('remote'),"
    "reduction='none')": "",
    "gradient(lambda w: F.embedding_bag(ones, w, mode='max'), at(3, 2))": (
        "embedding_bag_backward_cuda_max"
    ),
    "gradient(lambda w: F.embedding_bag(ones, w, mode='sum'), at(3, 2))": "",
    "at(5).histc()": "_histc_cuda with floating point input",
    "at(5).median()": "",
    "at(5).median(0)": "median CUDA with indices output",
    "torch.nanmedian(at(5), 0)": "median CUDA with indices output",
    "torch.bincount(at(5).long())": "",
    "torch.bincount(at(5).long(), at(5))": "_bincount_cuda",
    "at(5).scatter_reduce(0, at(5).long(), at(5), 'prod')": "scatter_reduce_cuda_prod_",
    "at(5).scatter_reduce_(0, at(5).long(), at(5), 'sum')": "",
    "at(5).scatter_(0, at(5).long(), at(5), reduce='multiply')": "scatter_reduce_cuda_kernel",
    "at(5).index_reduce(0, at(5).long(), at(5), 'prod')": "index_reduce_cuda",
    "F.max_unpool2d(at(1, 1, 2, 2), at(1, 1, 2, 2).long(), 2)": "max_unpooling2d_forward_out",
}
ALERTING = """
torch.use_deterministic_algorithms(True)
ones = torch.ones(1, 2, dtype=torch.long, device="remote")
def gradient(function, x, *args, **kwargs):
    function(x.requires_grad_(), *args, **kwargs).sum().backward()
def alert(code):
    warnings.simplefilter("ignore")
    try:
        exec(code)
    except RuntimeError as error:
        print(str(error).partition(" does not have")[0])
    else:
        print()
"""
Run = tuple[dict[str, list[str]], dict[str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All cases in one client, each after a marker: a call that nothing else makes."""
    folder: Path = tmp_path_factory.mktemp("cuda")
    marker = "torch.ones(1, device='remote').erfinv()"
    steps = [f"{marker}\ntried(lambda: exec({code!r}))" for code, _, _ in CASES.values()]
    steps += [marker, ALERTING, *(f"alert({code!r})" for code in ALERTS)]
    with pretended_cuda(folder) as (url, read_calls):
        done = run_python(SETUP + "\n".join(steps), TORCH_REMOTE=url, TORCH_REMOTE_LOG="error")
        assert done.returncode == 0, done.stderr
        text = " ".join(call.removeprefix("aten::") for call in read_calls())
    parts = text.split("erfinv")[1:-1]
    calls = dict(zip(CASES, (part.split() for part in parts), strict=True))
    return calls, dict(zip(ALERTS, done.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("code", ALERTS)
def test_a_call_alerts_where_cuda_has_no_deterministic_kernel(code: str, run: Run) -> None:
    assert run[1][code] == ALERTS[code]


@pytest.mark.parametrize("case", CASES)
def test_a_cuda_server_is_sent_the_operators_that_cuda_runs(case: str, run: Run) -> None:
    _, wanted, unwanted = CASES[case]
    calls = run[0][case]
    assert [call for call in calls if call in wanted] == wanted, calls
    assert not set(unwanted) & set(calls), calls
