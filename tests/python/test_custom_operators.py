"""Operators of another C++ library, loaded on both sides, and what happens when only one has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers import assert_runs, assert_same, run_python, serving
from library.build import library

import torch_remote

pytestmark = pytest.mark.slow

Counter = Callable[[Callable[[], object]], int]


@pytest.fixture(scope="module")
def path() -> Path:
    """Compiles the library and loads its operators into this process."""
    path = library()
    torch.ops.load_library(path)
    return path


@pytest.fixture(scope="module")
def device(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[torch.device]:
    """A device of a server that has loaded the library."""
    socket = tmp_path_factory.mktemp("server") / "socket"
    with (
        serving(f"unix://{socket}", "--library", str(path)) as url,
        torch_remote.connect(url) as machine,
    ):
        yield machine.devices[0]


def test_an_operator_with_a_meta_kernel_does_not_wait(
    device: torch.device, sync_count: Counter
) -> None:
    x = torch.randn(3, 4).t()
    there = x.to(device)
    torch.ops.tests.scaled(there, 2.0)  # the session learns the server's operators
    results: list[torch.Tensor] = []
    assert sync_count(lambda: results.append(torch.ops.tests.scaled(there, 0.3))) == 0
    expected = torch.ops.tests.scaled(x, 0.3)
    assert_same(results[0].cpu(), expected)
    assert results[0].stride() == expected.stride()


def test_an_operator_without_one_is_asked_of_the_server(device: torch.device) -> None:
    a, b = torch.randn(3), torch.randn(4)
    for _ in range(2):
        assert_same(torch.ops.tests.outer_sum(a.to(device), b.to(device)).cpu(), a[:, None] + b)


def test_two_results_come_back(device: torch.device) -> None:
    x = torch.randn(5)
    up, down = torch.ops.tests.split_sign(x.to(device))
    assert_same((up.cpu(), down.cpu()), torch.ops.tests.split_sign(x))


def test_an_argument_is_written_in_place(device: torch.device, sync_count: Counter) -> None:
    base, here = torch.zeros(6, device=device), torch.zeros(6)
    torch.ops.tests.add_index_(base[2:5], 1)
    assert sync_count(lambda: torch.ops.tests.add_index_(base[2:5], 10)) == 0
    part = base[2:5]
    assert torch.ops.tests.add_index_(part, 0) is part
    for start in (1, 10, 0):
        torch.ops.tests.add_index_(here[2:5], start)
    assert (base.tolist(), base._version) == (here.tolist(), here._version)


def test_a_list_is_written_in_place(device: torch.device) -> None:
    tensors = [torch.zeros(2, device=device), torch.zeros(3, device=device)]
    assert torch.ops.tests.fill_all(tensors, 2.5) is None
    assert [tensor.tolist() for tensor in tensors] == [[2.5] * 2, [2.5] * 3]


def test_data_may_decide_what_comes_out_although_nothing_says_so(device: torch.device) -> None:
    for values in ([1.0, -1.0, 2.0], [1.0, 1.0, 2.0], [-1.0, -1.0, -1.0]):
        x = torch.tensor(values)
        assert_same(torch.ops.tests.positive(x.to(device)).cpu(), torch.ops.tests.positive(x))
        assert torch.ops.tests.count_positive(x.to(device)) == torch.ops.tests.count_positive(x)


def test_a_composed_operator_is_taken_apart_here(device: torch.device) -> None:
    x = torch.randn(3, requires_grad=True)
    there = x.detach().to(device).requires_grad_()
    for tensor in (x, there):
        torch.ops.tests.twice_plus_one(tensor).sum().backward()
    assert x.grad is not None and there.grad is not None
    assert_same(there.grad.cpu(), x.grad)


def test_an_autograd_kernel_of_the_library_is_used(device: torch.device) -> None:
    x = torch.randn(3, requires_grad=True)
    there = x.detach().to(device).requires_grad_()
    for tensor in (x, there):
        torch.ops.tests.cube(tensor).sum().backward()
    assert x.grad is not None and there.grad is not None
    assert_same(there.grad.cpu(), x.grad)


def test_a_meta_kernel_written_in_python_counts_too(
    device: torch.device, sync_count: Counter
) -> None:
    @torch.library.register_fake("tests::outer_sum")
    def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.new_empty(a.shape[0], b.shape[0])

    a, b = torch.randn(5, device=device), torch.randn(2, device=device)
    torch.ops.tests.scaled(a, 2.0)  # the session learns the server's operators
    assert sync_count(lambda: torch.ops.tests.outer_sum(a, b)) == 0
    assert_same(torch.ops.tests.outer_sum(a, b).cpu(), a.cpu()[:, None] + b.cpu())


def test_what_its_kernel_refuses_has_the_local_type_and_words(device: torch.device) -> None:
    with pytest.raises(ValueError, match="refuse never works, and this tensor has 3 elements"):
        torch.ops.tests.refuse(torch.ones(3, device=device))


def test_a_view_is_refused_at_the_call(device: torch.device) -> None:
    with pytest.raises(NotImplementedError, match=r"tests::first_row.*view.*\.cpu\(\)"):
        torch.ops.tests.first_row(torch.ones(2, 2, device=device))


def test_a_server_without_the_library_is_named_at_the_call(path: Path, tmp_path: Path) -> None:
    with serving(f"unix://{tmp_path}/socket") as url, torch_remote.connect(url) as machine:
        x = torch.ones(3, device=machine.devices[0])
        for _ in range(2):
            with pytest.raises(NotImplementedError) as raised:
                torch.ops.tests.scaled(x, 2.0)
            for part in ("tests::scaled", "serve --library", "TORCH_REMOTE_LIBRARY", str(x.device)):
                assert part in str(raised.value)
        assert x.tolist() == [1, 1, 1]


def test_the_embedded_server_takes_libraries_from_the_environment(path: Path) -> None:
    code = f"""
        import torch, torch_remote
        torch.ops.load_library({str(path)!r})
        print(torch.ops.tests.scaled(torch.ones(2, device="remote"), 3.0).tolist())
    """
    assert assert_runs(code, TORCH_REMOTE_LIBRARY=str(path)) == "[3.0, 3.0]"


def test_a_library_that_does_not_load_is_told_where_it_was_given(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_text("no library" * 1000)
    with (
        pytest.raises(AssertionError, match=r"cannot load the library .*broken\.so.*ELF"),
        serving(f"unix://{tmp_path}/socket", "--library", str(broken)),
    ):
        pass
    done = run_python(
        "import torch, torch_remote; torch.ones(2, device='remote').sum().item()",
        TORCH_REMOTE_LIBRARY=str(broken),
    )
    assert "ConnectionError" in done.stderr and "cannot load the library" in done.stderr
