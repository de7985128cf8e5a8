"""Archives: bombs in headers, places that must not be replaced, and names that other tar programs give in extended headers."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from epctl.core.errors import EpctlError
from epctl.probes import archive


def header(name: str, size: int, kind: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def whole(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def packed(path: Path, *parts: bytes) -> Path:
    path.write_bytes(gzip.compress(b"".join(parts) + bytes(1024), 1))
    return path


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_huge_extended_header_is_refused_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    path = packed(tmp_path / "a.tgz", header("x", 100 << 20, kind), bytes(100 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(EpctlError, match="refused") as caught:
            archive.read_archive(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert "extended header" in caught.value.why


def test_chained_extended_headers_are_refused(tmp_path: Path) -> None:
    record = header("x", 13, b"x") + whole(b"13 mtime=123\n")
    with pytest.raises(EpctlError, match="refused") as caught:
        archive.read_archive(packed(tmp_path / "a.tgz", record * 5000))
    assert "in front of one member" in caught.value.why


def test_folders_count_as_members(tmp_path: Path) -> None:
    with pytest.raises(EpctlError, match="refused") as caught:
        archive.read_archive(packed(tmp_path / "a.tgz", header("a", 0, b"5") * 50_000))
    assert "members" in caught.value.why


@pytest.mark.parametrize("record", [b"17 size=99999999\n", b"22 GNU.sparse.major=1\n"])
def test_a_size_that_an_extended_header_changes_is_refused(tmp_path: Path, record: bytes) -> None:
    assert int(record.split()[0]) == len(record)
    parts = header("x", len(record), b"x"), whole(record), header("a", 1, b"0"), whole(b"1")
    with pytest.raises(EpctlError, match="refused") as caught:
        archive.read_archive(packed(tmp_path / "a.tgz", *parts))
    assert "sparse" in caught.value.why


@pytest.mark.parametrize("record", [b"x", b"99 path=a\n", b"0 a=\n", b"-1 path=a\n", b"3 \n"])
def test_a_damaged_pax_header_is_refused(tmp_path: Path, record: bytes) -> None:
    parts = header("x", len(record), b"x"), whole(record), header("a", 1, b"0"), whole(b"1")
    with pytest.raises(EpctlError, match="refused"):
        archive.read_archive(packed(tmp_path / "a.tgz", *parts))


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EpctlError, match="refused"):
        archive.read_archive(packed(tmp_path / "a.tgz", header("a", 0, b"S")))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_of_every_tar_format_are_read(tmp_path: Path, form: int) -> None:
    name = f"commands/{'c' * 90}.txt"
    (tmp_path / "content").write_bytes(b"x" * 700)
    with tarfile.open(tmp_path / "a.tgz", "w:gz", format=form, pax_headers={"comment": "c"}) as out:
        out.add(tmp_path, "./commands", recursive=False)
        out.add(tmp_path / "content", f"./{name}")
        out.add(tmp_path / "content", "short")
    assert archive.read_archive(tmp_path / "a.tgz") == {name: b"x" * 700, "short": b"x" * 700}


def test_a_name_in_an_extended_header_may_not_lead_out(tmp_path: Path) -> None:
    parts = header("x", 12, b"L"), whole(b"../../../x\0\0"), header("a", 1, b"0"), whole(b"1")
    with pytest.raises(EpctlError, match="refused") as caught:
        archive.read_archive(packed(tmp_path / "a.tgz", *parts))
    assert "leads out of it" in caught.value.why


def test_a_wrong_checksum_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    archive.write_archive({"a": b"x"}, path)
    raw = bytearray(path.read_bytes())
    raw[-6] ^= 1
    path.write_bytes(raw)
    with pytest.raises(EpctlError, match="refused"):
        archive.read_archive(path)


def test_a_bomb_behind_the_last_member_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EpctlError, match="refused"):
        archive.read_archive(packed(tmp_path / "a.tgz", header("a", 0, b"0"), bytes(4 << 20)))


def test_a_pipe_is_neither_waited_for_nor_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(EpctlError, match="no file"):
        archive.read_archive(path)
    with pytest.raises(EpctlError, match="no regular file"):
        archive.write_archive({"a": b"x"}, path)
    assert stat.S_ISFIFO(path.lstat().st_mode)


def test_a_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(EpctlError, match="no regular file") as caught:
        archive.write_archive({"a": b"x"}, tmp_path / "link")
    assert "a link" in caught.value.why
    assert (tmp_path / "link").is_symlink()


def test_a_link_at_a_foreseeable_temporary_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("keep")
    (tmp_path / "x.tgz.part").symlink_to("victim")
    archive.write_archive({"a": b"x"}, tmp_path / "x.tgz")
    assert (tmp_path / "victim").read_text() == "keep"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["victim", "x.tgz", "x.tgz.part"]


def test_an_earlier_bundle_is_replaced_by_one_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "x.tgz"
    path.write_text("old")
    size_bytes = archive.write_archive({"a": b"x"}, path)
    assert archive.read_archive(path) == {"a": b"x"}
    assert path.stat().st_size == size_bytes
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("length", [252, 300])
def test_a_long_name_is_written_or_gives_an_error(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("a" * length)
    if length > 255:
        with pytest.raises(EpctlError, match="could not be written"):
            archive.write_archive({"a": b"x"}, path)
    else:
        archive.write_archive({"a": b"x"}, path)
    assert not [file for file in tmp_path.iterdir() if file != path]


def test_what_would_be_refused_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(EpctlError, match="not written"):
        archive.write_archive({str(i): b"" for i in range(archive.MAX_MEMBERS + 1)}, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
