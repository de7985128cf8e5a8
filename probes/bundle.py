"""Bundles: a recording and its snapshot in one .tar.gz (or a folder of the same form), to be sent and replayed.

Form, version 1: manifest.json, snapshot.json, index.json (files, folders, links, and the commands with their exit codes),
commands/*.txt (raw outputs), documents/*.json. A bundle is read in memory, nothing is unpacked to disk.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.fact import Absent
from epctl.core.jsontext import dump
from epctl.core.snapshot import Schema
from epctl.probes import paths
from epctl.probes.archive import (
    AGAIN,
    MAX_MEMBER_BYTES,
    MAX_MEMBERS,
    MAX_TOTAL_BYTES,
    read_archive,
    refused,
    write_archive,
)
from epctl.probes.source import Output, Recording

__all__ = [
    "AGAIN",
    "MAX_MEMBERS",
    "MAX_MEMBER_BYTES",
    "MAX_TOTAL_BYTES",
    "Bundle",
    "Manifest",
    "pack",
    "read_archive",
    "read_folder",
    "unpack",
    "write_archive",
]

SCHEMA = Schema("epctl.bundle", 1)


class Manifest(Struct, frozen=True):
    """Head of a bundle."""

    schema: Schema = SCHEMA
    taken_at: str = ""
    epctl_version: str = ""
    redacted: bool = False
    hand_made: bool = False
    """True when it was composed, not recorded from a machine."""
    description: str = ""


class _Command(Struct, frozen=True, omit_defaults=True):
    argv: tuple[str, ...]
    member: str = ""
    stderr: str = ""
    code: int = 0
    absent: Absent | None = None


class _File(Struct, frozen=True, omit_defaults=True):
    text: str | None = None
    base64: str | None = None
    absent: Absent | None = None


class _Index(Struct, frozen=True):
    commands: tuple[_Command, ...] = ()
    files: dict[str, _File] = {}
    folders: dict[str, tuple[str, ...] | Absent] = {}
    targets: dict[str, str | Absent] = {}


class Bundle(Struct, frozen=True):
    """A bundle in memory. `snapshot` is the JSON that was stored, b'' when there is none."""

    manifest: Manifest
    recording: Recording
    snapshot: bytes = b""


def pack(bundle: Bundle) -> dict[str, bytes]:
    """Members of a bundle by name, in a stable order."""
    recording = bundle.recording
    members: dict[str, bytes] = {"manifest.json": dump(bundle.manifest)}
    if bundle.snapshot:
        members["snapshot.json"] = bundle.snapshot
    commands: list[_Command] = []
    used: Counter[str] = Counter()
    for argv, found in sorted(recording.commands.items()):
        if isinstance(found, Absent):
            commands.append(_Command(argv, absent=found))
            continue
        member = _member(_slug(argv), members, used)
        members[member] = found.stdout
        commands.append(_Command(argv, member, found.stderr.decode("utf-8", "replace"), found.code))
    files = {path: _pack_file(found) for path, found in sorted(recording.files.items())}
    index = _Index(
        tuple(commands), files, dict(sorted(recording.folders.items())), dict(sorted(recording.targets.items()))
    )
    members["index.json"] = dump(index)
    for name, document in sorted(recording.documents.items()):
        members[f"documents/{name}.json"] = dump(
            {"absent": document} if isinstance(document, Absent) else {"document": document}
        )
    return members


def read_folder(path: Path, further: Collection[str] = ()) -> dict[str, bytes]:
    """The members of a bundle that was unpacked into a folder, and the files there that `further` names. Other files and links
    are left alone; the limits of archives hold."""
    members: dict[str, bytes] = {}
    total = 0
    wanted = ("manifest.json", "snapshot.json", "index.json", *further)
    try:
        inner = (*path.glob("commands/*.txt"), *path.glob("documents/*.json"))
        for file in sorted((*(path / name for name in wanted), *inner)):
            if file.is_symlink() or not file.is_file():
                continue
            content = paths.content(file, MAX_MEMBER_BYTES)
            total += len(content)
            if len(content) > MAX_MEMBER_BYTES or total > MAX_TOTAL_BYTES or len(members) >= MAX_MEMBERS:
                raise refused(path, f"{file.name} takes it past the limits of a bundle")
            members[file.relative_to(path).as_posix()] = content
    except OSError as error:
        raise paths.unreadable(path, error, "check the path and its permissions") from None
    return members


def unpack(members: dict[str, bytes], name: str) -> Bundle:
    """The bundle that `members` hold; raises EpctlError when they hold none, or one of a newer version."""
    if "manifest.json" not in members or "index.json" not in members:
        raise EpctlError(f"{name} is not a bundle", "it has no manifest.json and index.json", AGAIN)
    try:
        manifest = msgspec.json.decode(members["manifest.json"], type=Manifest)
        if manifest.schema.name != SCHEMA.name:
            raise EpctlError(f"{name} is not a bundle", f"its schema is {manifest.schema.name[:80]!r}", AGAIN)
        if manifest.schema.version > SCHEMA.version:
            why = f"its schema is version {manifest.schema.version}, this epctl reads up to {SCHEMA.version}"
            raise EpctlError(f"{name} is of a newer epctl", why, "upgrade epctl on this machine")
        index = msgspec.json.decode(members["index.json"], type=_Index)
        return Bundle(manifest, _recording(index, members), members.get("snapshot.json", b""))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise EpctlError(f"{name} is a damaged bundle", str(error)[:200], AGAIN) from None


def _recording(index: _Index, members: dict[str, bytes]) -> Recording:
    recording = Recording(folders=dict(index.folders), targets=dict(index.targets))
    for command in index.commands:
        missing = command.absent or (
            None if command.member in members else Absent("not_read", f"{command.member} is not in the bundle")
        )
        recording.commands[command.argv] = missing or Output(
            members[command.member], command.stderr.encode(), command.code
        )
    for path, file in index.files.items():
        if file.absent is not None:
            recording.files[path] = file.absent
        else:
            recording.files[path] = (
                base64.b64decode(file.base64) if file.base64 is not None else (file.text or "").encode()
            )
    for name, content in members.items():
        if name.startswith("documents/") and name.endswith(".json"):
            recording.documents[name[len("documents/") : -len(".json")]] = _document(content, name)
    return recording


def _document(content: bytes, name: str) -> Any:  # noqa: ANN401
    try:
        found = msgspec.json.decode(content)
        if isinstance(found, dict) and "document" in found:
            return found["document"]
        if isinstance(found, dict) and "absent" in found:
            return msgspec.convert(found["absent"], Absent)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Absent("unparsable", f"{name}: {error}")
    return Absent("unparsable", f"{name} holds neither a document nor a reason")


def _pack_file(found: bytes | Absent) -> _File:
    if isinstance(found, Absent):
        return _File(absent=found)
    try:
        return _File(text=found.decode("utf-8"))
    except UnicodeDecodeError:
        return _File(base64=base64.b64encode(found).decode("ascii"))


def _member(slug: str, members: dict[str, bytes], used: Counter[str]) -> str:
    """A name for the output of a command that no other has; its length stays below what an archive admits."""
    while True:
        used[slug] += 1
        member = f"commands/{slug}.txt" if used[slug] == 1 else f"commands/{slug}_{used[slug]}.txt"
        if member not in members:
            return member


def _slug(argv: tuple[str, ...]) -> str:
    return re.sub(r"[^A-Za-z0-9.+=-]+", "_", "_".join(argv))[:100].strip("_.") or "command"
