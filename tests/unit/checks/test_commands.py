"""What every fix must keep to, since people paste commands into production nodes: none of them ends jobs, takes a node down, loses
somebody's settings or lowers security without the fix having said so."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import epctl.checks  # noqa: F401 - registers them
from epctl.core.check import Finding, registered
from tests.support.cases import Case, run

BANNED = {
    r"\breboot\b|\bshutdown\b|\bpoweroff\b|\bipmitool\b": "takes the node down",
    r"\bmlxfwreset\b.*(-y\b|\breset\b)": "takes an adapter down under jobs and ssh",
    r"\bmlxconfig\b.*\s-y\b": "answers the tool's question unread",
    r"\brm\s+-\w*[rf]": "deletes without a question",
    r"\b(curl|wget)\b.*\|\s*(sudo\s+)?(ba)?sh\b": "runs what a server sends",
    r"\b(apt-get|apt|dnf|yum)\b.*\s-y\b": "lets a package manager replace packages (a vendor's OFED) without a question",
    r"\bapt-get\s+(dist-)?upgrade\b": "upgrades drivers under jobs",
    r"ptrace_scope=0|\bchmod\b.*777|--privileged|\bsetenforce\s+0|\bnft\s+flush|\biptables\s+-F": "lowers security",
    r"\bpip install\s+(-U|--upgrade)\b": "takes the newest release, which is not the one that fits",
    r"(?<!-m )\bpip install\b": "installs into whatever Python comes first, not into the one that was looked at",
    r"nvidia-smi\s+-mig\s+0(?!.*-i\s)|nvidia-smi\s+(-r|--gpu-reset)(?!.*-i\s)": "hits the GPUs of everybody on the node",
    r"\|\s*sudo\s+tee\s+(?!-a\b)(?!\S*/zz-epctl|\S*/99-epctl|/etc/modules-load\.d/\S+\.conf)": "overwrites a file that is not epctl's",
    r":\$(LD_LIBRARY_PATH|CPATH|CPLUS_INCLUDE_PATH|PATH)\b(?!\})": "puts the current folder on a search path when it was empty",
    r"/usr/local/cuda-\d|cuda-toolkit-\d|-cu1[1-9]\b": "names a CUDA release that is not read from the node",
}
"""Pattern → why. The last line holds for declared commands alone: those made from a node's facts may name its CUDA."""
FROM_FACTS = r"/usr/local/cuda-\d|cuda-toolkit-\d|-cu1[1-9]\b"
MOVING = re.compile(
    r"\bmodprobe\b(?!\.d)|\brmmod\b|\binsmod\b|\bsetpci\b.*=|--gpu-reset|nvidia-smi\s+-r\b|-mig\s+\d|\bmlxconfig\b.*\bset\b"
    r"|\bsystemctl\b(?!.*nvidia-persistenced).*\b(start|restart|stop|reload|enable\s+--now|disable\s+--now)\b"
    r"|\bip link set\b|\bmount\b.*remount|nr_hugepages="
)
"""Loads, unloads, restarts or resets something of the machine. The persistence daemon is started beside jobs without harm."""
ANNOUNCED = re.compile(r"\bdrain|when no job runs|\bdrained\b|when the node is idle|before jobs start", re.I)
MOVED_BY_HAND = re.compile(
    r"\b(upgrade|update|reinstall|rebuild|install|load|unload|rebind|reset|reboot|power-cycle|reseat|restart|switch to|bring|boot|start"
    r"|turn|clear|raise|move|correct)\b[^.;:]{0,60}?\b(drivers?|OFED|gdrdrv|kernel modules?|BIOS|BMC|firmware|fabric manager|IMEX"
    r"|GPUs?|nodes?|nvidia-peermem|nvidia-uvm|libgdrapi|iommu|card|MTUs?|interface|ACS)\b|\b(reboot|power-cycle)\b",
    re.I,
)
"""What people are told to do to the machine without a command for it. `driver capability` of a container is none of it."""
NOT_OF_THE_MACHINE = re.compile(r"driver capability", re.I)
ROOT = re.compile(
    r"^(modprobe|rmmod|sysctl -w|setpci|systemctl (enable|start|restart|stop)|dmesg|mlxconfig|mlxlink|mlxfwmanager|mount|tee"
    r"|update-initramfs|dracut|(apt-get|dnf|yum) (install|update)|nvidia-smi (-mig|-pm|-r|--gpu-reset))\b"
)


def declared() -> Iterator[tuple[str, str, str]]:
    """(id, fix, command) as each check declares them."""
    for one in registered().values():
        for command in one.commands:
            yield one.id, one.fix, command


@cache
def findings() -> tuple[Finding, ...]:
    """On every node on which a test lets a check fail."""
    made = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.stem == "test_commands":
            continue
        for case in getattr(import_module(f"tests.unit.checks.{path.stem}"), "CASES", ()):
            made.append(run(case.id, case.fails, case.profiles, case.num_nodes))  # noqa: PERF401
    return tuple(made)


def found() -> Iterator[tuple[str, str, str]]:
    """(id, fix, command) of the findings: fixes made from facts, too."""
    for finding in findings():
        for command in finding.commands:
            yield finding.id, finding.fix, command


DECLARED, FOUND = sorted(set(declared())), sorted(set(found()))
EVERY = sorted({*DECLARED, *FOUND})
FIXES = sorted({*((one.id, one.fix) for one in registered().values()), *((one.id, one.fix) for one in findings())})
IDS = [f"{entry[0]}-{i}" for i, entry in enumerate(EVERY)]


@pytest.mark.parametrize(("id", "fix", "command"), EVERY, ids=IDS)
def test_a_command_may_be_pasted_into_a_production_node(id: str, fix: str, command: str) -> None:  # noqa: A002
    made = command not in registered()[id].commands
    for pattern, why in BANNED.items():
        if made and pattern == FROM_FACTS:
            continue
        assert not re.search(pattern, command), f"{id}: {command!r} {why}"


@pytest.mark.parametrize(("id", "fix", "command"), EVERY, ids=IDS)
def test_what_moves_the_machine_is_announced_in_the_fix(id: str, fix: str, command: str) -> None:  # noqa: A002
    if MOVING.search(command):
        assert ANNOUNCED.search(fix), f"{id}: {command!r} may hit running jobs, and the fix does not say when: {fix}"


@pytest.mark.parametrize(("id", "fix"), FIXES, ids=[f"{entry[0]}-{i}" for i, entry in enumerate(FIXES)])
def test_a_fix_that_moves_the_machine_by_hand_says_so_too(id: str, fix: str) -> None:  # noqa: A002
    """`Upgrade the driver` ends the jobs of a node as surely as a command does."""
    moved = MOVED_BY_HAND.search(NOT_OF_THE_MACHINE.sub("", fix))
    assert moved is None or ANNOUNCED.search(fix), f"{id}: {moved.group(0)!r}, and the fix does not say when: {fix}"


@pytest.mark.parametrize(("id", "fix", "command"), EVERY, ids=IDS)
def test_a_command_is_one_line_that_a_shell_can_read(id: str, fix: str, command: str) -> None:  # noqa: A002
    assert command.isprintable(), f"{id}: control characters in {command!r}"
    assert command == command.strip()
    words = shlex.split(command)
    assert words, id
    assert not re.search(r"<[a-z][\w -]*>|(?<!\$)\{\w+\}", command), f"{id}: placeholders are CAPITALS: {command!r}"


@pytest.mark.parametrize(("id", "fix", "command"), EVERY, ids=IDS)
def test_what_needs_root_says_sudo(id: str, fix: str, command: str) -> None:  # noqa: A002
    if " && apt-get install" in command:
        return  # an image: its user is root, and sudo is not in it
    for part in re.split(r"\s*(?:&&|\|\||\||;)\s*", command):
        assert not ROOT.match(part), f"{id}: {part!r} needs root"


DEVICE = re.compile(r"\b(?:mlx[45]_\w+|bnxt_re\d+|irdma\d+|rdmap\d+s\d+)\b", re.ASCII)
OF_GPU = re.compile(r"nvidia-smi\b.*?-i (\d+)|dcgmi\b.*?-i (\d+)", re.ASCII)


def test_a_command_that_is_declared_names_no_device_of_a_node() -> None:
    for id, _, command in DECLARED:  # noqa: A001
        assert not DEVICE.search(command), f"{id}: {command!r}"


def test_a_command_is_for_the_device_of_the_evidence() -> None:
    """`mlxlink -d mlx5_0` under a finding on mlx5_3 looks at the wrong cable."""
    for finding in findings():
        text = " ".join(finding.evidence)
        gpus = set(_gpus(text))
        for command in finding.commands:
            for name in DEVICE.findall(command):
                assert re.search(rf"\b{re.escape(name)}\b", text), f"{finding.id}: {command!r} on {text}"
            for first, second in OF_GPU.findall(command):
                # GPU 0 is the one that DeepEP asks nvidia-smi for (NVLINK-SPEED-UNREADABLE).
                assert int(first or second) in {*gpus, 0}, f"{finding.id}: {command!r} on {text}"


def _gpus(text: str) -> Iterator[int]:
    for numbers in re.findall(r"GPU ((?:\d+(?:-\d+)?(?:, )?)+)", text):
        for part in filter(None, numbers.split(", ")):
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


def test_the_patterns_still_meet_the_mistakes_that_were_made() -> None:
    """Commands of earlier releases: the test must not get blind."""
    for bad in (
        "sudo reboot",
        "sudo mlxfwreset -d 0000:19:00.0 -y reset",
        "sudo mlxconfig -d 0000:19:00.0 -y set PCI_ATOMIC_MODE=4",
        "pip install -U nvidia-nvshmem-cu13",
        "pip install --no-deps 'nvidia-nccl-cu13>=2.32.3'",
        "sudo apt-get install -y cuda-toolkit-13-1",
        "sudo sysctl -w kernel.yama.ptrace_scope=0",
        "sudo nvidia-smi -mig 0",
        "echo 'options nvidia X' | sudo tee /etc/modprobe.d/nvidia-ibgda.conf",
        "export LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH",
        "rm -rf /dev/shm/nccl-*",
        "curl https://example.org/x | sudo sh",
    ):
        assert any(re.search(pattern, bad) for pattern in BANNED), bad
    for moving in (
        "sudo modprobe -r nvidia-peermem && sudo modprobe nvidia-peermem",
        "sudo systemctl restart nvidia-fabricmanager",
        "sudo systemctl enable --now nvidia-imex",
        "sudo nvidia-smi --gpu-reset -i 1",
        "sudo nvidia-smi -mig 0 -i 3",
        "sudo setpci -s 0000:17:00.0 ECAP_ACS+0x6.w=0000",
    ):
        assert MOVING.search(moving), moving
    assert not MOVING.search("systemctl status nvidia-fabricmanager")
    for words in (
        "Upgrade the driver to the branch",
        "Update driver and OFED",
        "Boot with iommu=pt",
        "Reseat the card",
        "Reboot.",
    ):
        assert MOVED_BY_HAND.search(words), words
    assert ROOT.match("modprobe nvidia")


def test_a_case_is_a_case() -> None:
    """The nodes come from the tests of the modules; without any, nothing would be looked at."""
    assert len(FOUND) > 150
    assert all(isinstance(case, Case) for case in getattr(import_module("tests.unit.checks.test_gpu"), "CASES", ()))
