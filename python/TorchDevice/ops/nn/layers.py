"""Layers of `torch.nn` with weights, and those between them."""

from torch.nn.modules.conv import *  # noqa: F403
from torch.nn.modules.dropout import *  # noqa: F403
from torch.nn.modules.linear import *  # noqa: F403
from torch.nn.modules.pooling import *  # noqa: F403
from torch.nn.modules.rnn import *  # noqa: F403
from torch.nn.modules.sparse import *  # noqa: F403
from torch.nn.modules.transformer import *  # noqa: F403
