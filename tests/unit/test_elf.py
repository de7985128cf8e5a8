"""The ELF reader: names, versions and symbols of shared libraries, and a reason for everything that is none."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epctl.core.standalone import elf
from tests.support.elf_file import ElfFile

FORMS = list(itertools.product((True, False), ("<", ">"), ("sections", "hash", "gnu_hash")))
WANTS = (
    ("libc.so.6", ("GLIBC_2.9", "GLIBC_2.34", "GLIBC_PRIVATE")),
    ("libibverbs.so.1", ("IBVERBS_1.1", "IBVERBS_1.14")),
)


def library(is_64: bool = True, order: str = "<", table: str = "sections") -> bytes:
    return ElfFile(is_64=is_64, order=order, table=table).build(
        soname="libmlx5.so.1",
        needed=("libibverbs.so.1", "libc.so.6"),
        versions=("MLX5_1.0", "MLX5_1.25"),
        wants=WANTS,
        exported=("mlx5dv_open_device", "mlx5dv_reg_dmabuf_mr", "other"),
        undefined=("ibv_reg_mr", "memcpy"),
    )


@pytest.mark.parametrize(("is_64", "order", "table"), FORMS)
def test_every_word_size_byte_order_and_way_to_count_symbols(is_64: bool, order: str, table: str) -> None:
    found = elf.parse(library(is_64, order, table), elf.any_of(("memcpy",), ("mlx5dv_", "ibv_")))
    assert found == elf.Elf(
        bits=64 if is_64 else 32,
        machine=62 if is_64 else 20,
        soname="libmlx5.so.1",
        needed=("libibverbs.so.1", "libc.so.6"),
        runpath=("$ORIGIN", "/opt/lib"),
        versions=("MLX5_1.0", "MLX5_1.25"),
        versions_needed=dict(WANTS),
        glibc_needed="2.34",
        exported=("mlx5dv_open_device", "mlx5dv_reg_dmabuf_mr"),
        undefined=("ibv_reg_mr", "memcpy"),
    )


def test_without_a_filter_no_symbol_is_told() -> None:
    found = elf.parse(library())
    assert (found.exported, found.undefined, found.error) == ((), (), "")


@pytest.mark.parametrize(
    ("names", "highest"),
    [
        (("GLIBC_2.9", "GLIBC_2.10"), "2.10"),
        (("GLIBC_2.2.5",), "2.2.5"),
        (("GLIBC_PRIVATE", "GLIBCXX_3.4.30"), ""),
        ((), ""),
    ],
)
def test_glibc_versions_compare_as_numbers(names: tuple[str, ...], highest: str) -> None:
    assert elf.highest_glibc(names) == highest


@pytest.mark.parametrize("raw", [b"", b"\x7fELF", b"#!/bin/sh\n" * 20, bytes(4096), b"INPUT ( libx.so.1 )".ljust(80)])
def test_what_is_no_elf_file_says_so(raw: bytes) -> None:
    assert elf.parse(raw) == elf.Elf(error="not an ELF file")


def test_a_truncated_library_is_damaged_not_empty() -> None:
    whole = library(table="hash")
    assert all(elf.parse(whole[:size]).error for size in range(0, len(whole) - 8, 16))


def test_files(tmp_path: Path) -> None:
    good, empty = tmp_path / "good.so", tmp_path / "empty.so"
    good.write_bytes(library())
    empty.touch()
    assert elf.load(str(good)).soname == "libmlx5.so.1"
    assert elf.load(str(empty)).error
    assert elf.load(str(tmp_path)).error
    assert elf.load(str(tmp_path / "missing")).error == "No such file or directory"


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf to compare with")
def test_the_interpreter_reads_as_readelf_sees_it() -> None:
    path = str(Path(sys.executable).resolve())
    said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    needed = tuple(line.partition("[")[2].rstrip("]") for line in said.splitlines() if "(NEEDED)" in line)
    found = elf.load(path)
    assert (found.error, found.needed) == ("", needed)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(FORMS), st.data())
def test_damage_gives_facts_or_an_error_and_ends(form: tuple[bool, str, str], data: st.DataObject) -> None:
    raw = bytearray(library(*form))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    found = elf.parse(bytes(raw), lambda _: True)
    assert isinstance(found, elf.Elf)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=600))
@example(b"")
def test_any_bytes_behind_the_magic_number(tail: bytes) -> None:
    assert isinstance(elf.parse(b"\x7fELF\x02\x01" + tail, lambda _: True), elf.Elf)
