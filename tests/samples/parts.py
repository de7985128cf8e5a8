"""A made-up machine as its raw outputs: parts that are joined, recorded by the probes, and written as a bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from epctl.core.fact import Absent
from epctl.core.snapshot import Origin
from epctl.probes import bundle, take
from epctl.probes.source import Output, RecordingSource
from tests.support.fake_source import FakeSource

TAKEN_AT = "2026-11-30T12:00:00Z"
SAMPLES = Path(__file__).parent.parent.parent / "epctl" / "data" / "samples"

K = TypeVar("K")
V = TypeVar("V")
Argv = tuple[str, ...]


class Part(Struct, frozen=True):
    """Some of the answers of a machine. `devices`: device files that may be read and written."""

    files: dict[str, str | bytes | Absent] = {}
    targets: dict[str, str | Absent] = {}
    folders: dict[str, tuple[str, ...]] = {}
    commands: dict[Argv, str | Output] = {}
    documents: dict[str, Any] = {}
    devices: tuple[str, ...] = ()


class Sample(Struct, frozen=True):
    """One packaged sample: a line that says what it is, and the parts of its machine."""

    description: str
    build: Callable[[], tuple[Part, ...]]


def join(parts: tuple[Part, ...]) -> Part:
    """All parts as one. Raises ValueError where two answer the same question differently."""
    return Part(
        files=_merged([part.files for part in parts]),
        targets=_merged([part.targets for part in parts]),
        folders=_merged([part.folders for part in parts]),
        commands=_merged([part.commands for part in parts]),
        documents=_merged([part.documents for part in parts]),
        devices=tuple(path for part in parts for path in part.devices),
    )


def _merged(tables: list[dict[K, V]]) -> dict[K, V]:
    found: dict[K, V] = {}
    for table in tables:
        for key, value in table.items():
            if found.setdefault(key, value) != value:
                raise ValueError(f"two parts answer {key!r} differently")
    return found


def source_of(sample: Sample) -> FakeSource:
    """The machine of a sample."""
    whole = join(sample.build())
    nodes = {path: {"rw": True} for path in sorted(whole.devices)}
    return FakeSource(
        whole.files,
        folders=whole.folders,
        targets=whole.targets,
        commands=whole.commands,
        documents={"nodes": nodes, **whole.documents},
    )


def members_of(name: str, sample: Sample) -> dict[str, bytes]:
    """Members of the bundle: what the probes asked for and got, things that are not there included."""
    source = RecordingSource(source_of(sample))
    take(source, Origin("sample", name, hand_made=True), taken_at=TAKEN_AT)
    manifest = bundle.Manifest(taken_at=TAKEN_AT, hand_made=True, description=sample.description)
    return bundle.pack(bundle.Bundle(manifest, source.recording))


def is_recorded(folder: Path) -> bool:
    """The folder holds a sample that was recorded on a real machine, which nothing here may touch."""
    file = folder / "manifest.json"
    return file.is_file() and not msgspec.json.decode(file.read_bytes(), type=bundle.Manifest).hand_made


def write(name: str, sample: Sample) -> None:
    """Writes a sample into the package, and removes files of an older form of it."""
    folder = SAMPLES / name
    if is_recorded(folder):
        raise ValueError(f"{name} is a recorded sample")
    members = members_of(name, sample)
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.relative_to(folder).as_posix() not in members:
            file.unlink()
    for member, content in members.items():
        path = folder / member
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
