"""Bundles: what goes in comes out, and a hostile or broken one is refused with a reason and without touching the disk."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epctl.core.errors import EpctlError
from epctl.core.fact import Absent
from epctl.probes import bundle
from epctl.probes.bundle import Bundle, Manifest
from epctl.probes.source import Output, RecordedSource, Recording

ABSENT = Absent("permission", "may not be read by this user")


def recording() -> Recording:
    return Recording(
        commands={
            ("ibstat",): Output(b"CA 'mlx5_0'\n", b"warning\n", 0),
            ("nvidia-smi", "topo", "-m"): ABSENT,
            ("x", "a b"): Output(b"\xff\x00"),
        },
        files={
            "/proc/modules": b"nvidia 1\n",
            "/sys/bus/pci/devices/0000:18:00.0/config": bytes(range(256)),
            "/dev/shm": ABSENT,
        },
        folders={"/sys/class/net": ("eth0", "lo"), "/sys/class/infiniband": ABSENT},
        targets={"/usr/local/cuda": "/usr/local/cuda-13.0", "/x": ABSENT},
        documents={"nvml": {"gpus": [1, None, "ü"]}, "process": ABSENT},
    )


def test_what_is_packed_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "node.tar.gz"
    before = Bundle(Manifest(taken_at="2026-11-30T00:00:00Z", redacted=True), recording(), b"{}\n")
    bundle.write_archive(bundle.pack(before), path)
    after = bundle.unpack(bundle.read_archive(path), "node")
    assert after.manifest == before.manifest
    assert after.snapshot == before.snapshot
    for kind in ("commands", "files", "folders", "targets", "documents"):
        assert getattr(after.recording, kind) == getattr(before.recording, kind), kind


def test_the_same_recording_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        bundle.write_archive(bundle.pack(Bundle(Manifest(), recording())), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_unpacked_bundle_reads_like_the_archive(tmp_path: Path) -> None:
    members = bundle.pack(Bundle(Manifest(), recording()))
    for name, content in members.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert bundle.read_folder(tmp_path) == members


def test_what_was_not_recorded_is_not_read_rather_than_missing() -> None:
    source = RecordedSource(Recording())
    for found in (
        source.run("ibstat"),
        source.read("/proc/modules"),
        source.entries("/sys"),
        source.target("/x"),
        source.document("nvml"),
    ):
        assert isinstance(found, Absent)
        assert found.absent == "not_read"


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for info, content in members:
            out.addfile(info, io.BytesIO(content))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (entry("../../etc/cron.d/x"), "leads out of it"),
        (entry("/etc/passwd"), "leads out of it"),
        (entry("commands/../../x"), "leads out of it"),
        (entry("commands/.."), "leads out of it"),
        (entry("a/b/c/d"), "leads out of it"),
        (entry("x\ny"), "leads out of it"),
        (entry("..", tarfile.DIRTYPE), "leads out of it"),
        (entry("snapshot.json", tarfile.SYMTYPE, link="/etc/shadow"), "is a link"),
        (entry("snapshot.json", tarfile.LNKTYPE, link="manifest.json"), "is a link"),
        (entry("null", tarfile.CHRTYPE), "neither a file nor a folder"),
        (entry("pipe", tarfile.FIFOTYPE), "neither a file nor a folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value.name),
)
def test_members_that_could_do_harm_are_refused(tmp_path: Path, info: tarfile.TarInfo, why: str) -> None:
    path = archive(tmp_path / "evil.tar.gz", (info, b""))
    with pytest.raises(EpctlError, match="refused") as caught:
        bundle.read_archive(path)
    assert why in caught.value.why
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_ten_gigabyte_member_is_refused_by_its_header_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb") as out:
        out.write(entry("documents/nvml.json", size=10 * 1024**3).tobuf())
        out.write(bytes(1024 * 1024))
    with pytest.raises(EpctlError, match="refused") as caught:
        bundle.read_archive(path)
    assert "10737418240" in caught.value.why


def test_many_members_that_are_small_each_are_refused_together(tmp_path: Path) -> None:
    size = bundle.MAX_MEMBER_BYTES
    path = archive(
        tmp_path / "sum.tar.gz",
        *((entry(f"m{i}", size=size), bytes(size)) for i in range(bundle.MAX_TOTAL_BYTES // size + 1)),
    )
    with pytest.raises(EpctlError) as caught:
        bundle.read_archive(path)
    assert "unpacks to more than" in caught.value.why


def test_a_member_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "twice.tar.gz", (entry("manifest.json", size=2), b"{}"), (entry("manifest.json", size=2), b"{}")
    )
    with pytest.raises(EpctlError) as caught:
        bundle.read_archive(path)
    assert "comes twice" in caught.value.why


def test_a_newer_bundle_says_that_epctl_must_be_upgraded() -> None:
    members = bundle.pack(Bundle(Manifest(), recording()))
    head = json.loads(members["manifest.json"])
    head["schema"]["version"] = 99
    with pytest.raises(EpctlError, match="newer") as caught:
        bundle.unpack({**members, "manifest.json": json.dumps(head).encode()}, "node")
    assert "99" in caught.value.why
    assert "upgrade" in caught.value.todo


@given(cut=st.integers(0, 2000), junk=st.binary(max_size=64))
@example(cut=3, junk=b"")
def test_a_damaged_archive_is_refused_or_read_but_never_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("cut") / "node.tar.gz"
    bundle.write_archive(bundle.pack(Bundle(Manifest(), recording())), path)
    raw = path.read_bytes()
    path.write_bytes(raw[: min(cut, len(raw))] + junk)
    try:
        bundle.unpack(bundle.read_archive(path), "node")
    except EpctlError as error:
        assert error.what
        assert error.todo


@pytest.mark.parametrize("name", ["manifest.json", "index.json", "documents/nvml.json"])
@given(
    content=st.one_of(
        st.binary(max_size=80),
        st.sampled_from([b"[]", b"null", b'{"schema":3}', b'{"commands":[{"argv":5}]}', b"[" * 20000]),
    )
)
def test_damaged_members_give_an_error_or_an_absent_document(name: str, content: bytes) -> None:
    members = {**bundle.pack(Bundle(Manifest(), recording())), name: content}
    try:
        found = bundle.unpack(members, "node")
    except EpctlError as error:
        assert "node" in error.what
    else:
        document = found.recording.documents["nvml"]
        assert name != "documents/nvml.json" or isinstance(document, Absent) or document is not None


def test_no_space_left_leaves_no_half_file(tmp_path: Path) -> None:
    with pytest.raises(EpctlError, match="could not be written"):
        bundle.write_archive({"a": b"x"}, tmp_path / "missing" / "node.tar.gz")
    assert list(tmp_path.iterdir()) == []
