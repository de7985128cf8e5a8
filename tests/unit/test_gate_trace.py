"""Traces of top-k indices out of files."""

from __future__ import annotations

import struct
import sys
import types
import zipfile
from pathlib import Path

import pytest

from epctl.core.errors import EpctlError
from epctl.probes import gate_trace
from epctl.probes.gate_trace import GateTrace, is_trace, read_rows, read_trace

ROWS = ((0, 1, 2), (3, -1, 5))


def npy(rows: tuple[tuple[int, ...], ...], kind: str = "<i8", *, fortran: bool = False, version: int = 1) -> bytes:
    """A .npy file as numpy.lib.format describes it."""
    head = repr({"descr": kind, "fortran_order": fortran, "shape": (len(rows), len(rows[0]))}).encode() + b"\n"
    cells = (
        [rows[i][k] for k in range(len(rows[0])) for i in range(len(rows))]
        if fortran
        else [v for row in rows for v in row]
    )
    code = {"i1": "b", "i2": "h", "i4": "i", "i8": "q"}[kind[1:]]
    size = struct.pack("<H" if version == 1 else "<I", len(head))
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + size
        + head
        + struct.pack(f"{kind[0].replace('|', '<')}{len(cells)}{code}", *cells)
    )


@pytest.mark.parametrize("kind", ["<i8", "<i4", ">i8", ">i4", "<i2", "|i1"])
@pytest.mark.parametrize("fortran", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_npy(tmp_path: Path, kind: str, fortran: bool, version: int) -> None:
    file = tmp_path / "t.npy"
    file.write_bytes(npy(ROWS, kind, fortran=fortran, version=version))
    assert read_rows(file) == ROWS


def test_npz_takes_the_one_array_or_the_one_of_that_name(tmp_path: Path) -> None:
    file = tmp_path / "t.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("anything.npy", npy(ROWS))
    assert read_rows(file) == ROWS
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("weights.npy", b"")
        archive.writestr("topk_idx.npy", npy(ROWS, "<i4"))
    assert read_rows(file) == ROWS
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", npy(ROWS))
        archive.writestr("b.npy", npy(ROWS))
    with pytest.raises(EpctlError) as error:
        read_rows(file)
    assert "topk_idx" in error.value.why


@pytest.mark.parametrize("text", ["0,1,2\n3,-1,5\n", "e0,e1,e2\n0, 1, 2\n\n3,-1,5", "0 1 2\n3 -1 5\n"])
def test_csv(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.CSV"
    file.write_text(text, "utf-8")
    assert is_trace(str(file))
    assert read_rows(file) == ROWS


DAMAGED = {
    "no npy": ("t.npy", b"hello, this is text"),
    "empty": ("t.npy", b""),
    "head": ("t.npy", b"\x93NUMPY\x01\x00\x04\x00{{{\n"),
    "head of something else": ("t.npy", b"\x93NUMPY\x01\x00\x03\x00[]\n"),
    "floats": ("t.npy", npy(ROWS).replace(b"<i8", b"<f8")),
    "three dimensions": ("t.npy", npy(ROWS).replace(b"(2, 3)", b"(1,2,3)")),
    "short": ("t.npy", npy(ROWS)[:-1]),
    "no zip": ("t.npz", b"PK nothing"),
    "half a zip": ("t.npz", b"PK\x03\x04" + b"\0" * 40),
    "words": ("t.csv", b"0,1\nx,y\n"),
    "nothing": ("t.csv", b"\n\n"),
    "names alone": ("t.csv", b"a,b\n"),
    "names twice": ("t.csv", b"a,b\nc,d\n1,2\n"),
    "a field without end": ("t.csv", b"0," + b"1" * 140_000),
    "a quote without end": ("t.csv", b'0,"1\n' + b"1,2\n" * 50_000),
    "rows of unequal length": ("t.csv", b"0,1\n2\n"),
    "an index alone": ("t.csv", b"token\n0\n1\n"),
    "records": ("t.npy", npy(ROWS).replace(b"'<i8'", b"[('a', '<i8')]")),
    "sizes that are no numbers": ("t.npy", npy(ROWS).replace(b"(2, 3)", b"('2', 3)")),
    "a size below zero": ("t.npy", npy(ROWS).replace(b"(2, 3)", b"(-2, -3)")),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_one_error(tmp_path: Path, name: str) -> None:
    file, raw = DAMAGED[name]
    (tmp_path / file).write_bytes(raw)
    with pytest.raises(EpctlError) as error:
        read_rows(tmp_path / file)
    assert file in error.value.what
    assert error.value.todo


def test_pt_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "t.pt").write_bytes(b"x")
    with pytest.raises(EpctlError) as error:
        read_rows(tmp_path / "t.pt")
    assert "epctl[gpu]" in error.value.todo


class Tensor:
    """What of a tensor is asked for."""

    def __init__(self, rows: list[list[int]], *, floats: bool = False) -> None:
        self.rows = rows
        self.floats = floats
        self.shape = (len(rows), len(rows[0]))

    def is_floating_point(self) -> bool:
        return self.floats

    def dim(self) -> int:
        return 2

    def tolist(self) -> list[list[int]]:
        return self.rows


def test_pt_is_loaded_without_running_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    answers: list[object] = [Tensor([list(row) for row in ROWS]), {"topk_idx": Tensor([[1, 2]]), "w": 0}]
    answers += [Tensor([[1]], floats=True), 5]

    def load(_: object, **given: object) -> object:
        asked.update(given)
        return answers.pop(0)

    torch = types.ModuleType("torch")
    torch.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    (tmp_path / "t.pt").write_bytes(b"x")
    assert read_rows(tmp_path / "t.pt") == ROWS
    assert asked == {"map_location": "cpu", "weights_only": True}
    assert read_rows(tmp_path / "t.pt") == ((1, 2),)
    for _ in range(2):
        with pytest.raises(EpctlError):
            read_rows(tmp_path / "t.pt")


def test_a_mark_of_byte_order_costs_no_row(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(b"\xef\xbb\xbf0,1,2\n3,-1,5\n")
    assert read_rows(file) == ROWS


@pytest.mark.parametrize("name", ["token", "idx", "Index", ""])
def test_a_column_of_row_numbers_is_no_expert(tmp_path: Path, name: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(f"{name},e0,e1,e2\n0,0,1,2\n1,3,-1,5\n", "utf-8")
    found = read_trace(file)
    assert found.rows == ROWS
    assert f"({name or 'without heading'})" in found.note


@pytest.mark.parametrize("form", ["csv", "npy", "fortran"])
def test_of_a_long_trace_rows_are_taken_evenly_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(gate_trace, "MAX_ROWS", 10)
    rows = tuple((token, token + 1) for token in range(35))
    file = tmp_path / ("t.csv" if form == "csv" else "t.npy")
    text = "\n".join(",".join(map(str, row)) for row in rows)
    file.write_bytes(text.encode() if form == "csv" else npy(rows, fortran=form == "fortran"))
    found = read_trace(file)
    assert found.rows == rows[:: found.stride]
    assert 5 <= len(found.rows) <= 10
    assert f"{len(found.rows)} of its 35 rows" in found.note
    monkeypatch.setattr(gate_trace, "MAX_ROWS", 35)
    assert read_trace(file) == GateTrace(rows, 35, 1)
    assert read_trace(file).note == ""
