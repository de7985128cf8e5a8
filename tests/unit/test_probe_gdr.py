"""The GPUDirect area: modules, their files, gdrdrv's device file and libgdrapi."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.core.fact import Absent
from epctl.core.snapshot.rdma import GdrArea
from epctl.probes.gdr import gdr
from epctl.probes.source import Output, RecordedSource, Recording
from tests.support.damage import damaged_source, json_values
from tests.support.fake_source import FakeSource

Commands = dict[tuple[str, ...], str | bytes | Output | Absent]

MODULES = """\
nvidia_peermem 16384 0 - Live 0x0000000000000000 (OE)
gdrdrv 36864 0 - Live 0x0000000000000000 (OE)
nvidia 104165376 402 nvidia_uvm,nvidia_peermem,gdrdrv,nvidia_modeset, Live 0x0000000000000000 (OE)
ib_core 573440 9 rdma_cm,nvidia_peermem,ib_uverbs,mlx5_ib,ib_cm, Live 0x0000000000000000 (OE)
"""
PEERMEM_INFO = """\
filename:       /lib/modules/5.15.0-142-generic/updates/dkms/nvidia-peermem.ko
version:        580.95.05
license:        Dual BSD/GPL
depends:        nvidia,ib_core
"""
GDRDRV_INFO = """\
filename:       /lib/modules/5.15.0-142-generic/updates/dkms/gdrdrv.ko
version:        2.5
depends:        nv-p2p-dummy
name:           gdrdrv
"""
KERNEL = {"/proc/sys/kernel/osrelease": "5.15.0-142-generic\n", "/lib/modules/5.15.0-142-generic/modules.dep": ""}
NOT_FOUND = Output(b"", b"modinfo: ERROR: Module nvidia_peermem not found.\n", 1)
WHOLE = FakeSource(
    {
        "/proc/modules": MODULES,
        "/sys/module/nvidia_peermem/version": "580.95.05\n",
        "/sys/module/gdrdrv/version": "2.4.1\n",
        **KERNEL,
    },
    commands={("modinfo", "nvidia_peermem"): PEERMEM_INFO, ("modinfo", "gdrdrv"): GDRDRV_INFO},
    documents={
        "libraries": {
            "libraries": {"libgdrapi": {"path": "/usr/lib/libgdrapi.so.2", "real_path": "/usr/lib/libgdrapi.so.2.5"}}
        },
        "nodes": {"/dev/gdrdrv": {"rw": True}},
    },
)


def absent(fact: Any) -> Absent:  # noqa: ANN401
    assert isinstance(fact, Absent), fact
    return fact


def test_a_node_that_has_everything() -> None:
    assert gdr(WHOLE) == GdrArea(True, "580.95.05", True, 0, True, True, "2.4.1", ("nv-p2p-dummy",), True, "2.5")


def test_nothing_is_loaded() -> None:
    files = {"/proc/modules": "nvidia 1 0 - Live 0x0\nib_core 1 1 ib_uverbs, Live 0x0\n", **KERNEL}
    commands: Commands = {("modinfo", name): NOT_FOUND for name in ("nvidia_peermem", "gdrdrv")}
    area = gdr(FakeSource(files, commands=commands, documents={"nodes": {}}))
    assert (area.peermem_loaded, area.peermem_installed, area.peermem_uses_ib_core) == (False, False, False)
    assert (area.gdrdrv_loaded, area.gdrdrv_node) == (False, False)
    assert absent(area.peermem_users).absent == "not_found"
    assert absent(area.peermem_version).absent == "not_found"


def test_in_a_container_a_module_that_modinfo_does_not_find_is_unknown() -> None:
    commands: Commands = {("modinfo", "nvidia_peermem"): NOT_FOUND}
    area = gdr(
        FakeSource(
            {"/proc/modules": "nvidia 1 0 - Live 0x0\n", "/proc/sys/kernel/osrelease": "6.8.0\n"}, commands=commands
        )
    )
    assert absent(area.peermem_installed).absent == "unsupported"


def test_a_loaded_module_is_installed_whatever_modinfo_says() -> None:
    area = gdr(FakeSource({"/proc/modules": MODULES}))
    assert area.peermem_installed is True
    assert area.gdrdrv_depends == ("nvidia",), "without modinfo: the modules that list gdrdrv as a user"


@pytest.mark.parametrize(
    ("modules", "files", "wanted"),
    [
        ("nvidia_peermem 1 0 - Live\nib_uverbs 1 1 nvidia_peermem,rdma_ucm, Live\n", {}, True),
        ("nvidia_peermem 1 0 - Live\nib_core 1 1 ib_uverbs, Live\n", {}, False),
        ("nvidia_peermem 1 0 - Live\n", {"/sys/module/ib_core/parameters/x": "1"}, "unsupported"),
    ],
    ids=["through ib_uverbs", "not registered", "ib_core built in"],
)
def test_registration_with_the_rdma_stack(modules: str, files: dict[str, str], wanted: bool | str) -> None:
    found = gdr(FakeSource({"/proc/modules": modules, **files})).peermem_uses_ib_core
    assert found is wanted if isinstance(wanted, bool) else absent(found).absent == wanted


def test_the_older_module_and_its_place_in_sysfs() -> None:
    area = gdr(
        FakeSource(
            {"/proc/modules": "nv_peer_mem 1 3 - Live\n", "/sys/kernel/mm/memory_peers/nv_mem/version": "1.1-0\n"}
        )
    )
    assert (area.peermem_loaded, area.peermem_users, area.peermem_version) == (True, 3, "1.1-0")


def test_without_proc_modules_sysfs_tells_what_is_loaded() -> None:
    assert gdr(FakeSource({"/sys/module/nvidia_peermem/refcnt": "0"})).peermem_loaded is True
    assert absent(gdr(FakeSource()).peermem_loaded).absent == "not_found"


@pytest.mark.parametrize(
    ("documents", "files", "wanted"),
    [
        ({"nodes": {"/dev/gdrdrv": {"rw": False}}}, {}, False),
        ({"nodes": {"/dev/gdrdrv": {"error": "EACCES"}}}, {}, "permission"),
        ({"nodes": {"/dev": {"error": "EACCES"}}}, {}, "permission"),
        ({}, {"/dev/null": ""}, False),
        ({}, {"/dev/gdrdrv": ""}, "tool_missing"),
        ({"nodes": []}, {"/dev/gdrdrv": ""}, "unparsable"),
    ],
)
def test_device_file(documents: dict[str, Any], files: dict[str, str], wanted: bool | str) -> None:
    found = gdr(FakeSource(files, documents=documents)).gdrdrv_node
    assert found is wanted if isinstance(wanted, bool) else absent(found).absent == wanted


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ({"real_path": "/usr/lib64/libgdrapi.so.2.4.1"}, "2.4.1"),
        ({"real_path": "/opt/libgdrapi.so"}, "unparsable"),
        ({"error": "not_found", "detail": "the loader finds no libgdrapi.so.2"}, "not_found"),
        ({"real_path": 7}, "unparsable"),
    ],
)
def test_libgdrapi_version(entry: dict[str, Any], wanted: str) -> None:
    found = gdr(FakeSource(documents={"libraries": {"libraries": {"libgdrapi": entry}}})).libgdrapi_version
    assert found == wanted if wanted[0].isdigit() else absent(found).absent == wanted


def test_an_empty_recording_is_not_read() -> None:
    area = gdr(RecordedSource(Recording()))
    facts = [getattr(area, name) for name in area.__struct_fields__ if name != "notes"]
    assert {absent(fact).absent for fact in facts} == {"not_read"}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damage_of_any_kind_leaves_an_area_that_encodes(data: st.DataObject) -> None:
    area = gdr(damaged_source(WHOLE, data))
    assert msgspec.json.decode(msgspec.json.encode(area), type=GdrArea) == area


@settings(max_examples=80, deadline=None)
@given(json_values, json_values)
def test_documents_may_hold_anything(libraries: Any, nodes: Any) -> None:  # noqa: ANN401
    area = gdr(FakeSource(documents={"libraries": libraries, "nodes": nodes}))
    assert msgspec.json.decode(msgspec.json.encode(area), type=GdrArea) == area
