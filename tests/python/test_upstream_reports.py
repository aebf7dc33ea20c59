"""How tests/upstream compares two runs of a suite: by test, with a reason or as not explained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "upstream"))
from pytorch_plugin import common_name
from reports import Difference, Result, compare, read


@pytest.mark.parametrize(
    ("remote", "cpu"),
    [
        ("TestSortPRIVATEUSE1.test_isin_remote_float32", "TestSortCPU.test_isin_cpu_float32"),
        ("TestSortREMOTE.test_sort_remote", "TestSortCPU.test_sort_cpu"),
        ("TestIndexCPU.test_cpu_indices_cpu", "TestIndexPRIVATEUSE1.test_cpu_indices_remote"),
        ("TestTorch.test_to_cpu", "TestTorch.test_to_cpu"),
    ],
)
def test_a_test_has_one_name_on_both_devices(remote: str, cpu: str) -> None:
    names = {common_name(*test.split(".")) for test in (remote, cpu)}
    assert len(names) == 1


def test_names_of_different_tests_stay_different() -> None:
    tests = ["test_a_cpu", "test_a_cpu_float32", "test_a_to_cpu_cpu", "test_b_cpu"]
    assert len({common_name("TestCPU", test) for test in tests}) == len(tests)


REPORT = """<testsuites><testsuite>
<testcase classname="test_sort.TestSortCPU" name="test_a_cpu"/>
<testcase classname="test_sort.TestSortCPU" name="test_b_cpu">
<failure message="no&#10;b"/></testcase>
<testcase classname="test_sort.TestSortCPU" name="test_b_cpu"/>
<testcase classname="test_sort.TestSortCPU" name="test_c_cpu"><skipped message="late"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_read_with_the_worst_outcome_of_each_test(tmp_path: Path) -> None:
    report = tmp_path / "cpu.xml"
    report.write_text(REPORT)
    assert read(report, common_name) == {
        "TestSort.test_a": Result("passed", ""),
        "TestSort.test_b": Result("failed", "no\nb"),
        "TestSort.test_c": Result("skipped", "late"),
    }


def test_what_is_worse_on_remote_counts_unless_a_reason_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    passed, skipped = Result("passed", ""), Result("skipped", "Only runs on cpu")
    failed = Result("failed", "wrong\nin detail")
    cpu = {
        "T.a": passed,
        "T.b": passed,
        "T.c": passed,
        "T.d": skipped,
        "T.e": failed,
        "T.f": passed,
    }
    remote = {"T.a": passed, "T.b": failed, "T.c": skipped, "T.d": failed, "T.e": failed}
    assert compare("sort", cpu, remote, []) == 4
    said = capsys.readouterr().out
    assert "passed → failed: T.b: NOT EXPLAINED: wrong\n" in said
    assert "passed → missing: T.f" in said and "T.e" not in said and "T.a" not in said
    reasons = [
        Difference(r"", "for the CPU only", r"Only runs on cpu"),
        Difference(r"^sort T\.[bd]$", "named"),
    ]
    assert compare("sort", cpu, remote, reasons) == 1
    assert "1 passed → skipped: for the CPU only" in capsys.readouterr().out
