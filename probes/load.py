"""Turns what a user points at into a snapshot: this machine, a bundle, a folder, a snapshot file or a sample."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

from epctl.core import snapshot as snapshots
from epctl.core.errors import EpctlError
from epctl.core.snapshot import Origin, Snapshot
from epctl.probes import bundle, paths, take
from epctl.probes.readers import TOOLS
from epctl.probes.source import LiveSource, Output, RecordedSource, Recording

MAX_SNAPSHOT_BYTES = 64 * 1024 * 1024


def live(*, active: bool, python: str | None = None) -> Snapshot:
    """A snapshot of this machine. `python`: the interpreter whose packages are looked at."""
    check_interpreter(python)
    return take(LiveSource(python), Origin("live"), active=active)


def check_interpreter(python: str | None) -> None:
    """Raises EpctlError when `python` is given and is no file."""
    if python is not None and paths.kind_of(Path(python), "give the path of a Python program to --python") != "file":
        raise EpctlError(
            f"{python} is no interpreter", "there is no such file", "give the path of a Python program to --python"
        )


def from_path(path: Path) -> Snapshot:
    """The snapshot in a bundle (.tar.gz), a folder (a bundle unpacked, or raw tool outputs named TOOL.txt) or a snapshot file."""
    if _kind_given(path) == "folder":
        return _from_folder(path)
    raw = paths.content(path, 1)
    if raw == b"\x1f\x8b":
        return _replay(bundle.unpack(bundle.read_archive(path), str(path)), "recorded", path.name)
    return _recorded(path, path.name)


def _kind_given(path: Path) -> Literal["file", "folder"]:
    kind = paths.kind_of(path, "check the path given to --from")
    if kind == "missing":
        raise EpctlError(f"{path} does not exist", "there is no such file or folder", "check the path given to --from")
    if kind == "other":
        raise EpctlError(
            f"{path} is neither a file nor a folder", "it is a device, pipe or socket", "give a bundle or a snapshot"
        )
    return kind


def sample(name: str) -> Snapshot:
    """One of the samples in the package. Raises EpctlError for a name that is none."""
    return _replay(bundle_at(None, name), "sample", name)


def bundle_at(path: Path | None, name: str | None) -> bundle.Bundle:
    """The bundle in a file or folder, or a sample's. Raises EpctlError when it is none (a bare snapshot has no raw outputs)."""
    if name is not None:
        sample_names = samples()
        if name not in sample_names:
            raise EpctlError(
                f"there is no sample {name!r}",
                f"samples: {', '.join(sample_names)}",
                "see `epctl doctor --sample list`",
            )
        with resources.as_file(resources.files("epctl") / "data" / "samples" / name) as folder:
            return bundle.unpack(bundle.read_folder(folder), name)
    assert path is not None  # noqa: S101 - the callers give one of the two
    if _kind_given(path) == "folder":
        members = bundle.read_folder(path, RAW_NAMES)
        if "manifest.json" not in members:
            return bundle.Bundle(bundle.Manifest(), _raw_outputs(members))
        return bundle.unpack(members, str(path))
    return bundle.unpack(bundle.read_archive(path), str(path))


def samples() -> dict[str, str]:
    """Name → description of the samples in the package."""
    folder = resources.files("epctl") / "data" / "samples"
    found = sorted(entry.name for entry in folder.iterdir() if (entry / "manifest.json").is_file())
    return {name: _describe((folder / name / "manifest.json").read_bytes()) for name in found}


def _describe(manifest: bytes) -> str:
    import msgspec

    return msgspec.json.decode(manifest, type=bundle.Manifest).description


def _recorded(file: Path, name: str) -> Snapshot:
    import msgspec

    raw = paths.content(file, MAX_SNAPSHOT_BYTES)
    if len(raw) > MAX_SNAPSHOT_BYTES:
        why = f"it is larger than {MAX_SNAPSHOT_BYTES >> 20} MiB, no snapshot is"
        raise EpctlError(f"{file} is refused", why, bundle.AGAIN)
    found = snapshots.decode(raw, str(file))
    return msgspec.structs.replace(
        found, origin=Origin("recorded", name, found.origin.redacted, found.origin.hand_made)
    )


def _from_folder(path: Path) -> Snapshot:
    if paths.kind_of(path / "manifest.json") == "file":
        return _replay(bundle.unpack(bundle.read_folder(path), str(path)), "recorded", path.name)
    if paths.kind_of(path / "snapshot.json") == "file":
        return _recorded(path / "snapshot.json", path.name)
    recording = _raw_outputs(bundle.read_folder(path, RAW_NAMES))
    if not recording.commands:
        known = ", ".join(f"{tool}.txt" for tool in PRINTED)
        raise EpctlError(
            f"{path} holds nothing that epctl can replay",
            "it is no bundle, and no file in it is named after a tool",
            f"name raw outputs {known}",
        )
    return take(RecordedSource(recording), Origin("recorded", path.name))


PRINTED: dict[str, tuple[str, ...]] = {
    tool: tuple(command.split())
    for tool, command in TOOLS.items()
    if command.split()[0] not in ("grep", "mlxconfig") and "=" not in command and tool != "nccl_topo_xml"
}
"""Tools whose raw output, saved as TOOL.txt, stands for the command."""
RAW_NAMES = tuple(f"{tool}.txt" for tool in PRINTED)


def _raw_outputs(members: dict[str, bytes]) -> Recording:
    recording = Recording()
    for tool, argv in PRINTED.items():
        if f"{tool}.txt" in members:
            recording.commands[argv] = Output(members[f"{tool}.txt"])
    return recording


def _replay(found: bundle.Bundle, kind: str, name: str) -> Snapshot:
    manifest = found.manifest
    origin = Origin(kind, name, manifest.redacted, manifest.hand_made)  # type: ignore[arg-type]
    return take(RecordedSource(found.recording), origin, taken_at=manifest.taken_at)
