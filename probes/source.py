"""Where probes read from: this machine, or a recording of one. Nothing but this module (with `child`,
which runs processes, and `filesystem`, which reads files for it) touches the outside world.

Three kinds of thing can be asked for: the output of a command, a file (content, listing or link target), and a document
(JSON that a collector, run in a child process with a time limit, put together from an API such as NVML).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from epctl.core.fact import Absent
from epctl.probes import child
from epctl.probes.filesystem import content, guarded

COLLECTORS = Path(__file__).resolve().parent / "collectors"
COMMAND_TIMEOUT_S = 5.0
DOCUMENT_TIMEOUT_S = 10.0
TOOL_LIMIT_S = 22.0
LEAST_S = 3.0
"""A tool's questions share TOOL_LIMIT_S from the first one on, so that slow answers do not add up past the limit of an area;
later ones still get LEAST_S each."""
MAX_FILE_BYTES = 1024 * 1024


class Output(Struct, frozen=True):
    """What a command printed, and its exit code."""

    stdout: bytes
    stderr: bytes = b""
    code: int = 0

    @property
    def raw(self) -> bytes:
        """Standard output, or the error text when there is none."""
        return self.stdout if self.stdout.strip() else self.stderr


class Source(Protocol):
    """The machine, or a recording of it. No method raises; what cannot be had is an Absent that says why."""

    def run(self, *argv: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Output | Absent:
        """Output of a command. A tool that is not installed is `tool_missing`, one over its limit `timed_out`."""

    def read(self, path: str) -> bytes | Absent:
        """Content of a file, cut at MAX_FILE_BYTES."""

    def entries(self, path: str) -> tuple[str, ...] | Absent:
        """Sorted names in a folder."""

    def target(self, path: str) -> str | Absent:
        """Real path of a link (or of a file below links); not_found when it does not resolve."""

    def document(self, name: str, timeout_s: float = DOCUMENT_TIMEOUT_S) -> Any | Absent:  # noqa: ANN401
        """JSON of the collector `name` (a module of epctl/probes/collectors)."""


def text(source: Source, path: str) -> str | Absent:
    """Content of a small text file without surrounding blanks and NUL bytes."""
    raw = source.read(path)
    return raw if isinstance(raw, Absent) else raw.decode("utf-8", "replace").replace("\0", "").strip()


def number(source: Source, path: str, base: int = 10) -> int | Absent:
    """An integer from a small file."""
    found = text(source, path)
    if isinstance(found, Absent):
        return found
    try:
        return int(found[:64], base)
    except ValueError:
        return Absent("unparsable", f"{path} holds no integer", found[:80])


class LiveSource:
    """This machine. `python`: the interpreter whose packages are looked at (default: the one that runs epctl)."""

    def __init__(self, python: str | None = None) -> None:
        self.python = _interpreter(python) if python else sys.executable
        self._hung: set[str] = set()
        self._first_asked: dict[str, float] = {}

    def run(self, *argv: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Output | Absent:
        tool = shutil.which(argv[0], path=_tool_path())
        if tool is None:
            return Absent("tool_missing", f"{argv[0]} is not on PATH")
        tool = os.path.abspath(tool)  # noqa: PTH100 - PATH may hold relative folders, and children run in /
        if tool in self._hung:
            return Absent("timed_out", f"{argv[0]} gave no answer before and was not asked again")
        now = time.monotonic()
        first = self._first_asked.setdefault(tool, now)
        timeout_s = min(timeout_s, max(LEAST_S, first + TOOL_LIMIT_S - now))
        found = _bounded((tool, *argv[1:]), timeout_s, {**os.environ, "LC_ALL": "C", "LANG": "C"})
        if isinstance(found, Absent) and found.absent == "timed_out":
            self._hung.add(tool)
        return found

    def read(self, path: str) -> bytes | Absent:
        return guarded(path, lambda: content(path, MAX_FILE_BYTES))

    def entries(self, path: str) -> tuple[str, ...] | Absent:
        return guarded(path, lambda: tuple(sorted(os.listdir(path))))  # noqa: PTH208 - names, not paths

    def target(self, path: str) -> str | Absent:
        return guarded(path, lambda: str(Path(path).resolve(strict=True)))

    def document(self, name: str, timeout_s: float = DOCUMENT_TIMEOUT_S) -> Any | Absent:  # noqa: ANN401
        script = COLLECTORS / f"{name}.py"
        python = self.python if name in FOREIGN else sys.executable
        done = _run((python, "-W", "ignore", str(script)), timeout_s, dict(os.environ))
        if name in STAGED:
            return _stages(done)
        if isinstance(done, _Cut):
            return done.absent
        if isinstance(done, Absent):
            return done
        try:
            return msgspec.json.decode(done.stdout)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            last = done.stderr.decode("utf-8", "replace").strip().splitlines()
            how = f"was ended by signal {-done.code}" if done.code < 0 else f"ended with code {done.code}"
            return Absent("failed", f"the collector {name} {how}", last[-1][:200] if last else "")


FOREIGN = frozenset({"python", "toolchain", "active_nvcc", "active_import"})
"""Collectors that the examined interpreter runs, with the standard library alone."""

STAGED = frozenset({"active_cuda", "active_verbs", "active_gin", "verbs_query"})
"""Collectors that print one JSON line a stage. Where they hang or die, the stages before that count: their document is
{"stages": [line, …], "ended": "" or a reason, "detail": text}."""


class RecordingSource:
    """Passes everything on to `inner` and remembers what came back."""

    def __init__(self, inner: Source) -> None:
        self.inner = inner
        self.recording = Recording()
        self._lock = threading.Lock()

    def run(self, *argv: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Output | Absent:
        found = self.inner.run(*argv, timeout_s=timeout_s)
        with self._lock:
            self.recording.commands[argv] = found
        return found

    def read(self, path: str) -> bytes | Absent:
        found = self.inner.read(path)
        with self._lock:
            self.recording.files[path] = found
        return found

    def entries(self, path: str) -> tuple[str, ...] | Absent:
        found = self.inner.entries(path)
        with self._lock:
            self.recording.folders[path] = found
        return found

    def target(self, path: str) -> str | Absent:
        found = self.inner.target(path)
        with self._lock:
            self.recording.targets[path] = found
        return found

    def document(self, name: str, timeout_s: float = DOCUMENT_TIMEOUT_S) -> Any | Absent:  # noqa: ANN401
        found = self.inner.document(name, timeout_s)
        with self._lock:
            self.recording.documents[name] = found
        return found


class Recording(Struct):
    """All that was asked of a source, and the answers."""

    commands: dict[tuple[str, ...], Output | Absent] = msgspec.field(default_factory=dict)
    files: dict[str, bytes | Absent] = msgspec.field(default_factory=dict)
    folders: dict[str, tuple[str, ...] | Absent] = msgspec.field(default_factory=dict)
    targets: dict[str, str | Absent] = msgspec.field(default_factory=dict)
    documents: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values are JSON, or an Absent."""


class RecordedSource:
    """Replays a recording. What was not asked for when it was made is `not_read`."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def run(self, *argv: str, timeout_s: float = COMMAND_TIMEOUT_S) -> Output | Absent:  # noqa: ARG002
        return self.recording.commands.get(argv, Absent("not_read", f"`{' '.join(argv)}` is not in the recording"))

    def read(self, path: str) -> bytes | Absent:
        return self.recording.files.get(path, _unrecorded(path))

    def entries(self, path: str) -> tuple[str, ...] | Absent:
        return self.recording.folders.get(path, _unrecorded(path))

    def target(self, path: str) -> str | Absent:
        return self.recording.targets.get(path, _unrecorded(path))

    def document(self, name: str, timeout_s: float = DOCUMENT_TIMEOUT_S) -> Any | Absent:  # noqa: ANN401, ARG002
        return self.recording.documents.get(
            name, Absent("not_read", f"what the collector {name} found is not in the recording")
        )


def _unrecorded(path: str) -> Absent:
    return Absent("not_read", f"{path} is not in the recording")


def _interpreter(given: str) -> str:
    """Absolute path of the Python program `given`; children run in /. Links stay: they are what makes a virtual environment."""
    found = shutil.which(given)
    return os.path.abspath(found or given) if found or os.sep in given else given  # noqa: PTH100 - keeps links


def _tool_path() -> str:
    """PATH with the folders that hold system tools and are often missing for plain users."""
    return os.pathsep.join(
        (
            os.environ.get("PATH", os.defpath),
            "/usr/sbin",
            "/sbin",
            "/usr/bin",
            "/bin",
            "/opt/amazon/efa/bin",
            "/usr/local/cuda/bin",
        )
    )


class _Cut(Struct, frozen=True):
    """A child that was killed at its time limit: what it had printed, and the reason to tell."""

    stdout: bytes
    absent: Absent


def _stages(done: Output | Absent | _Cut) -> Any | Absent:  # noqa: ANN401
    """Document of a collector of STAGED; lines that are no JSON (the last one may be cut) are left out."""
    if isinstance(done, Absent):
        return done
    ended, detail = "", ""
    if isinstance(done, _Cut):
        ended, detail = done.absent.absent, done.absent.detail
    elif done.code != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()
        how = f"ended by signal {-done.code}" if done.code < 0 else f"ended with code {done.code}"
        ended, detail = "failed", f"{how}: {last[-1][:200]}" if last else how
    stages = []
    for line in done.stdout.splitlines():
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            stages.append(msgspec.json.decode(line))
    return {"stages": stages, "ended": ended, "detail": detail}


def _bounded(argv: tuple[str, ...], timeout_s: float, env: dict[str, str]) -> Output | Absent:
    done = _run(argv, timeout_s, env)
    return done.absent if isinstance(done, _Cut) else done


def _run(argv: tuple[str, ...], timeout_s: float, env: dict[str, str]) -> Output | Absent | _Cut:
    """Runs argv with limits, or says why it could not be run."""
    try:
        done = child.finish(argv, timeout_s, env)
    except PermissionError:
        return Absent("permission", f"{argv[0]} may not be run by this user")
    except (OSError, ValueError) as error:
        return Absent("failed", f"{argv[0]}: {getattr(error, 'strerror', None) or error}")
    if done.cut:
        return _Cut(done.stdout, Absent("timed_out", f"{Path(argv[0]).name} {done.cut}"))
    return Output(done.stdout, done.stderr, done.code)
