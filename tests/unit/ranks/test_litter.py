"""Shared-memory files of ranks are found and removed; those of others stay."""

from __future__ import annotations

import mmap
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from epctl.ranks import litter


@pytest.fixture
def shm() -> Iterator[Path]:
    """A name for a file in /dev/shm, like NCCL's."""
    if not os.access(litter.SHM, os.W_OK):
        pytest.skip("there is no /dev/shm to write to")
    path = Path(f"{litter.SHM}nccl-{uuid.uuid4().hex[:6]}")
    yield path
    path.unlink(missing_ok=True)


def test_a_file_that_a_process_maps_is_found_and_one_that_nobody_holds_is_an_orphan(shm: Path) -> None:
    began = time.time() - 1
    with shm.open("w+b") as stream:
        stream.truncate(mmap.PAGESIZE)
        assert str(shm) in litter.held([os.getpid()])
        mapped = mmap.mmap(stream.fileno(), mmap.PAGESIZE)
    assert str(shm) in litter.held([os.getpid()])
    assert str(shm) not in litter.orphans(began)
    mapped.close()
    assert str(shm) not in litter.held([os.getpid()])
    if litter.orphans(began):  # nothing is found where other processes may be hidden
        assert str(shm) in litter.orphans(began)


def test_what_is_older_than_the_run_and_what_has_another_name_stays(shm: Path) -> None:
    shm.write_bytes(b"")
    assert str(shm) not in litter.orphans(time.time() + 60)
    litter.remove([str(shm)], time.time() + 60)
    assert shm.exists()
    litter.remove([str(shm)], time.time() - 60)
    assert not shm.exists()
    other = shm.with_name(f"mine-{shm.name}")
    other.write_bytes(b"")
    try:
        with other.open("rb"):
            assert str(other) not in litter.held([os.getpid()])
        assert str(other) not in litter.orphans(time.time() - 60)
    finally:
        other.unlink()
