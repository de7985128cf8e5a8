"""The probe of the driver: kernel module, libraries, services, IMEX."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctl.core.fact import Absent
from epctl.core.snapshot.gpu import Driver, Service, Setting
from epctl.probes.driver import driver
from epctl.probes.driver_services import NODES_FILE, RUNNING, SHOW
from epctl.probes.source import Output
from tests.support.fake_source import FakeSource

OPEN = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)  Tue Sep 23 10:11:16 UTC 2025
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04.2)
"""
PROPRIETARY = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""
PARAMS = 'ResmanDebugLevel: 4294967295\nEnableStreamMemOPs: 1\nRegistryDwords: "PeerMappingOverride=1;"\nRmMsg: ""\n'
LDCONFIG = ("ldconfig", "-p")
CACHE = """1042 libs found in cache `/etc/ld.so.cache'
\tlibcudart.so.13 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.13
\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
"""
LIB = "/usr/lib/x86_64-linux-gnu"
SYSTEMD = """Id=nvidia-fabricmanager.service
LoadState=loaded
ActiveState=failed

Id=nvidia-imex.service
LoadState=not-found
ActiveState=inactive

Id=nvidia-persistenced.service
LoadState=loaded
ActiveState=active

Id=nvlsm.service
LoadState=not-found
ActiveState=inactive
"""
PROCESSES = "2 kthreadd\n1807 nvidia-persiste\n52110 nvidia-imex\n"
"""IMEX runs in a container, its unit is not installed."""
NO_SYSTEMD = Output(
    b"",
    b"System has not been booted with systemd as init system (PID 1). Can't operate.\nFailed to connect to bus: Host is down\n",
    1,
)
IMEX = ("nvidia-imex-ctl", "-H", "-N")
IMEX_UP = """Connectivity Table Legend:
I - Invalid - Node wasn't reachable, no connection status available
N - Never Connected
R - Recovering - Connection was lost, but clean up has not yet been triggered.
D - Disconnected - Connection was lost, and clean up has been triggreed.
A - Authenticating - If GSSAPI enabled, client has initiated mutual authentication.
!V! - Version mismatch, communication disabled.
!M! - Node map mismatch, communication disabled.
C - Connected - Ready for operation

3/25/2025 10:39:43.659
Nodes:
Node #0   - 10.0.0.1     - READY                - Version: 570.172    - Hostname: n1
Node #1   - 10.0.0.2     - READY                - Version: 570.172    - Hostname: n2

 Nodes From\\To  0   1
       0        C   C
       1        C   C
Domain State: UP
"""


def loader(**libraries: Any) -> dict[str, Any]:  # noqa: ANN401
    """Document of the collector `driver_libraries`."""
    return {
        "library_path": "",
        "programs": {"nvidia-smi": "/usr/bin/nvidia-smi", "nvlsm": "", "nv-fabricmanager": ""},
        "libraries": {
            "libcuda.so.1": f"{LIB}/libcuda.so.580.95.05",
            "libnvidia-ml.so.1": f"{LIB}/libnvidia-ml.so.580.95.05",
            **libraries,
        },
    }


def node(**more: Any) -> FakeSource:  # noqa: ANN401
    given: dict[str, Any] = {
        "files": {"/proc/driver/nvidia/version": OPEN, "/proc/driver/nvidia/params": PARAMS},
        "commands": {
            SHOW: SYSTEMD,
            RUNNING: PROCESSES,
            ("dmesg",): "[    0.000000] Linux version 6.8\n",
            ("nv-fabricmanager", "--version"): "Fabric Manager version is : 580.95.05\n",
            IMEX: IMEX_UP,
        },
        "documents": {"driver_libraries": loader()},
        "targets": {"/opt/nvidia/nvlsm/sbin/nvlsm": "/opt/nvidia/nvlsm/sbin/nvlsm"},
    }
    return FakeSource(**{**given, **more})


NVML = {
    "partial": False,
    "init": {"v": 0},
    "system": {
        "driver_version": {"v": "580.95.05"},
        "cuda_version": {"v": 13000},
        "confidential_computing": {"v": {"ccFeature": 1}},
    },
}


def test_whole_node() -> None:
    assert driver(node(), NVML) == Driver(
        nvml_code=0,
        nvml_message="",
        version="580.95.05",
        cuda_version=13000,
        kernel_version="580.95.05",
        kernel_flavour="open",
        params=(
            Setting("ResmanDebugLevel", "4294967295"),
            Setting("EnableStreamMemOPs", "1"),
            Setting("RegistryDwords", "PeerMappingOverride=1;"),
            Setting("RmMsg", ""),
        ),
        libcuda=f"{LIB}/libcuda.so.580.95.05",
        libcuda_version="580.95.05",
        libnvidia_ml=f"{LIB}/libnvidia-ml.so.580.95.05",
        libnvidia_ml_version="580.95.05",
        nvidia_smi="/usr/bin/nvidia-smi",
        confidential_computing=True,
        services=(
            Service("nvidia-fabricmanager", "failed", "loaded", running=False),
            Service("nvidia-imex", "inactive", "not-found", running=True),
            Service("nvidia-persistenced", "active", "loaded", running=True),
            Service("nvlsm", "inactive", "not-found", running=False),
        ),
        fabric_manager_version="580.95.05",
        nvlsm="/opt/nvidia/nvlsm/sbin/nvlsm",
        imex_domain="UP",
        imex_matrix_bad=(),
        xids=(),
        kernel_log=(),
        imex_nodes_file=False,
    )


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [
        (OPEN, "580.95.05", "open"),
        (PROPRIETARY, "535.104.05", "proprietary"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.82  Release Build  (x@)  \n", "580.82", "open"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  \n",
            "580.159.04",
            "open",
        ),
    ],
)
def test_kernel_module(text: str, version: str, flavour: str) -> None:
    made = driver(node(files={"/proc/driver/nvidia/version": text}), NVML)
    assert (made.kernel_version, made.kernel_flavour) == (version, flavour)


def test_kernel_module_in_a_sandbox() -> None:
    made = driver(node(files={"/sys/module/nvidia/version": "580.159.03\n"}), NVML)
    assert made.kernel_version == "580.159.03"
    assert isinstance(made.kernel_flavour, Absent)


def test_compat_library_on_the_path_of_the_loader() -> None:
    compat = "/usr/local/cuda/compat/libcuda.so.575.57.08"
    made = driver(node(documents={"driver_libraries": loader(**{"libcuda.so.1": compat})}), NVML)
    assert (made.libcuda, made.libcuda_version) == (compat, "575.57.08")


def test_library_missing() -> None:
    gone = {"error": "not_found", "detail": "libcuda.so.1: cannot open shared object file: No such file or directory"}
    made = driver(node(documents={"driver_libraries": loader(**{"libcuda.so.1": gone})}), NVML)
    assert made.libcuda == Absent("not_found", gone["detail"])
    assert made.libcuda_version == made.libcuda


def test_libraries_without_the_collector() -> None:
    source = node(
        documents={}, targets={f"{LIB}/libcuda.so.1": f"{LIB}/libcuda.so.580.95.05", "/usr/bin/nvidia-smi": "/x"}
    )
    source.commands[LDCONFIG] = CACHE
    made = driver(source, NVML)
    assert (made.libcuda, made.libcuda_version) == (f"{LIB}/libcuda.so.580.95.05", "580.95.05")
    assert made.libnvidia_ml == Absent("not_found", f"{LIB}/libnvidia-ml.so.1 does not exist")
    assert made.nvidia_smi == "/usr/bin/nvidia-smi"
    assert made.nvlsm == Absent("not_found", "nvlsm is not installed")


def test_library_path_wins_over_the_cache() -> None:
    source = node(
        documents={"driver_libraries": {"library_path": "relative:/usr/local/cuda/compat:/other"}},
        targets={
            f"{LIB}/libcuda.so.1": f"{LIB}/libcuda.so.580.95.05",
            "/usr/local/cuda/compat/libcuda.so.1": "/usr/local/cuda-12.9/compat/libcuda.so.575.57.08",
        },
    )
    source.commands[LDCONFIG] = CACHE
    assert driver(source, NVML).libcuda == "/usr/local/cuda-12.9/compat/libcuda.so.575.57.08"


def test_nvidia_smi_not_on_path() -> None:
    told = loader()
    told["programs"]["nvidia-smi"] = ""
    made = driver(node(documents={"driver_libraries": told}), NVML)
    assert made.nvidia_smi == Absent("tool_missing", "nvidia-smi is not on PATH")


def test_no_systemd() -> None:
    source = node()
    source.commands[SHOW] = NO_SYSTEMD
    state = driver(source, NVML).services[0].state
    assert isinstance(state, Absent)
    assert (state.absent, state.detail) == ("unsupported", "systemd does not run here")


def test_no_systemd_but_the_daemon_runs() -> None:
    files = {
        "/run/nvidia-fabricmanager/nv-fabricmanager.pid": "4711\n",
        "/proc/4711/comm": "nv-fabricmanage\n",
        "/run/nvidia-persistenced/nvidia-persistenced.pid": "4712",
        "/proc/4712/comm": "bash\n",
    }
    source = node(files=files)
    source.commands[SHOW] = NO_SYSTEMD
    del source.commands[RUNNING]
    states = {service.name: service.state for service in driver(source, NVML).services}
    assert states["nvidia-fabricmanager"] == "active"
    assert isinstance(states["nvidia-persistenced"], Absent)


def test_systemctl_missing() -> None:
    source = node()
    del source.commands[SHOW]
    del source.commands[RUNNING]
    assert [service.state for service in driver(source, NVML).services] == [
        Absent("tool_missing", "systemctl is not on PATH")
    ] * 4


def services_of(**commands: Any) -> dict[str, Service]:  # noqa: ANN401
    source = node()
    source.commands.update({{"show": SHOW, "running": RUNNING}[name]: found for name, found in commands.items()})
    return {service.name: service for service in driver(source, NVML).services}


def test_a_daemon_in_a_container_of_this_host_is_seen_by_its_process() -> None:
    found = services_of(running="2 kthreadd\n4711 nv-fabricmanage\n")["nvidia-fabricmanager"]
    assert (found.state, found.load, found.running) == ("failed", "loaded", True)
    masked = services_of(show=SYSTEMD.replace("LoadState=not-found", "LoadState=masked", 1))["nvidia-imex"]
    assert (masked.state, masked.load) == ("inactive", "masked")
    assert services_of(show=NO_SYSTEMD)["nvidia-imex"].state == "active"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("4711 nvidia-imex\n", "permission"),  # no kthreadd: a container, or /proc with hidepid
        (Output(b"", b"", 1), "permission"),
        (Output(b"", b"pgrep: invalid option -- 'x'\n", 2), "failed"),
        (Absent("tool_missing"), "tool_missing"),
    ],
)
def test_a_process_that_cannot_be_seen_may_run(printed: Any, reason: str) -> None:  # noqa: ANN401
    running = services_of(running=printed)["nvidia-fabricmanager"].running
    assert isinstance(running, Absent)
    assert running.absent == reason


def test_list_of_imex_nodes() -> None:
    assert driver(node(files={NODES_FILE: "10.0.0.1\n"}), NVML).imex_nodes_file is True
    assert driver(node(targets={NODES_FILE: Absent("permission")}), NVML).imex_nodes_file == Absent("permission")


def test_imex_degraded() -> None:
    text = IMEX_UP.replace("       1        C   C", "       1        N   C").replace("State: UP", "State: DEGRADED")
    source = node()
    source.commands[IMEX] = text
    made = driver(source, NVML)
    assert (made.imex_domain, made.imex_matrix_bad) == ("DEGRADED", ("1-0: N",))


def test_imex_version_mismatch_mark() -> None:
    source = node()
    source.commands[IMEX] = IMEX_UP.replace("       0        C   C", "       0        C  !V!")
    assert driver(source, NVML).imex_matrix_bad == ("0-1: V",)


def test_imex_matrix_that_was_cut() -> None:
    """Half a matrix without a bad cell says nothing of the other half."""
    source = node()
    source.commands[IMEX] = IMEX_UP.split("       1        C", maxsplit=1)[0] + "Domain State: UP\n"
    made = driver(source, NVML)
    assert made.imex_domain == "UP"
    assert isinstance(made.imex_matrix_bad, Absent)


def test_imex_daemon_does_not_answer() -> None:
    source = node()
    source.commands[IMEX] = Output(b"", b"Failed to connect to 127.0.0.1:50005\n", 1)
    made = driver(source, NVML)
    assert isinstance(made.imex_domain, Absent)
    assert made.imex_domain.line == "Failed to connect to 127.0.0.1:50005"
    assert isinstance(made.imex_matrix_bad, Absent)


def test_confidential_computing_that_nvml_does_not_know() -> None:
    system = {**NVML["system"], "confidential_computing": {"e": 3, "s": "Not Supported"}}  # type: ignore[dict-item]
    assert driver(node(), {**NVML, "system": system}).confidential_computing is False


def test_no_driver_at_all() -> None:
    made = driver(FakeSource(), Absent("tool_missing", "no collector"))
    assert made.nvml_code == Absent("tool_missing", "no collector")
    assert isinstance(made.kernel_version, Absent)
    assert made.kernel_version.absent == "not_found"
    assert isinstance(made.xids, Absent)
    assert len(made.services) == 4


NOISE = st.binary(max_size=60) | st.sampled_from([OPEN, PARAMS, CACHE, SYSTEMD, IMEX_UP]).flatmap(
    lambda whole: st.integers(0, len(whole)).map(lambda cut: whole.encode()[:cut])
)


@given(st.lists(NOISE, min_size=8, max_size=8))
@settings(max_examples=120, deadline=None)
def test_any_output_gives_a_driver(noise: list[bytes]) -> None:
    source = FakeSource(
        files={"/proc/driver/nvidia/version": noise[0], "/proc/driver/nvidia/params": noise[1]},
        commands={
            SHOW: noise[2],
            RUNNING: noise[7],
            ("dmesg",): noise[3],
            ("nv-fabricmanager", "--version"): noise[4],
            IMEX: noise[5],
            LDCONFIG: noise[6],
        },
    )
    made = driver(source, NVML)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Driver) == made


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["init", "system", "v", "e", "s", "libraries", "programs", "libcuda.so.1"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON)
@settings(max_examples=200, deadline=None)
def test_any_document_gives_a_driver(told: Any, libraries: Any) -> None:  # noqa: ANN401
    made = driver(node(documents={"driver_libraries": libraries}), told)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Driver) == made
