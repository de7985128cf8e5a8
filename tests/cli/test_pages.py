"""`--format html` as it is typed."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli import Run, three_lines


def test_fabric_writes_one_page_with_its_data(run: Run, tmp_path: Path) -> None:
    ran = run("fabric", "--layout", "pd", "--format", "html", "--output", tmp_path / "page.html")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>epctl fabric: 4 nodes x 8 GPUs</title>" in page
    assert '"command":"epctl fabric --layout pd"' in page


def test_fabric_pages_are_the_same_each_time(run: Run) -> None:
    assert run("fabric", "--format", "html").out == run("fabric", "--format", "html").out


def test_compare_has_no_page(run: Run) -> None:
    three_lines(run("fabric", "compare", "rail", "tor", "--format", "html"))


def test_fabric_of_a_shape_that_cannot_be_has_no_page(run: Run) -> None:
    three_lines(run("fabric", "--nodes", "3", "--format", "html"))


def test_topo_writes_one_page_and_keeps_its_exit_code(run: Run) -> None:
    ran = run("topo", "--sample", "hgx-h100-ib", "--format", "html")
    assert (ran.code, ran.err) == (0, "")
    assert "<title>epctl topo: hgx-h100-31</title>" in ran.out
    assert run("topo", "--sample", "h200x2-vm", "--ep", "4", "--format", "html").code == 1
    assert run("topo", "--sample", "laptop", "--format", "html").code == 4
