"""The key of the cache changes with whatever a build depends on, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epctl.core.errors import EpctlError
from epctl.native.cache_key import Inputs, key, sources

WORD = st.text(max_size=8)
WORDS = st.lists(WORD, max_size=4).map(tuple)
INPUTS = st.builds(
    Inputs, st.lists(st.tuples(WORD, WORD), max_size=3).map(tuple), WORDS, WORDS, WORD, WORD, st.integers(0, 3)
)


@given(INPUTS, INPUTS)
def test_two_inputs_have_one_key_when_they_are_equal_and_only_then(one: Inputs, other: Inputs) -> None:
    assert (key(one) == key(other)) == (one == other)


@given(INPUTS, st.data())
def test_every_field_counts(one: Inputs, data: st.DataObject) -> None:
    changed = data.draw(st.sampled_from(Inputs.__struct_fields__))
    other = replace(one, **{changed: getattr(data.draw(INPUTS), changed)})
    assert (key(one) == key(other)) == (one == other)


@given(WORDS)
def test_flags_are_not_run_together(flags: tuple[str, ...]) -> None:
    joined = Inputs((), ("".join(flags),), ())
    assert key(joined) != key(Inputs((), flags, ())) or flags == joined.flags


def tree(root: Path) -> Path:
    (root / "include" / "e").mkdir(parents=True)
    (root / "ops").mkdir()
    (root / "ops" / "a.cu").write_text(
        '#include <cuda.h>\n#include <e/x.cuh>\n#  include "local.h"\n// #include "gone.h"\n'
    )
    (root / "ops" / "local.h").write_text("#pragma once\n")
    (root / "include" / "e" / "x.cuh").write_text('#pragma once\n#include "y.cuh"\n')
    (root / "include" / "e" / "y.cuh").write_text('#pragma once\n#include "x.cuh"\n')
    (root / "include" / "e" / "other.cuh").write_text("")
    return root / "ops" / "a.cu"


def test_includes_are_followed(tmp_path: Path) -> None:
    entry = tree(tmp_path)
    found = sources(entry, tmp_path, (tmp_path / "include",))
    assert [name for name, _ in found] == ["ops/a.cu", "include/e/x.cuh", "include/e/y.cuh", "ops/local.h"]
    for name, _ in found:
        path = tmp_path / name
        before = path.read_text()
        path.write_text(before + "\n")
        assert sources(entry, tmp_path, (tmp_path / "include",)) != found
        path.write_text(before)
    (tmp_path / "include" / "e" / "other.cuh").write_text("int x;")
    assert sources(entry, tmp_path, (tmp_path / "include",)) == found


def test_files_outside_of_the_root_are_not_followed(tmp_path: Path) -> None:
    entry = tree(tmp_path / "root")
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl" / "cuda.h").write_text("")
    found = sources(entry, tmp_path / "root", (tmp_path / "root" / "include", tmp_path / "nccl"))
    assert "cuda.h" not in {Path(name).name for name, _ in found}


def test_an_include_that_only_the_compiler_could_resolve(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("#include WHAT\n")
    with pytest.raises(EpctlError, match="cannot be followed"):
        sources(tmp_path / "a.cu", tmp_path, ())
