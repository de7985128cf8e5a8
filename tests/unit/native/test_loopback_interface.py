"""What the loopback plugin shows NCCL, and whom it lets in: without a GPU and without a driver."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from epctl.core.errors import EpctlError
from epctl.native import compilers, emulation, loopback_plugin
from tests.support import loopback_plugin_api as api
from tests.support.loopback_plugin_api import Plugin, PluginError
from tests.support.loopback_ranks import num_fds

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")]
MAGIC_BYTES, NAME_AT, TOKEN_AT, MACHINE_AT, NAMESPACE_AT = 8, 56, 16, 32, 48
NOBODY = 65534


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loopback")
    (folder / "image").write_bytes(b"no kernel")
    library = folder / loopback_plugin.FILE
    command = loopback_plugin.host_command(compilers.find_gxx(), folder / "image", library)
    subprocess.run(command, check=True, capture_output=True)
    return library


@pytest.fixture
def plugin(library: Path, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    monkeypatch.setenv("EPCTL_LOOPBACK_TIMEOUT_S", "3")
    return Plugin(str(library))


def abstract_name(handle: bytes) -> str:
    return handle[NAME_AT : NAME_AT + 48].split(b"\0")[0].decode()


def connect_pair(plugin: Plugin, between: object = None) -> list[int]:
    """Two ranks as threads of this process; `between` is called once both listen, and rank 0 waits already."""
    pairs = [plugin.listen() for _ in range(2)]
    handles = [handle for _, handle in pairs]
    collectives = [0, 0]

    def join(rank: int) -> None:
        collectives[rank] = plugin.connect(pairs[rank][0], handles, rank)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    threads[0].start()
    if callable(between):
        between(handles[0])
    threads[1].start()
    for thread in threads:
        thread.join()
    for listener, _ in pairs:
        plugin.call("closeListen", listener)
    return collectives


def test_name_devices_and_properties(plugin: Plugin) -> None:
    assert plugin.table.name == b"epctl-loopback"
    num = api.c_int()
    plugin.call("devices", api.byref(num))
    assert num.value == 1
    found = api.Properties()
    plugin.call("getProperties", 0, api.byref(found))
    assert found.name == b"epctl-loopback"
    assert found.pciPath is None
    assert found.ptrSupport == api.HOST | api.CUDA
    assert (found.netDeviceType, found.speed, found.ndevs, found.devs[0]) == (2, 400000, 1, 0)
    assert (found.maxComms, found.maxRecvs, found.maxMultiRequestSize) == (65536, 8, 1)
    assert (found.railId, found.planeId) == (-1, -1)
    assert found.maxP2pBytes == found.maxCollBytes == 1 << 40
    with pytest.raises(PluginError) as caught:
        plugin.call("getProperties", 1, api.byref(found))
    assert caught.value.code == api.INVALID_ARGUMENT
    assert any("EMULATED" in text for _, text in plugin.log)


@pytest.mark.parametrize("text", ["0", "-1", "x", "1s", "nan", "100000"])
def test_a_limit_that_is_none_is_refused(library: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("EPCTL_LOOPBACK_TIMEOUT_S", text)
    with pytest.raises(PluginError) as caught:
        Plugin(str(library))
    assert caught.value.code == api.INVALID_ARGUMENT


def test_listening_leaves_no_file_and_no_descriptor(plugin: Plugin) -> None:
    before = num_fds()
    for _ in range(50):
        listener, handle = plugin.listen()
        assert abstract_name(handle).startswith("epctl-loopback-")
        plugin.call("closeListen", listener)
    assert num_fds() == before
    with pytest.raises(PluginError):
        plugin.call("closeListen", listener)


def test_each_listener_has_a_name_and_a_token_of_its_own(plugin: Plugin) -> None:
    pairs = [plugin.listen() for _ in range(20)]
    assert len({handle[NAME_AT:] for _, handle in pairs}) == 20
    assert len({handle[TOKEN_AT : TOKEN_AT + 16] for _, handle in pairs}) == 20
    told = Path("/proc/net/unix").read_text()
    for listener, handle in pairs:
        assert f"@{abstract_name(handle)}" in told
        assert handle[TOKEN_AT : TOKEN_AT + 16].hex() not in told
        plugin.call("closeListen", listener)


def test_connections_are_closed_with_their_collective(plugin: Plugin) -> None:
    before = num_fds()
    for _ in range(5):
        collectives = connect_pair(plugin)
        # two sockets between the two on both sides, and an eventfd each
        assert num_fds() == before + 6
        for collective in collectives:
            plugin.call("closeColl", collective)
        assert num_fds() == before
    assert plugin.warnings() == []
    with pytest.raises(PluginError):
        plugin.call("closeColl", collectives[0])


def test_without_a_driver_memory_is_refused_in_words(plugin: Plugin) -> None:
    if (
        subprocess.run(
            [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"], check=False, capture_output=True
        ).returncode
        == 0
    ):
        pytest.skip("this machine has a CUDA driver")
    collectives = connect_pair(plugin)
    with pytest.raises(PluginError):
        plugin.context(collectives[0])
    assert "there is no CUDA driver" in plugin.warnings()[0]
    for collective in collectives:
        plugin.call("closeColl", collective)


def strange(handle: bytes, hello: bytes) -> bytes:
    """What the listener answers to a connection that says `hello`; b'' when it closes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(5)
        sock.connect("\0" + abstract_name(handle))
        sock.send(hello)
        try:
            return sock.recv(64)
        except ConnectionResetError:
            return b""


def test_who_does_not_know_the_token_is_turned_away_and_others_connect(plugin: Plugin) -> None:
    answers = []

    def stranger(handle: bytes) -> None:
        wrong = struct.pack("<Q16sii", *struct.unpack("<Q", handle[:8]), bytes(16), 1, 0)
        right = struct.pack("<Q16sii", *struct.unpack("<Q", handle[:8]), handle[TOKEN_AT : TOKEN_AT + 16], 7, 0)
        answers.extend([strange(handle, wrong), strange(handle, right), strange(handle, b"short")])

    for collective in connect_pair(plugin, stranger):
        plugin.call("closeColl", collective)
    assert answers == [b"", b"", b""]
    told = plugin.warnings()
    assert [f"process {os.getpid()} connected without the token and was turned away"] * 2 == told[:2]
    assert "another size" in told[2]
    assert len(told) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_turned_away_even_with_the_token(plugin: Plugin) -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    try:
        subprocess.run([python, "-c", "pass"], user=NOBODY, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("another user cannot start Python here")

    def other(handle: bytes) -> None:
        code = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(5);"
            "s.connect(chr(0) + sys.argv[1]); print(s.recv(64))"
        )
        argv = [python, "-c", code, abstract_name(handle)]
        done = subprocess.run(argv, user=NOBODY, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "b''" or "ConnectionResetError" in done.stderr, done.stderr

    for collective in connect_pair(plugin, other):
        plugin.call("closeColl", collective)
    assert plugin.warnings() == [f"a process of user {NOBODY} tried to connect and was turned away"]


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (0, "uses another plugin"),
        (8, "another version of this one"),
        (MACHINE_AT, "runs on another machine"),
        (NAMESPACE_AT, "in another network namespace"),
    ],
)
def test_a_rank_that_cannot_be_reached_is_named_with_the_reason(plugin: Plugin, at: int, why: str) -> None:
    listener, mine = plugin.listen()
    theirs = bytearray(mine)
    theirs[at] ^= 1
    with pytest.raises(PluginError) as caught:
        plugin.connect(listener, [bytes(theirs), mine], 1)
    plugin.call("closeListen", listener)
    assert caught.value.code == api.INVALID_USAGE
    assert f"rank 0 of 2 (process {os.getpid()})" in plugin.warnings()[0]
    assert why in plugin.warnings()[0]


def test_a_rank_that_has_ended_is_noticed_at_once(plugin: Plugin) -> None:
    gone, theirs = plugin.listen()
    plugin.call("closeListen", gone)
    listener, mine = plugin.listen()
    begin = time.monotonic()
    with pytest.raises(PluginError) as caught:
        plugin.connect(listener, [theirs, mine], 1)
    assert time.monotonic() - begin < 1.0
    assert caught.value.code == api.REMOTE
    assert "has ended before it connected" in plugin.warnings()[0]
    plugin.call("closeListen", listener)


def test_the_environment_of_an_emulated_node() -> None:
    plugin = Path("/cache/libepctl-loopback.so")
    first, second = (emulation.environment(2, node, plugin) for node in range(2))
    assert first["NCCL_RMA_PLUGIN"] == str(plugin)
    assert {name for name in first if first[name] != second[name]} == {"NCCL_HOSTID"}
    assert (first["NCCL_GIN_TYPE"], first["CUDA_MODULE_LOADING"]) == ("2", "EAGER")
    assert "NCCL_MULTI_RANK_GPU_ENABLE" not in first
    assert emulation.environment(2, 0, plugin, share_gpus=True) == {**first, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    assert not any("NVLS" in name for name in first)
    for name in emulation.environment(1, 0, plugin, share_gpus=True):
        assert name in (emulation.environment.__doc__ or "")


@pytest.mark.parametrize(("num_nodes", "node"), [(0, 0), (2, 2), (2, -1)])
def test_a_node_that_is_not_there(num_nodes: int, node: int) -> None:
    with pytest.raises(EpctlError, match=f"no emulated node {node}"):
        emulation.environment(num_nodes, node, Path("/x.so"))


@pytest.mark.parametrize("path", ["/a,b.so", "/" + "x" * 255])
def test_a_path_that_nccl_would_not_read(path: str) -> None:
    with pytest.raises(EpctlError, match="cannot load the loopback plugin"):
        emulation.environment(2, 0, Path(path))
