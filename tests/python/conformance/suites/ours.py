"""Which entries of op_db and module_db reach a kernel of ours that is more than one call.

`make conformance` runs the tracing suites for these, `make nightly` for all.
"""

from __future__ import annotations

from torch.testing._internal.opinfo.core import OpInfo

# By kernel: the OpInfos and modules that reach it. test_ours.py checks that no kernel is missing.
REACHED_BY: dict[str, tuple[str, ...]] = {
    "_batch_norm_impl_index": (
        "nn.functional.batch_norm",
        "nn.functional.instance_norm",
        "nn.BatchNorm2d",
        "nn.InstanceNorm1d",
    ),
    "convolution": (
        "nn.functional.conv1d",
        "nn.functional.conv2d",
        "nn.functional.conv3d",
        "nn.functional.conv_transpose2d",
        "nn.Conv1d",
        "nn.Conv2d",
        "nn.ConvTranspose2d",
        "Residual",
    ),
    "ctc_loss": ("nn.functional.ctc_loss", "nn.CTCLoss"),
    "dropout": ("nn.functional.dropout", "nn.Dropout"),
    "grid_sampler": ("nn.functional.grid_sample",),
    "group_norm": ("nn.functional.group_norm", "nn.GroupNorm"),
    "gru": ("nn.GRU",),
    "gru_cell": ("nn.GRUCell",),
    "log_softmax": ("log_softmax", "nn.LogSoftmax", "nn.CrossEntropyLoss"),
    "lstm": ("nn.LSTM",),
    "lstm_cell": ("nn.LSTMCell",),
    "max_pool1d": ("nn.functional.max_pool1d", "nn.MaxPool1d"),
    "rms_norm": ("nn.functional.rms_norm", "nn.RMSNorm"),
    "rnn_relu": ("nn.RNN",),
    "rnn_tanh": ("nn.RNN",),
    "scaled_dot_product_attention": (
        "nn.functional.scaled_dot_product_attention",
        "nn.functional.multi_head_attention_forward",
        "nn.MultiheadAttention",
        "nn.TransformerEncoderLayer",
        "Attention",
    ),
    "softmax": ("softmax", "nn.Softmax"),
    # Views, factories, copies and resizes, which run on the client.
    "view": ("view", "unfold", "as_strided", "reshape", "unsafe_split", "split"),
    "empty": ("new_empty", "ones_like", "zeros_like"),
    "copy_": ("to", "clone", "copysign"),
}

_ENTRIES = frozenset(entry for entries in REACHED_BY.values() for entry in entries)


def is_ours(op: OpInfo) -> bool:
    return op.name in _ENTRIES


def is_our_module(name: str) -> bool:
    return name in _ENTRIES
