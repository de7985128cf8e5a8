"""Bundles: a recording and its snapshot in one .tar.gz (or a folder of the same form), to be sent and replayed.

Form, version 1: manifest.json, snapshot.json, index.json (files, folders, links, and the commands with their exit codes),
commands/*.txt (raw outputs), documents/*.json. A bundle is read in memory, nothing is unpacked to disk.
"""

from __future__ import annotations

import base64
import gzip
import io
import re
import tarfile
import zlib
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from epctl.core.errors import EpctlError
from epctl.core.fact import Absent
from epctl.core.jsontext import dump
from epctl.core.snapshot import Schema
from epctl.probes.source import Output, Recording

SCHEMA = Schema("epctl.bundle", 1)
MAX_MEMBERS = 4000
MAX_MEMBER_BYTES = 64 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024
"""A bundle of an 8-GPU node is below 2 MB; these stop a decompression bomb."""

_NAME = re.compile(r"(?:[A-Za-z0-9_.+=@-]{1,120}/){0,2}[A-Za-z0-9_.+=@-]{1,120}")
AGAIN = "make one with `epctl capture -o FILE`"


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
    for argv, found in sorted(recording.commands.items()):
        if isinstance(found, Absent):
            commands.append(_Command(argv, absent=found))
            continue
        member = f"commands/{_slug(argv)}.txt"
        while member in members:
            member = member.replace(".txt", "_.txt")
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


def write_archive(members: dict[str, bytes], path: Path) -> None:
    """Writes a .tar.gz with `members`; the same members give the same bytes. Raises EpctlError when it cannot be written."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o644
            archive.addfile(info, io.BytesIO(content))
    half = path.with_name(path.name + ".part")
    try:
        half.write_bytes(buffer.getvalue())
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise EpctlError(
            f"{path} could not be written", str(error.strerror or error), "give another place with -o", exit_code=4
        ) from None


def read_archive(path: Path) -> dict[str, bytes]:
    """Regular members of a .tar.gz. Refuses, with EpctlError, names that lead out of it, links, devices, and sizes past the limits."""
    members: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(path, mode="r|gz") as archive:
            for info in archive:
                _admit(path, info, members)
                total += info.size
                if total > MAX_TOTAL_BYTES:
                    raise _refused(path, f"it unpacks to more than {MAX_TOTAL_BYTES >> 20} MiB")
                stream = archive.extractfile(info) if info.isreg() else None
                if stream is not None:
                    members[info.name.removeprefix("./")] = stream.read(MAX_MEMBER_BYTES)
    # TypeError: tarfile on Python 3.11 for a file of three bytes.
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, TypeError) as error:
        raise _refused(path, f"it is no whole .tar.gz ({error or type(error).__name__})") from None
    except OSError as error:
        raise EpctlError(
            f"{path} could not be read", str(error.strerror or error), "check the path and its permissions"
        ) from None
    return members


def _admit(path: Path, info: tarfile.TarInfo, members: dict[str, bytes]) -> None:
    name = info.name.removeprefix("./")
    if info.isdir():
        if name not in ("", ".") and (not _NAME.fullmatch(name) or ".." in name.split("/")):
            raise _refused(path, f"its folder {info.name[:80]!r} leads out of it")
        return
    if info.issym() or info.islnk():
        raise _refused(path, f"its member {info.name[:80]!r} is a link")
    if not info.isreg():
        raise _refused(path, f"its member {info.name[:80]!r} is neither a file nor a folder")
    if not _NAME.fullmatch(name) or ".." in name.split("/"):
        raise _refused(
            path, f"the name of its member {info.name[:80]!r} leads out of it, or holds characters that no bundle has"
        )
    if info.size > MAX_MEMBER_BYTES:
        raise _refused(path, f"its member {info.name[:80]!r} has {info.size} bytes; the limit is {MAX_MEMBER_BYTES}")
    if name in members:
        raise _refused(path, f"its member {info.name[:80]!r} comes twice")
    if len(members) >= MAX_MEMBERS:
        raise _refused(path, f"it has more than {MAX_MEMBERS} members")


def read_folder(path: Path) -> dict[str, bytes]:
    """Regular files of a folder, two levels deep, links left alone; the limits of archives hold."""
    members: dict[str, bytes] = {}
    total = 0
    try:
        for file in sorted((*path.iterdir(), *path.glob("commands/*"), *path.glob("documents/*"))):
            if file.is_symlink() or not file.is_file():
                continue
            size = file.stat().st_size
            total += size
            if size > MAX_MEMBER_BYTES or total > MAX_TOTAL_BYTES or len(members) >= MAX_MEMBERS:
                raise _refused(path, f"{file.name} takes it past the limits of a bundle")
            members[file.relative_to(path).as_posix()] = file.read_bytes()
    except OSError as error:
        raise EpctlError(
            f"{path} could not be read", str(error.strerror or error), "check the path and its permissions"
        ) from None
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


def _slug(argv: tuple[str, ...]) -> str:
    return re.sub(r"[^A-Za-z0-9.+=-]+", "_", "_".join(argv))[:100].strip("_.") or "command"


def _refused(path: Path, why: str) -> EpctlError:
    return EpctlError(f"{path} is refused as a bundle", why, AGAIN)
