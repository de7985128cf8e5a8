"""Makes a bundle: records what the probes ask for, redacts it if wanted, and stores the snapshot beside the raw outputs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

from epctl import __version__
from epctl.core import snapshot as snapshots
from epctl.core.snapshot import Origin
from epctl.probes import archive, bundle, load, take
from epctl.probes.redact import redact
from epctl.probes.source import LiveSource, RecordedSource, Recording, RecordingSource

_DESCRIPTION = "description of the bundle"


class Request(Struct, frozen=True):
    """What to capture and where to put it."""

    output: Path
    redact: bool = False
    description: str = ""
    active: bool = True
    python: str | None = None


SWEEPS_THE_FABRIC = ("ibnetdiscover",)
"""Asks every switch of the fabric: whoever wants its output in a bundle runs it knowingly."""


class Made(Struct, frozen=True):
    """A bundle that was written."""

    path: str
    redacted: bool
    commands: int
    files: int
    documents: int
    bytes: int


def capture(request: Request, path: Path | None = None, sample: str | None = None) -> Made:
    """Writes the bundle of this machine, or of an earlier bundle (`path`, `sample`), to `request.output`."""
    archive.writable(request.output)
    if path is not None or sample is not None:
        old = load.bundle_at(path, sample)
        recording, taken_at, made_by_hand, description = (
            old.recording,
            old.manifest.taken_at,
            old.manifest.hand_made,
            old.manifest.description,
        )
        redacted = old.manifest.redacted or request.redact
    else:
        load.check_interpreter(request.python)
        source = RecordingSource(LiveSource(request.python))
        taken_at = take(source, Origin("live"), active=request.active).taken_at
        _second_sources(source)
        recording, made_by_hand, description, redacted = source.recording, False, "", request.redact
    description = request.description or description
    name = request.output.name
    if request.redact:
        recording, description = _redacted(recording, description)
        # A file is often named after the node.
        name = ""
    node = take(RecordedSource(recording), Origin("recorded", name, redacted, made_by_hand), taken_at=taken_at)
    manifest = bundle.Manifest(
        taken_at=taken_at,
        epctl_version=__version__,
        redacted=redacted,
        hand_made=made_by_hand,
        description=description,
    )
    members = bundle.pack(bundle.Bundle(manifest, recording, snapshots.encode(node)))
    size_bytes = archive.write_archive(members, request.output)
    return Made(
        str(request.output),
        redacted,
        len(recording.commands),
        len(recording.files),
        len(recording.documents),
        size_bytes,
    )


def _second_sources(source: RecordingSource) -> None:
    """Outputs that the probes ask for only where NVML and sysfs are silent. A support case wants them beside each other."""
    known = (*source.recording.commands, SWEEPS_THE_FABRIC)
    missing = [argv for argv in load.PRINTED.values() if argv not in known]
    with ThreadPoolExecutor(max(1, len(missing))) as pool:
        for argv in missing:
            pool.submit(source.run, *argv)


def _redacted(recording: Recording, description: str) -> tuple[Recording, str]:
    """Both without identifiers. The description goes in as a document: the names to replace in it are those of the recording."""
    extended = msgspec.structs.replace(recording, documents={**recording.documents, _DESCRIPTION: description})
    done = redact(extended)
    return done, str(done.documents.pop(_DESCRIPTION))
