"""Tests of the suite itself, on the CPU: it must be able to fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gaps
import pool
import pytest
import torch
from both import Run, compare
from cases import COMPARED, NOTHING, REFUSED, Case, NotOnThisDevice, outcome_of
from comparing import Mismatch, check_aliasing, check_equal
from moving import Mover
from report import Report

CRASHING_WORKER = """
import json, os, sys, time
print(json.dumps({"cases": []}), flush=True)
for line in sys.stdin:
    op = json.loads(line)["op"]
    if op == "crashes":
        print("last words", file=sys.stderr, flush=True)
        os.abort()
    if op == "hangs":
        time.sleep(60)
    print(json.dumps({"status": "passed", "pid": os.getpid()}), flush=True)
"""


def case(op: str) -> dict[str, str]:
    return {"suite": "ops", "op": op, "variant": "forward", "dtype": "float32"}


def answer(status: str) -> dict[str, object]:
    return {"status": status, "reason": "why", "details": "", "mispredicted": 0}


def test_a_moved_sample_keeps_strides_offsets_and_shared_storage():
    base = torch.arange(24.0)
    first, second = base[1:13].view(3, 4).t(), base[4:8]
    sample = SimpleNamespace(input=first, args=[[second]], kwargs={"device": "cpu"})

    moved_first, ((moved_second,),), kwargs = Mover("cpu").move_sample(sample)

    assert moved_first.stride() == first.stride()
    assert moved_first.storage_offset() == 1
    assert torch.equal(moved_first, first)
    assert moved_first.untyped_storage()._cdata == moved_second.untyped_storage()._cdata
    assert moved_first.untyped_storage()._cdata != base.untyped_storage()._cdata
    assert kwargs == {"device": "cpu"}


def test_a_moved_tensor_keeps_conj_and_neg_bits_and_requires_grad():
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    negative = conjugate.imag
    leaf = torch.randn(2, 3).requires_grad_()
    mover = Mover("cpu")

    moved = mover.move([conjugate, negative, leaf])

    assert moved[0].is_conj()
    assert moved[1].is_neg()
    assert moved[2].is_leaf
    assert [copy.requires_grad for copy in moved] == [False, False, True]
    assert all(map(torch.equal, moved, [conjugate, negative, leaf]))
    assert len(mover.differentiable_inputs()) == 1


def test_any_nan_equals_any_nan():
    positive, negative = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float)
    check_equal(positive, negative, "cpu")


@pytest.mark.parametrize(
    ("want", "got", "text"),
    [
        (torch.tensor(0.0), torch.tensor(-0.0), "1 of 1 values"),
        (torch.ones(2), torch.full((2,), 1.0000001), "2 of 2 values"),
        (torch.ones(2), torch.ones(2, dtype=torch.double), "dtype"),
        (torch.ones(2), torch.ones(1, 2), "shape"),
        (torch.ones(2, 3), torch.ones(3, 2).t(), "strides"),
        (torch.tensor([complex(1, -0.0)]), torch.tensor([1 + 0j]).conj(), "is_conj"),
        ([torch.ones(1)], [torch.ones(1)] * 2, "structure"),
        (torch.ones(1), 1.0, "instead of a tensor"),
        (1, 2, "2 instead of 1"),
    ],
)
def test_a_difference_is_a_mismatch(want, got, text):
    with pytest.raises(Mismatch, match=text):
        check_equal(want, got, "cpu")


def test_an_answer_on_another_device_is_a_mismatch():
    with pytest.raises(Mismatch, match="on cpu instead of meta"):
        check_equal(torch.ones(1), torch.ones(1), "meta")


def test_gaps_are_read_as_they_were_written(tmp_path: Path):
    path = tmp_path / "gaps.toml"
    gap = gaps.Gap("a.b", "forward", "float32", 'says "no" \\ and ends\n')

    gaps.write(path, [gap])

    assert gaps.read(path) == {gap.key: gap}
    assert gaps.parse_simple(path.read_text())["gap"][0]["reason"] == gap.reason


def test_a_gap_listed_twice_is_an_error(tmp_path: Path):
    gap = gaps.Gap("a", "forward", "float32", "why")
    gaps.write(tmp_path / "gaps.toml", [gap, gap])
    with pytest.raises(ValueError, match="twice"):
        gaps.read(tmp_path / "gaps.toml")


@pytest.mark.parametrize(
    ("listed", "status", "exit_status"),
    [
        (False, "passed", 0),
        (False, "failed", 1),
        (False, "skipped", 1),
        (True, "passed", 1),
        (True, "failed", 0),
        (True, "skipped", 0),
        (False, "refused", 0),
        (False, "absent", 0),
        (True, "refused", 0),
    ],
)
def test_the_exit_status_follows_the_list_of_gaps(listed, status, exit_status):
    gap = gaps.Gap("a", "forward", "float32", "why")
    report = Report({gap.key: gap} if listed else {}, total=1, verbose=False)

    report.add(case("a"), answer(status))

    assert report.close(0.0) == exit_status


def test_the_last_line_counts_all_cases(capsys):
    report = Report({}, total=2, verbose=False)
    report.add(case("a"), answer("passed"))
    report.add(case("b"), answer("failed"))
    report.close(0.0)
    assert (
        capsys.readouterr().out.splitlines()[-1].startswith("1 passed, 1 failed, 0 expected gaps")
    )


def test_a_misprediction_is_a_failure():
    report = Report({}, total=1, verbose=False)
    report.add(case("a"), answer("passed") | {"mispredicted": 1})
    assert report.close(0.0) == 1


def test_a_check_that_compares_nothing_is_skipped_and_one_that_only_refuses_is_refused():
    def outcome(*words):
        return outcome_of(Case("a", "forward", "float32", lambda device: iter(words)), "cpu").status

    def absent(device):
        raise NotOnThisDevice("CUDA only")

    assert outcome(NOTHING) == "skipped"
    assert outcome(REFUSED) == "refused"
    assert outcome(REFUSED, COMPARED) == "passed"
    assert outcome_of(Case("a", "forward", "none", absent), "cpu").status == "absent"


def test_other_sharing_or_another_offset_is_a_mismatch():
    base = torch.zeros(4)
    check_aliasing([base, base[1:]], [base, base[1:]])
    with pytest.raises(Mismatch, match="aliasing: tensor 1"):
        check_aliasing([base, base[1:]], [base, base[1:].clone()])
    with pytest.raises(Mismatch, match="offset 2 instead of 0 at 1"):
        check_aliasing([base, base[1:]], [base, base[2:]])


def test_a_result_of_another_layout_must_be_refused_with_the_way_out():
    other = torch.eye(2).to_mkldnn()

    def run(answer):
        return lambda device: Run(other if device == "cpu" else answer(), Mover("cpu"))

    def refuse(text):
        raise NotImplementedError(text)

    assert compare(run(lambda: refuse("move it with .cpu()")), "meta") == REFUSED
    with pytest.raises(Mismatch, match=r"names \.cpu"):
        compare(run(lambda: refuse("no")), "meta")
    with pytest.raises(Mismatch, match="no NotImplementedError"):
        compare(run(lambda: other), "meta")


def test_nested_results_are_compared_part_by_part():
    parts = [torch.ones(2, 3), torch.ones(1, 3)]
    nested = torch.nested.nested_tensor(parts)
    check_equal(nested, torch.nested.nested_tensor(parts), "cpu")
    for other in (nested * 2, torch.nested.nested_tensor(parts[:1]), nested.unsqueeze(1)):
        with pytest.raises(Mismatch):
            check_equal(nested, other, "cpu")


def test_sparse_results_are_compared_part_by_part():
    sparse = torch.eye(2).to_sparse()
    check_equal(sparse, torch.eye(2).to_sparse(), "cpu")
    with pytest.raises(Mismatch, match="_values"):
        check_equal(sparse, sparse * 2, "cpu")
    with pytest.raises(Mismatch, match="is_coalesced"):
        check_equal(sparse, sparse.clone()._coalesced_(False), "cpu")


def test_a_worker_that_crashes_or_hangs_is_replaced(tmp_path: Path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text(CRASHING_WORKER)
    monkeypatch.setattr(pool, "WORKER", script)
    answers = {}

    pool.Pool(jobs=1, arguments=[], timeout_s=1.0).run(
        [case(op) for op in ("first", "crashes", "second", "hangs", "third")],
        lambda case, answer: answers.update({case["op"]: answer}),
    )

    assert answers["crashes"]["reason"] == "crash: exit status -6: last words"
    assert answers["hangs"]["reason"] == "timeout: no answer in 1 s"
    assert len({answers[op]["pid"] for op in ("first", "second", "third")}) == 3
