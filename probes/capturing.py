"""Makes a bundle: records what the probes ask for, redacts it if wanted, and stores the snapshot beside the raw outputs."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from epctl import __version__
from epctl.core import snapshot as snapshots
from epctl.core.errors import EpctlError
from epctl.core.snapshot import Origin
from epctl.probes import bundle, load, take
from epctl.probes.redact import redact
from epctl.probes.source import LiveSource, RecordedSource, RecordingSource


class Request(Struct, frozen=True):
    """What to capture and where to put it."""

    output: Path
    redact: bool = False
    description: str = ""
    active: bool = True
    python: str | None = None


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
    if request.output.is_dir():
        raise EpctlError(
            f"{request.output} is a folder", "a bundle is one file", "give a file name that ends with .tar.gz"
        )
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
        source = RecordingSource(LiveSource(request.python))
        taken_at = take(source, Origin("live"), active=request.active).taken_at
        recording, made_by_hand, description, redacted = source.recording, False, "", request.redact
    if request.redact:
        recording = redact(recording)
    node = take(
        RecordedSource(recording), Origin("recorded", request.output.name, redacted, made_by_hand), taken_at=taken_at
    )
    manifest = bundle.Manifest(
        taken_at=taken_at,
        epctl_version=__version__,
        redacted=redacted,
        hand_made=made_by_hand,
        description=request.description or description,
    )
    members = bundle.pack(bundle.Bundle(manifest, recording, snapshots.encode(node)))
    bundle.write_archive(members, request.output)
    return Made(
        str(request.output),
        redacted,
        len(recording.commands),
        len(recording.files),
        len(recording.documents),
        request.output.stat().st_size,
    )
