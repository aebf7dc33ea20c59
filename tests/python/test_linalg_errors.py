"""linalg functions that check their input wait once and raise at the call; others do not wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Function = Callable[[torch.Tensor], object]

CHECKED: dict[str, Function] = {
    "inv": torch.linalg.inv,
    "solve": lambda matrix: torch.linalg.solve(matrix, torch.ones_like(matrix)),
    "cholesky": torch.linalg.cholesky,
    "lu_factor": torch.linalg.lu_factor,
    "tensorinv": lambda matrix: torch.linalg.tensorinv(matrix, ind=1),
    "matrix_power": lambda matrix: torch.linalg.matrix_power(matrix, -1),
    "inv_ex": lambda matrix: torch.linalg.inv_ex(matrix, check_errors=True),
    "solve_ex": lambda matrix: torch.linalg.solve_ex(matrix, matrix, check_errors=True),
    "cholesky_ex": lambda matrix: torch.linalg.cholesky_ex(matrix, check_errors=True),
    "lu_factor_ex": lambda matrix: torch.linalg.lu_factor_ex(matrix, check_errors=True),
    "ldl_factor_ex": lambda matrix: torch.linalg.ldl_factor_ex(matrix, check_errors=True),
    "old cholesky": torch.cholesky,
    "cholesky_inverse": torch.cholesky_inverse,
    "svd": torch.linalg.svd,
    "svdvals": torch.linalg.svdvals,
    "eigh": torch.linalg.eigh,
    "eigvalsh": torch.linalg.eigvalsh,
    "eig": torch.linalg.eig,
    "pinv": torch.linalg.pinv,
}
UNCHECKED: dict[str, Function] = {
    "inv_ex": torch.linalg.inv_ex,
    "solve_ex": lambda matrix: torch.linalg.solve_ex(matrix, torch.ones_like(matrix)),
    "cholesky_ex": torch.linalg.cholesky_ex,
    "lu_factor_ex": torch.linalg.lu_factor_ex,
    "ldl_factor_ex": torch.linalg.ldl_factor_ex,
    "det": torch.linalg.det,
    "slogdet": torch.linalg.slogdet,
    "qr": torch.linalg.qr,
}
SINGULAR = torch.zeros(3, 3)
NOT_A_NUMBER = torch.full((3, 3), torch.nan)
REFUSED = {
    name: NOT_A_NUMBER if name.startswith(("svd", "eig", "pinv")) else SINGULAR for name in CHECKED
}
REGULAR = torch.eye(3) * 2


@pytest.mark.parametrize("name", CHECKED)
def test_a_check_waits_once_whether_or_not_it_finds_something(
    name: str, sync_count: Callable[[Callable[[], object]], int]
) -> None:
    function = CHECKED[name]
    function(REGULAR.to("remote"))  # the first call may ask for shapes
    regular, refused = REGULAR.to("remote"), REFUSED[name].to("remote")
    assert sync_count(lambda: function(regular)) == 1

    def fails() -> None:
        with pytest.raises(RuntimeError) as expected:
            function(REFUSED[name])
        with pytest.raises(RuntimeError) as raised:
            function(refused)
        assert type(raised.value) is type(expected.value)
        assert str(raised.value) == str(expected.value)

    assert sync_count(fails) == 1
    assert sync_count(lambda: function(regular)) == 1


@pytest.mark.parametrize("name", ["inv", "solve", "cholesky", "inv_ex", "cholesky_ex", "svd"])
def test_a_singular_matrix_is_a_linalg_error(name: str) -> None:
    with pytest.raises(torch.linalg.LinAlgError):
        CHECKED[name](REFUSED[name].to("remote"))


@pytest.mark.parametrize("name", UNCHECKED)
def test_what_does_not_check_never_waits(
    name: str, sync_count: Callable[[Callable[[], object]], int]
) -> None:
    singular = SINGULAR.to("remote")
    assert sync_count(lambda: UNCHECKED[name](singular)) == 0
