"""The cache: made once, shared, whole or not there, whatever the folder and the other processes do."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from epctl.core.errors import EpctlError
from epctl.native import cache, locks, private
from epctl.native.cache import Cache
from epctl.native.cache_entry import MANIFEST, Entry, load, stem_of
from epctl.native.cache_key import Inputs
from tests.support.builder import INPUTS, build

NAME = "a-90a"
ROOT = Path(__file__).parents[3]


class Compiler:
    """A build that counts."""

    def __init__(self, text: bytes = b"code") -> None:
        self.count = 0
        self.text = text

    def __call__(self, out: Path) -> None:
        self.count += 1
        (out / "a.cubin").write_bytes(self.text)


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(private.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(private, "_entries", {})


def builder(folder: Path, log: Path, seconds: float) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.support.builder", str(folder), str(log), str(seconds)]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def rests(folder: Path) -> list[Path]:
    """What stands beside the entries."""
    root = folder / cache.LAYOUT
    return [*(root / ".tmp").iterdir(), *(root / ".locks").iterdir()]


def wait_for(log: Path, word: str) -> None:
    deadline = time.monotonic() + 20
    while not (log.exists() and word in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_made_once_and_then_found(tmp_path: Path) -> None:
    compiler = Compiler()
    first = Cache(tmp_path).get(NAME, INPUTS, compiler)
    again = Cache(tmp_path).get(NAME, INPUTS, compiler)
    assert (compiler.count, first.built, again.built, again.notice) == (1, True, False, "")
    assert again.file("a.cubin").read_bytes() == b"code"
    assert [entry.manifest.inputs for entry in Cache(tmp_path).entries()] == [INPUTS]
    assert rests(tmp_path) == []
    with pytest.raises(KeyError):
        again.file("b")


def test_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    assert cache.default_folder() == Path("/home/u/.cache/epctl")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.default_folder() == Path("/home/u/.cache/epctl")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.default_folder() == Path("/x/epctl")
    monkeypatch.setenv(cache.VARIABLE, "~/mine")
    assert cache.default_folder() == Path("/home/u/mine")


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "default_folder", lambda: None)
    entry = Cache().get(NAME, INPUTS, Compiler())
    assert cache.VARIABLE in entry.notice
    assert Cache().entries() == []


def test_eight_processes_share_one_build(tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = [builder(tmp_path / "cache", log, 0.3) for _ in range(8)]
    told = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 8
    assert log.read_text() == "begin\nend\n"
    assert sorted(told) == ["False  b'halfwhole'\n"] * 7 + ["True  b'halfwhole'\n"]
    assert rests(tmp_path / "cache") == []


def test_a_killed_builder_leaves_nothing(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    with builder(folder, log, 60) as process:
        wait_for(log, "begin")
        process.send_signal(signal.SIGKILL)
    assert len(rests(folder)) == 2
    assert Cache(folder).entries() == []
    compiler = Compiler()
    assert Cache(folder, 5).get(NAME, INPUTS, compiler).built
    assert rests(folder) == []


def test_a_killed_builder_of_something_else_is_tidied_up(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    with builder(folder, log, 60) as process:
        wait_for(log, "begin")
        process.send_signal(signal.SIGKILL)
    Cache(folder, 5).get("b", Inputs((("b.cu", "01"),), (), ()), Compiler())
    assert rests(folder) == []


def test_a_running_builder_is_not_tidied_up(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    with builder(folder, log, 1.0) as process:
        wait_for(log, "begin")
        Cache(folder, 5).get("b", Inputs((("b.cu", "01"),), (), ()), Compiler())
        assert process.wait(20) == 0
    assert len(Cache(folder).entries()) == 2


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(out: Path) -> None:
        (out / "half").write_bytes(b"")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path).get(NAME, INPUTS, interrupted)
    assert rests(tmp_path) == []
    assert not (tmp_path / cache.LAYOUT / stem_of(NAME, INPUTS)).exists()


def test_a_failed_build_is_not_kept(tmp_path: Path) -> None:
    def failing(out: Path) -> None:
        raise EpctlError("it does not compile", "an error", "mend it")

    for _ in range(2):
        with pytest.raises(EpctlError, match="does not compile"):
            Cache(tmp_path).get(NAME, INPUTS, failing)
    with pytest.raises(RuntimeError, match="left no file"):
        Cache(tmp_path).get(NAME, INPUTS, lambda _: None)
    assert Cache(tmp_path).entries() == []
    assert rests(tmp_path) == []


def _flip(entry: Entry) -> None:
    (entry.folder / "a.cubin").write_bytes(b"cod!")


def _cut(entry: Entry) -> None:
    (entry.folder / "a.cubin").write_bytes(b"")


def _remove(entry: Entry) -> None:
    (entry.folder / "a.cubin").unlink()


def _no_manifest(entry: Entry) -> None:
    (entry.folder / MANIFEST).unlink()


def _other_manifest(entry: Entry) -> None:
    path = entry.folder / MANIFEST
    path.write_text(path.read_text().replace("-O3", "-O0"))


def _no_json(entry: Entry) -> None:
    (entry.folder / MANIFEST).write_bytes(b'{"name": "\xff')


def _a_file_in_its_place(entry: Entry) -> None:
    for path in entry.folder.iterdir():
        path.unlink()
    entry.folder.rmdir()
    entry.folder.write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [_flip, _cut, _remove, _no_manifest, _other_manifest, _no_json, _a_file_in_its_place]
)
def test_damaged_entries_are_made_anew(tmp_path: Path, damage: object) -> None:
    compiler = Compiler()
    damage(Cache(tmp_path).get(NAME, INPUTS, compiler))  # type: ignore[operator]
    assert len(Cache(tmp_path).broken()) == 1
    entry = Cache(tmp_path).get(NAME, INPUTS, compiler)
    assert (compiler.count, entry.notice, entry.file("a.cubin").read_bytes()) == (2, "", b"code")
    assert load(entry.folder, INPUTS) is not None
    assert Cache(tmp_path).broken() == []
    assert rests(tmp_path) == []


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(place)], check=False, capture_output=True
    )
    if done.returncode != 0:
        pytest.skip("mount is not allowed here; the same is tested with errors that are raised")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_file_system(small: Path) -> None:
    compiler = Compiler(b"x" * 300_000)
    entry = Cache(small).get(NAME, INPUTS, compiler)
    assert "No space left on device" in entry.notice
    assert entry.file("a.cubin").read_bytes() == compiler.text
    assert rests(small) == []
    assert Cache(small).get(NAME, INPUTS, compiler).folder == entry.folder
    assert compiler.count == 3  # the first try in the full folder each time, once in the private one


def test_a_compiler_that_only_fails_on_a_full_file_system(small: Path) -> None:
    def compiler(out: Path) -> None:
        try:
            (out / "a.cubin").write_bytes(b"x" * 300_000)
        except OSError:
            raise EpctlError("nvcc failed", "it died", "look") from None

    assert Cache(small).get(NAME, INPUTS, compiler).notice


def test_a_read_only_file_system(small: Path) -> None:
    compiler = Compiler()
    Cache(small).get("b", INPUTS, compiler)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    found = Cache(small).get("b", INPUTS, compiler)
    assert (found.built, found.notice, compiler.count) == (False, "", 1)
    entry = Cache(small).get(NAME, INPUTS, compiler)
    assert "Read-only file system" in entry.notice
    assert entry.file("a.cubin").read_bytes() == b"code"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        *(
            (call, code)
            for call in ("mkdir", "rename")
            for code in (errno.EROFS, errno.EACCES, errno.ENOSPC, errno.ESTALE)
        ),
        *(("write_bytes", code) for code in (errno.ENOSPC, errno.EDQUOT)),
    ],
)
def test_errors_of_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, call: str) -> None:
    folder = tmp_path / "cache"
    real = getattr(Path, call)

    def failing(self: Path, *args: object, **options: object) -> object:
        if self.is_relative_to(folder):
            raise OSError(code, os.strerror(code), str(self))
        return real(self, *args, **options)

    monkeypatch.setattr(Path, call, failing)
    compiler = Compiler()
    entry = Cache(folder).get(NAME, INPUTS, compiler)
    assert os.strerror(code) in entry.notice
    assert not entry.folder.is_relative_to(folder)
    assert entry.file("a.cubin").read_bytes() == b"code"


def test_other_errors_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EBADF, "bad")

    monkeypatch.setattr(cache.tempfile, "mkdtemp", failing)
    with pytest.raises(OSError, match="bad"):
        Cache(tmp_path).get(NAME, INPUTS, Compiler())


def test_a_file_instead_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    assert "Not a directory" in Cache(tmp_path / "cache").get(NAME, INPUTS, Compiler()).notice


def test_private_folders_of_dead_processes_go(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    dead, alive = tmp_path / f"epctl-private-{gone.pid}-x", tmp_path / f"epctl-private-{os.getppid()}-x"
    dead.mkdir()
    alive.mkdir()
    private.get(NAME, INPUTS, Compiler(), "why")
    assert (dead.exists(), alive.exists()) == (False, True)


def test_a_lock_that_stays_names_its_holder(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    with builder(folder, log, 60) as process:
        try:
            wait_for(log, "begin")
            with pytest.raises(EpctlError, match=r"the build of a-90a has been locked for more than 0\.3 s") as caught:
                Cache(folder, 0.3).get(NAME, INPUTS, Compiler())
            assert f"process {process.pid} on {socket.gethostname()} (builder.py" in caught.value.why
            assert caught.value.exit_code == 4
        finally:
            process.kill()


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)


@pytest.mark.usefixtures("no_flock")
def test_without_flock(tmp_path: Path) -> None:
    compiler = Compiler()
    assert Cache(tmp_path).get(NAME, INPUTS, compiler).notice == ""
    assert rests(tmp_path) == []
    with locks.held(tmp_path / "l", "it", 1):
        with pytest.raises(locks.Busy):
            locks.acquire(tmp_path / "l")
        with pytest.raises(EpctlError, match="it has been locked") as caught, locks.held(tmp_path / "l", "it", 0.1):
            pass
        assert f"process {os.getpid()}" in caught.value.why
    assert list(tmp_path.iterdir()) == [tmp_path / cache.LAYOUT]


@pytest.mark.usefixtures("no_flock")
def test_without_flock_a_dead_holder_is_noticed(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom epctl.native import locks\n"
        "lock = locks._linked(Path(sys.argv[1]))\nos._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "l")], cwd=ROOT, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["l.link"]
    with locks.held(tmp_path / "l", "it", 5):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_flock")
@pytest.mark.parametrize(("age_s", "taken"), [(locks.STALE_S - 30, False), (locks.STALE_S + 30, True)])
def test_without_flock_another_host_must_touch_its_lock(tmp_path: Path, age_s: float, taken: bool) -> None:
    lock = locks.acquire(tmp_path / "l")
    text = lock.path.read_text().replace(f'"host":"{socket.gethostname()}"', '"host":"elsewhere"')
    lock.path.write_text(text)
    old = time.time() - age_s
    os.utime(lock.path, (old, old))
    if taken:
        with locks.held(tmp_path / "l", "it", 5):
            lock.release()  # the one that lost it must not remove the new one
            assert lock.path.exists()
    else:
        with pytest.raises(EpctlError, match="locked") as caught, locks.held(tmp_path / "l", "it", 0.1):
            pass
        assert "on elsewhere" in caught.value.why
        lock.release()
    assert list(tmp_path.iterdir()) == []


def test_the_same_process_may_want_it_twice(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    log = tmp_path / "log"
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda _: Cache(tmp_path / "c", 20).get(NAME, INPUTS, lambda out: build(out, log, 0.1)), range(4))
        )
    assert sum(entry.built for entry in found) == 1
    assert log.read_text() == "begin\nend\n"


def test_names(tmp_path: Path) -> None:
    for name in ("", "../x", "a.b", "A"):
        with pytest.raises(ValueError, match=r"^"):
            Cache(tmp_path).get(name, INPUTS, Compiler())


def test_like(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    store.get(NAME, INPUTS, Compiler())
    newer = store.get(NAME, replace(INPUTS, compilers=("nvcc 13.1",)), Compiler())
    found = store.like(NAME, replace(INPUTS, compilers=()))
    assert found is not None
    assert found.folder == newer.folder
    for field, value in (("flags", ()), ("nccl", "2.32.3"), ("architecture", "100a"), ("sources", ()), ("version", 0)):
        assert store.like(NAME, replace(INPUTS, **{field: value})) is None
    assert store.like("b", INPUTS) is None
