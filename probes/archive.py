"""Archives of bundles (.tar.gz), read and written in memory.

The headers are walked here instead of by `tarfile`, which reads extended headers of any size, in any number, before a caller
sees a member. The format is POSIX ustar with the extended headers of pax ("x", "g") and GNU tar ("L", "K").
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import stat
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO

from epctl.core.errors import EpctlError
from epctl.probes import paths

MAX_MEMBERS = 4000
MAX_MEMBER_BYTES = 64 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024
"""A bundle of an 8-GPU node is below 2 MB; these stop a decompression bomb."""
MAX_EXTENDED_BYTES = 64 * 1024
"""Of one extended header. Those of tar programs hold a name and times, below 1 KiB."""
MAX_EXTENDED = 4
"""Extended headers in front of one member: "g", "x", "L" and "K" once each."""
MAX_TAIL_BYTES = 1024 * 1024
"""Padding behind the last member; tar pads to 10 KiB, with its largest usual blocking factor to 1 MiB."""

AGAIN = "make one with `epctl capture -o FILE`"
_NAME = re.compile(r"(?:[A-Za-z0-9_.+=@-]{1,120}/){0,2}[A-Za-z0-9_.+=@-]{1,120}")
_BLOCK = 512
_CHUNK = 1024 * 1024
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


def refused(path: Path, why: str) -> EpctlError:
    """The error for a file or folder that is not taken as a bundle."""
    return EpctlError(f"{path} is refused as a bundle", why, AGAIN)


def write_archive(members: dict[str, bytes], path: Path) -> int:
    """Writes a .tar.gz with `members`, readable by its owner only; the same members give the same bytes. Returns its size in bytes.
    Raises EpctlError when it cannot be written, or when `read_archive` would refuse it."""
    writable(path)
    _within_limits(members, path)
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o644
            archive.addfile(info, io.BytesIO(content))
    raw = buffer.getvalue()
    half = ""
    try:
        # A name that nobody can foresee, opened with O_EXCL: in a shared folder a link could lie in wait at a fixed one.
        handle, half = tempfile.mkstemp(prefix=".epctl-", suffix=".part", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
        os.replace(half, path)  # noqa: PTH105
        half = ""
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        if half:
            with contextlib.suppress(OSError):
                os.unlink(half)  # noqa: PTH108
    return len(raw)


def writable(path: Path) -> None:
    """Raises EpctlError unless nothing or a regular file lies at `path`: a rename would replace a device, pipe or link itself."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    if stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and path.is_dir()):
        raise EpctlError(f"{path} is a folder", "a bundle is one file", "give a file name that ends with .tar.gz")
    if not stat.S_ISREG(mode):
        found = "a link" if stat.S_ISLNK(mode) else "a device, pipe or socket"
        raise EpctlError(
            f"{path} is no regular file", f"it is {found}, which a bundle would replace", "give a file name with -o"
        )


def _within_limits(members: dict[str, bytes], path: Path) -> None:
    largest = max(members, key=lambda name: len(members[name]), default="")
    todo = "please report this as a bug of epctl"
    if largest and len(members[largest]) > MAX_MEMBER_BYTES:
        why = f"{largest} has {len(members[largest])} bytes; the limit of a bundle is {MAX_MEMBER_BYTES}"
        raise EpctlError(f"{path} was not written", why, todo, exit_code=4)
    if len(members) > MAX_MEMBERS or sum(map(len, members.values())) > MAX_TOTAL_BYTES:
        why = f"a bundle holds up to {MAX_MEMBERS} members and {MAX_TOTAL_BYTES >> 20} MiB"
        raise EpctlError(f"{path} was not written", why, todo, exit_code=4)


def _unwritable(path: Path, error: OSError | ValueError) -> EpctlError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return EpctlError(f"{path} could not be written", why, "give another place with -o", exit_code=4)


def read_archive(path: Path) -> dict[str, bytes]:
    """Regular members of a .tar.gz. Refuses, with EpctlError, names that lead out of it, links, devices, and sizes past the limits."""
    with paths.open_regular(path) as stream:
        try:
            with gzip.GzipFile(fileobj=stream, mode="rb") as unpacked:
                return _Walk(path, unpacked).members()
        except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
            raise refused(path, f"it is no whole .tar.gz ({str(error) or type(error).__name__})") from None
        except OSError as error:
            raise paths.unreadable(path, error, "check the path and its permissions") from None


class _Walk:
    """One pass over the headers of an archive. What is not a regular member is never held in memory."""

    def __init__(self, path: Path, stream: gzip.GzipFile | BinaryIO) -> None:
        self.path = path
        self.stream = stream
        self.total_bytes = 0
        self.headers = 0
        self.found: dict[str, bytes] = {}

    def members(self) -> dict[str, bytes]:
        while (info := self._next()) is not None:
            name = info.name.removeprefix("./")
            self._admit(info, name)
            if info.isreg():
                self.found[name] = self._data(info.size)
        if not self.headers:
            raise tarfile.ReadError("it is empty")
        self._tail()
        return self.found

    def _next(self) -> tarfile.TarInfo | None:
        """The header of the next member, with the name that extended headers give it; None at the end."""
        name = ""
        for _ in range(MAX_EXTENDED + 1):
            info = self._header()
            if info is None:
                return None
            if info.type not in _EXTENDED:
                info.name = name.rstrip("/") or info.name
                return info
            if not 0 <= info.size <= MAX_EXTENDED_BYTES:
                why = f"an extended header of it has {info.size} bytes; the limit is {MAX_EXTENDED_BYTES}"
                raise refused(self.path, why)
            content = self._data(info.size)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                name = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif info.type == tarfile.XHDTYPE:
                name = self._pax(content) or name
        raise refused(self.path, f"it has more than {MAX_EXTENDED} extended headers in front of one member")

    def _header(self) -> tarfile.TarInfo | None:
        block = self.stream.read(_BLOCK)
        if not block.strip(b"\0") and len(block) in (0, _BLOCK):
            return None
        self.headers += 1
        if self.headers > MAX_MEMBERS * (MAX_EXTENDED + 1):
            raise refused(self.path, f"it has more than {MAX_MEMBERS} members")
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")

    def _pax(self, content: bytes) -> str:
        """The path in a pax header ("LENGTH KEY=VALUE\\n" each), '' when it gives none. Those that change a size are refused."""
        name = ""
        while content:
            digits, _, _ = content[:8].partition(b" ")
            if not digits.isdigit() or not len(digits) + 3 <= int(digits) <= len(content):
                raise tarfile.HeaderError("a pax header is damaged")
            record, content = content[len(digits) + 1 : int(digits) - 1], content[int(digits) :]
            key, _, value = record.partition(b"=")
            if key == b"size" or key.startswith(b"GNU.sparse"):
                why = f"an extended header of it sets {record[:40].decode('latin-1')!a}, for a member past the limits or a sparse one"
                raise refused(self.path, why)
            if key == b"path":
                name = value.decode("utf-8", "surrogateescape")
        return name

    def _data(self, size: int) -> bytes:
        """`size` bytes of content, and the padding to a whole block behind it."""
        self.total_bytes += size
        if self.total_bytes > MAX_TOTAL_BYTES:
            raise refused(self.path, f"it unpacks to more than {MAX_TOTAL_BYTES >> 20} MiB")
        content = self.stream.read(size)
        padding = -size % _BLOCK
        if len(content) != size or len(self.stream.read(padding)) != padding:
            raise EOFError("it ends in the middle of a member")
        return content

    def _tail(self) -> None:
        """Reads to the end, where gzip compares its checksum."""
        left = MAX_TAIL_BYTES
        while left >= 0:
            chunk = self.stream.read(_CHUNK)
            if not chunk:
                return
            left -= len(chunk)
        raise refused(self.path, "it goes on behind its last member")

    def _admit(self, info: tarfile.TarInfo, name: str) -> None:
        shown = ascii(info.name[:80])
        outside = not _NAME.fullmatch(name) or ".." in name.split("/")
        if self.headers > MAX_MEMBERS * 2 or len(self.found) >= MAX_MEMBERS:
            raise refused(self.path, f"it has more than {MAX_MEMBERS} members")
        if info.isdir():
            if name not in ("", ".") and outside:
                raise refused(self.path, f"its folder {shown} leads out of it")
            return
        if info.issym() or info.islnk():
            raise refused(self.path, f"its member {shown} is a link")
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise refused(self.path, f"its member {shown} is neither a file nor a folder")
        if outside:
            why = f"the name of its member {shown} leads out of it, or holds characters that no bundle has"
            raise refused(self.path, why)
        if not 0 <= info.size <= MAX_MEMBER_BYTES:
            raise refused(self.path, f"its member {shown} has {info.size} bytes; the limit is {MAX_MEMBER_BYTES}")
        if name in self.found:
            raise refused(self.path, f"its member {shown} comes twice")
