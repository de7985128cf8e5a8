"""Composed samples: the folders in the package are what the generator makes, and nothing in them is a probe's trouble."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import epctl.checks  # noqa: F401 - registers them
from epctl.core.check import registered
from epctl.core.doctor import Report, examine
from epctl.core.fact import Absent
from epctl.core.snapshot import Snapshot
from epctl.probes import bundle, load
from epctl.probes.source import Recording
from tests.samples import COMPOSED, parts

HEALTHY = ("hgx-h100-ib", "p5-efa", "gb200-nvl")
AREAS = ("host", "gpu", "pcie", "rdma", "gdr", "software", "env", "active")
MAX_BYTES = 460_000
"""Of one sample. 32 EFA devices take the most."""


def report(name: str, num_nodes: int = 1) -> Report:
    return examine(load.sample(name), registered().values(), (), num_nodes)


def absent(thing: Any, path: str) -> Iterator[tuple[str, Absent]]:  # noqa: ANN401 - any fact
    """Every absent fact below `thing`, with its place."""
    if isinstance(thing, Absent):
        yield path, thing
    elif isinstance(thing, msgspec.Struct):
        for field in thing.__struct_fields__:
            yield from absent(getattr(thing, field), f"{path}.{field}")
    elif isinstance(thing, tuple):
        for i, entry in enumerate(thing):
            yield from absent(entry, f"{path}.{i}")


@pytest.mark.parametrize("name", COMPOSED)
def test_the_folder_is_what_the_generator_makes(name: str) -> None:
    folder = parts.SAMPLES / name
    there = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    made = parts.members_of(name, COMPOSED[name])
    assert there.keys() == made.keys(), "run `python -m tests.samples`"
    assert [member for member in made if made[member] != there[member]] == [], "run `python -m tests.samples`"
    assert sum(map(len, made.values())) < MAX_BYTES


def test_every_other_sample_was_recorded_on_a_machine() -> None:
    others = [folder for folder in parts.SAMPLES.iterdir() if folder.is_dir() and folder.name not in COMPOSED]
    assert [folder.name for folder in others if not parts.is_recorded(folder)] == []


@pytest.mark.parametrize("name", COMPOSED)
def test_nothing_in_it_failed_or_could_not_be_read(name: str) -> None:
    node = load.sample(name)
    assert isinstance(node, Snapshot)
    assert node.origin.hand_made
    trouble = [
        (path, str(fact), fact.line)
        for area in AREAS
        for path, fact in absent(getattr(node, area), area)
        if fact.absent in ("failed", "unparsable", "timed_out")
    ]
    assert trouble == []
    assert {area: getattr(getattr(node, area), "notes", ()) for area in AREAS} == dict.fromkeys(AREAS, ())


@pytest.mark.parametrize("name", COMPOSED)
def test_every_document_that_probes_ask_for_is_composed(name: str) -> None:
    recording = load.bundle_at(None, name).recording
    assert [document for document, found in recording.documents.items() if isinstance(found, Absent)] == []


@pytest.mark.parametrize("num_nodes", [1, 4])
@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_wrong_with_a_healthy_node(name: str, num_nodes: int) -> None:
    found = report(name, num_nodes).findings
    assert [(entry.id, entry.evidence) for entry in found if entry.status == "failed"] == []
    unclear = [text for entry in found if entry.status == "unknown" for text in entry.evidence]
    assert [text for text in unclear if "not probed" not in text] == []


def test_the_degraded_node_fails_for_its_faults_and_what_follows_from_them() -> None:
    failed = {entry.id: entry for entry in report("hgx-h200-roce-degraded").findings if entry.status == "failed"}
    assert {id_ for id_, entry in failed.items() if entry.severity == "fail"} == {
        "NVLINK-INACTIVE",
        "NVLS-BIND-HANG",
        "NIC-ACTIVE-RATE",
        "ROCE-MTU-SMALL",
    }
    for id_, word in (("NVLINK-INACTIVE", "GPU 5"), ("NIC-ACTIVE-RATE", "mlx5_3"), ("ROCE-MTU-SMALL", "mlx5_6")):
        assert [text for text in failed[id_].evidence if not text.startswith(word)] == []
    assert failed["CPU-NUMA-BALANCING"].severity == "warn"


@pytest.mark.parametrize(
    ("name", "rungs"),
    [
        ("hgx-h100-ib", ("yes", "yes", "yes", "yes", "no", "yes", "no")),
        ("hgx-h200-roce-degraded", ("yes", "yes", "no", "yes", "no", "no", "no")),
        ("p5-efa", ("yes", "yes", "yes", "no", "no", "no", "no")),
        ("gb200-nvl", ("yes", "yes", "yes", "yes", "no", "yes", "no")),
        ("laptop", ("no",) * 7),
    ],
)
def test_the_ladder_of_each(name: str, rungs: tuple[str, ...]) -> None:
    assert tuple(rung.state for rung in report(name).ladder) == rungs


def test_a_recorded_sample_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SAMPLES", tmp_path)
    parts.write("laptop", COMPOSED["laptop"])
    (tmp_path / "laptop" / "commands" / "old.txt").write_text("left over")
    parts.write("laptop", COMPOSED["laptop"])
    assert not (tmp_path / "laptop" / "commands" / "old.txt").exists()
    manifest = bundle.pack(bundle.Bundle(bundle.Manifest(hand_made=False), Recording()))["manifest.json"]
    (tmp_path / "laptop" / "manifest.json").write_bytes(manifest)
    with pytest.raises(ValueError, match="recorded"):
        parts.write("laptop", COMPOSED["laptop"])


def test_two_parts_may_not_answer_differently() -> None:
    with pytest.raises(ValueError, match="/a"):
        parts.join((parts.Part(files={"/a": "1"}), parts.Part(files={"/a": "2"})))


def test_the_generator_gives_the_same_bytes_in_another_process() -> None:
    code = (
        "import hashlib\nfrom tests.samples import COMPOSED\nfrom tests.samples.parts import members_of\n"
        "made = members_of('gb200-nvl', COMPOSED['gb200-nvl'])\n"
        "print(hashlib.sha256(b''.join(name.encode() + made[name] for name in sorted(made))).hexdigest())\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=parts.SAMPLES.parent.parent.parent,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
