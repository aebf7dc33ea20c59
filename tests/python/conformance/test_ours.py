"""The list of what reaches our kernels is complete and has no wrong names."""

from __future__ import annotations

import both
import pytest
import torch
from cases import COMPARED, NotOnThisDevice, Scope
from comparing import Mismatch
from suites import module_samples, ours
from torch.testing._internal.common_methods_invocations import op_db

import torch_remote


def test_every_composite_kernel_of_ours_is_in_the_list():
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutogradPrivateUse1")
    local = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutogradXLA"))
    refused = {name for name, route, *_ in torch_remote._C.operator_facts() if route == "refused"}
    names = {name for name in registered if name not in local and name not in refused}
    composites = {name.removeprefix("aten::").split(".")[0] for name in names}
    # tests/python/test_branch_errors.py has this one: no OpInfo calls it.
    composites.discard("_grid_sampler_2d_cpu_fallback")
    assert composites - set(ours.REACHED_BY) == set()


def test_every_entry_of_the_list_exists():
    known = {op.name for op in op_db} | {
        info.name for info in module_samples.modules(Scope(full=True))
    }
    listed = {entry for entries in ours.REACHED_BY.values() for entry in entries}
    assert listed - known == set()


def _run(result: torch.Tensor | Exception) -> both.Run:
    if isinstance(result, Exception):
        raise result
    return both.Run(result, both.Mover("cpu"))


def test_what_the_cpu_cannot_do_is_not_compared_and_the_rest_is():
    works = lambda device: _run(torch.ones(2))  # noqa: E731
    raises = lambda device: _run(ValueError("no"))  # noqa: E731
    assert list(both.compare_where_cpu_works([raises, works], "cpu")) == [COMPARED]
    with pytest.raises(NotOnThisDevice, match="ValueError: no"):
        list(both.compare_where_cpu_works([raises, raises], "cpu"))


def test_a_difference_where_the_cpu_works_is_a_mismatch():
    calls = []

    def differs(device: str) -> both.Run:
        calls.append(device)
        return _run(torch.full((2,), float(len(calls))))

    with pytest.raises(Mismatch):
        list(both.compare_where_cpu_works([differs], "cpu"))
