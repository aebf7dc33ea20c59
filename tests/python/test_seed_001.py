"""Every code block of seed 001 (the architecture of torch-modal), as it is written there."""

from __future__ import annotations

import pytest
from helpers import assert_runs
from seed_scripts import run_blocks, run_line

pytestmark = pytest.mark.slow

CONFIGURATION = """
import torch_modal

# Enable remote execution (default)
torch_modal.enable_remote_execution()

# Disable remote execution (use local execution)
torch_modal.disable_remote_execution()

# Check current setting
print(torch_modal.is_remote_execution_enabled())
"""

OPERATION_FLOW = """
import torch, torch_modal
modal_tensor_a, modal_tensor_b = torch.ones(2, device="modal"), torch.ones(2, device="modal")
result = torch.add(modal_tensor_a, modal_tensor_b)
print(result.tolist(), result.device)
"""


def test_configuration() -> None:
    assert run_blocks(CONFIGURATION) == ["False"]


def test_operation_flow() -> None:
    assert run_blocks(OPERATION_FLOW) == ["[2.0, 2.0] modal:0"]


def test_the_device_module_has_the_functions_that_are_listed() -> None:
    code = """
        import torch, torch_modal
        with torch.modal.device(1):
            print(torch.modal.current_device(), torch.ones(1).modal().device)
        print(torch.modal.device_count(), torch.modal.is_available())
        print(torch_modal.modal.FloatTensor, torch_modal.modal.DoubleTensor)
    """
    assert assert_runs(code).splitlines() == [
        "1 modal:1",
        "2 True",
        "<class 'torch.modal.FloatTensor'> <class 'torch.modal.DoubleTensor'>",
    ]


def test_the_demo() -> None:
    said = run_line("python demo_manual_remote.py")
    assert "the same values: True" in said and "aten::mm runs on the server" in said
