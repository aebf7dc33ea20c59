"""Recording a graph, for the tests of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch_remote

REFUSED = "operation not permitted when stream is capturing"


def recorded(function: Callable[..., Any], *arguments: Any) -> tuple[torch_remote.Graph, Any]:
    graph = torch_remote.Graph()
    with graph:
        result = function(*arguments)
    return graph, result
