"""GIN between processes over the loopback plugin: every case bit by bit, each damage seen, barrier, timeout and canary."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from epctl.core.errors import EpctlError
from epctl.native import emulation, loopback_plugin, toolchain
from epctl.native.cache import Cache
from epctl.probes import gin_canary
from epctl.probes.collectors import _gin_pair
from epctl.probes.source import LiveSource
from tests.support import gpus

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
LIMIT_S = 170.0
# Nodes, ranks, GPUs that are shown.
LAYOUTS = {"2x1": (2, 2, 2), "2x2": (2, 4, 2), "4x1": (4, 4, 2), "2x1-on-one-gpu": (2, 2, 1)}


@pytest.fixture(scope="module")
def plugin() -> Path:
    """The plugin; skipped with the reason where something is missing."""
    torch = gpus.torch_or_skip(1)
    try:
        toolchain.find_nccl(with_torch=True)
        return loopback_plugin.obtain(Cache())
    except EpctlError as error:
        pytest.skip(f"{error.what}: {error.why} (PyTorch {torch.__version__})")


def run(plugin: Path, layout: str, what: str) -> list[list[dict[str, Any]]]:
    """What each rank told. Nothing of it lives longer than the limit."""
    nodes, size, num_gpus = LAYOUTS[layout]
    gpus.torch_or_skip(num_gpus)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    children = []
    for rank in range(size):
        played = emulation.environment(nodes, rank * nodes // size, plugin, share_gpus=size > num_gpus)
        environ = {**os.environ, **played, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        if num_gpus == 1:
            environ["CUDA_VISIBLE_DEVICES"] = environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        argv = [sys.executable, "-m", "tests.support.gin_ranks", *map(str, (rank, size, nodes, port)), what]
        children.append(
            subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        with ThreadPoolExecutor(size) as pool:
            ended = list(pool.map(lambda child: child.communicate(timeout=LIMIT_S), children))
    finally:
        for child in children:
            child.kill()
    problems = [
        f"rank {rank} ended with code {child.returncode}: {err[-2000:]}"
        for rank, (child, (_, err)) in enumerate(zip(children, ended, strict=True))
        if child.returncode != 0
    ]
    told = [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in ended]
    assert not problems, "\n".join(problems)
    return told


def of_kind(told: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in told if line["kind"] == kind]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_case_and_each_damage(plugin: Path, layout: str) -> None:
    nodes, size, _ = LAYOUTS[layout]
    every = run(plugin, layout, "selftest")
    for told in every:
        (found,) = of_kind(told, "layout")
        assert found["lsa"] == size // nodes
        assert found["types"] == [2]
    runs = zip(*(of_kind(told, "case") for told in every), strict=True)
    for of_ranks in runs:
        name = of_ranks[0]["name"]
        for outcomes in zip(*(one["outcomes"] for one in of_ranks), strict=True):
            kind = outcomes[0][0]
            well = all(ok for _, ok, _ in outcomes)
            assert well == (kind in ("run", "again")), f"{name} {kind}: {outcomes}"
    for told in every:
        print(layout, of_kind(told, "barrier"))
        (late,) = of_kind(told, "delayed")
        assert late["is_late"] or late["seconds"] > 0.4, "a rank has left the barrier before the last one came"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_how_fast(plugin: Path, layout: str) -> None:
    every = run(plugin, layout, "speed")
    for of_ranks in zip(*(of_kind(told, "speed") for told in every), strict=True):
        assert all(one["ok"] for one in of_ranks), of_ranks
        print(f"{layout} {of_ranks[0]['name']}: {max(one['us'] for one in of_ranks):.1f} us (EMULATED)")


def test_a_rank_alone_in_a_barrier_is_told_whom_it_waited_for(plugin: Path) -> None:
    first, second = run(plugin, "2x1", "lonely")
    assert (
        "rank 0 waited 1 s for rank 1's arrival signal in the barrier over GIN" in of_kind(first, "lonely")[0]["told"]
    )
    assert of_kind(second, "lonely")[0]["told"] == ""


def test_canary_finds_the_proxy_under_emulation(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_gin_pair.EMULATE, "2")
    begin = time.monotonic()
    found = gin_canary.trials(LiveSource().document(gin_canary.COLLECTOR, gin_canary.LIMIT_S))
    print(f"canary: {found}, {time.monotonic() - begin:.1f} s (EMULATED)")
    assert isinstance(found, tuple), found
    assert [(one.name, one.value, one.emulated) for one in found] == [("proxy", "ok", True)], found
    assert isinstance(structs.astuple(found[0])[4], int)


def test_canary_without_an_adapter_says_that_nothing_is_offered(
    plugin: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if list(Path("/sys/class/infiniband").glob("*")):
        pytest.skip("this machine has adapters")
    for name in (_gin_pair.EMULATE, "NCCL_RMA_PLUGIN", "NCCL_HOSTID"):
        monkeypatch.delenv(name, raising=False)
    assert gin_canary.trials(LiveSource().document(gin_canary.COLLECTOR, gin_canary.LIMIT_S)) == ()
