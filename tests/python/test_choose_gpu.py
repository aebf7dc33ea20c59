"""`choose_gpu()`: the cheapest GPU type that has enough memory, with reasons."""

from __future__ import annotations

import pytest
import torch

from torch_remote import GPUType, choose_gpu, create_modal_device
from torch_remote._gpus import gpu_facts, larger_type, prices_date
from torch_remote_execution import modal_app
from torch_remote_patches.byte_count import parse_bytes


def test_the_table_has_every_type_once_with_memory_price_and_date() -> None:
    assert {each.gpu for each in gpu_facts()} == set(GPUType)
    assert len(gpu_facts()) == len(GPUType)
    assert all(each.memory > 2**30 and each.usd_per_hour > 0 for each in gpu_facts())
    assert prices_date() > "2026-01-01"
    assert list(modal_app.GPU_SPECS) == [each.value for each in GPUType]


@pytest.mark.parametrize(
    ("memory", "gpu"),
    [
        ("1GiB", "T4"),
        ("16GiB", "L4"),
        ("30GiB", "L40S"),
        ("60GiB", "A100-80GB"),
        ("170GiB", "B200"),
    ],
)
def test_bytes_choose_the_cheapest_type_that_holds_them(memory: str, gpu: str) -> None:
    choice = choose_gpu(memory)
    assert choice.gpu is GPUType(gpu)
    assert choice.memory_needed == parse_bytes(memory)
    assert gpu in choice.why


def test_training_needs_more_than_inference_and_a_larger_dtype_more_than_a_smaller() -> None:
    count = 1_000_000_000
    training = choose_gpu(count)
    inference = choose_gpu(count, training=False)
    half = choose_gpu(count, dtype=torch.bfloat16)
    assert training.memory_needed > 4 * 4 * count > inference.memory_needed > 4 * count
    assert half.memory_needed < training.memory_needed
    assert inference.gpu is GPUType.T4 and training.gpu is GPUType.L4


def test_a_module_counts_as_its_parameters_and_buffers() -> None:
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(20_000, 20_000, bias=False))
    assert choose_gpu(model).memory_needed == choose_gpu(400_000_000).memory_needed
    model.half()
    assert choose_gpu(model).memory_needed == choose_gpu(200_000_000).memory_needed
    model.register_buffer("table", torch.empty(2**30, dtype=torch.uint8, device="meta"))
    assert choose_gpu(model).memory_needed > choose_gpu(200_000_000).memory_needed + 2**30


def test_the_choice_prints_as_a_table_with_a_verdict_for_each_type() -> None:
    lines = str(choose_gpu("60GiB", budget_per_hour=3)).splitlines()
    rows = {line.split()[0]: line for line in lines}
    assert rows["A100-80GB"].endswith("chosen")
    assert rows["T4"].endswith("too small")
    assert rows["H100"].endswith("over the budget")
    assert prices_date() in lines[-1]


def test_what_no_type_holds_or_no_budget_pays_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match=r"no GPU type has 1000.0 GiB; the largest, B200"):
        choose_gpu("1000GiB")
    with pytest.raises(ValueError, match=r"at most 1.00 USD an hour; the cheapest is A100-80GB"):
        choose_gpu("60GiB", budget_per_hour=1)


@pytest.mark.parametrize("need", [None, True, -1, [1]])
def test_a_need_that_is_none_of_the_three_is_a_type_error(need: object) -> None:
    with pytest.raises(TypeError, match="a module, a number of parameters, or bytes as text"):
        choose_gpu(need)  # type: ignore[arg-type]


def test_bytes_without_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="'much' is no number of bytes"):
        choose_gpu("much")
    with pytest.raises(ValueError, match=r"'7B' could be bytes or billions of parameters"):
        choose_gpu("7B")


def test_auto_makes_a_device_of_the_type_chosen() -> None:
    device = create_modal_device("auto", need="60GiB", timeout=5)
    assert device.gpu_type is GPUType.A100_80GB and device.config == {"timeout": 5}
    with pytest.raises(ValueError, match=r"\"auto\" of modal needs need="):
        create_modal_device("auto")


def test_the_next_larger_type_has_more_memory() -> None:
    assert larger_type(GPUType.T4) is GPUType.L4
    assert larger_type(GPUType.A100_80GB) is GPUType.H200
    assert larger_type(GPUType.B200) is None
