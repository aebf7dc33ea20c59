"""Tests of the kernel suite, and the suite itself on modules that PyTorch composes by device."""

from __future__ import annotations

import kernel_suite
from kernel_trees import difference, kernels

LINEAR = ["aten::linear", [["aten::t", [["aten::as_strided", []]]], ["aten::addmm", []]]]
SCALED = ["aten::mul.Scalar", [["aten::mul.Tensor", []]]]
SAVED = ["aten::mul_.Tensor", [["aten::clone", [["aten::copy_", []]]]]]


def test_a_composed_operator_is_the_operators_it_calls():
    assert difference([LINEAR], ["aten::addmm"], "CPU") is None
    assert list(kernels([LINEAR], "CPU")) == ["aten::addmm"]


def test_an_operator_may_travel_whole_or_as_what_pytorch_makes_of_it():
    assert difference([SCALED], ["aten::mul.Scalar"], "CPU") is None
    assert difference([SCALED], ["aten::mul.Tensor"], "CPU") is None


def test_another_operator_is_a_difference():
    assert difference([LINEAR], ["aten::mm"], "CPU") == (
        "call 0 is aten::mm, locally aten::addmm, in aten::linear"
    )


def test_a_missing_and_a_further_call_are_differences():
    assert difference([LINEAR], [], "CPU") is not None
    assert difference([LINEAR], ["aten::addmm", "aten::relu"], "CPU") is not None


def test_the_order_of_calls_matters():
    trees = [["aten::relu", []], ["aten::neg", []]]
    assert difference(trees, ["aten::relu", "aten::neg"], "CPU") is None
    assert difference(trees, ["aten::neg", "aten::relu"], "CPU") is not None


def test_what_autograd_keeps_of_an_operand_is_cloned_before_the_operator():
    assert difference([SAVED], ["aten::clone", "aten::mul_.Tensor"], "CPU") is None
    assert list(kernels([SAVED], "CPU")) == ["aten::clone", "aten::mul_.Tensor"]


def test_between_cuda_and_the_host_a_copy_is_no_call_but_on_a_cpu_it_is():
    moved = ["aten::_to_copy", [["aten::empty_strided", []], ["aten::copy_", []]]]
    assert difference([moved], [], "CUDA") is None
    assert difference([moved], [], "CPU") is not None


def test_more_calls_than_kernels_are_a_difference():
    whole = ["aten::native_layer_norm", [["aten::mean", []], ["aten::rsqrt", []]]]
    found = kernel_suite.difference([whole], ["aten::mean", "aten::rsqrt"], "cpu")
    assert found is not None
    assert found.startswith("2 calls for 1 kernels")


def test_modules_that_branch_on_the_device_run_the_servers_kernels():
    outcome = kernel_suite.run(
        modules=["nn.BatchNorm2d", "nn.GRU", "nn.LSTM", "nn.MaxPool1d", "nn.RMSNorm", "optim.Adam"],
        samples=1,
    )
    assert outcome.failures == []
    assert outcome.passed == 5 * 5 + 6  # five passes of each module; a sum of each
