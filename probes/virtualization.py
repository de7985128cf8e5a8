"""Is this a virtual machine, and is this process in a container?"""

from __future__ import annotations

from typing import Any

from epctl.core.fact import Absent, Fact
from epctl.probes import documents
from epctl.probes.source import Source, text

DETECT = "systemd-detect-virt"
_GVISOR_BUILD = "#1 SMP Sun Jan 10 15:06:54 PST 2016"
"""gVisor's kernel emulation gives this date in /proc/version, whatever its release (pkg/sentry/kernel/version.go)."""

_DMI = (
    ("Amazon EC2", "amazon"),
    ("Google", "google"),
    ("Microsoft Corporation", "microsoft"),
    ("QEMU", "kvm"),
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("Red Hat", "kvm"),
    ("Alibaba Cloud", "kvm"),
    ("DigitalOcean", "kvm"),
    ("Hetzner", "kvm"),
    ("VMware", "vmware"),
    ("Xen", "xen"),
    ("innotek GmbH", "oracle"),
    ("Parallels", "parallels"),
)
"""Beginning of the DMI system vendor → systemd's word. Clouds that also rent out machines without a hypervisor are told
apart by the hypervisor flag of the processor where there is one."""
_PLAIN = ("kvm", "qemu", "vm-other")
"""Words that the vendor or the kernel can make more precise."""


def virtualization(source: Source, vendor: Fact[str]) -> tuple[Fact[str], tuple[str, ...]]:
    """systemd's word for the hypervisor, `firecracker`, `gvisor` or `none`; and remarks where sources disagree."""
    version = text(source, "/proc/version")
    if isinstance(version, str) and _GVISOR_BUILD in version:
        return "gvisor", ()
    told = _word(source, "--vm")
    guessed = _guess(source, vendor)
    if isinstance(told, Absent):
        return (_precise(source, guessed, vendor) if isinstance(guessed, str) else guessed), ()
    notes: tuple[str, ...] = ()
    if isinstance(guessed, str) and (told == "none") != (guessed == "none"):
        notes = (f"virtualization: {DETECT} says {told}, processor flags and DMI say {guessed}",)
    return _precise(source, told, vendor), notes


def container(source: Source, document: Any) -> Fact[str]:  # noqa: ANN401 - JSON
    """docker, podman, kubernetes, apptainer, enroot, gvisor, systemd's word for another kind, or `none`."""
    version = text(source, "/proc/version")
    if isinstance(version, str) and _GVISOR_BUILD in version:
        return "gvisor"
    hints = documents.texts(document, "hints")
    if isinstance(hints, tuple) and hints:
        return hints[0].removeprefix("cgroup:")
    told = _word(source, "--container")
    if isinstance(told, str) and told != "none":
        return told
    if isinstance(hints, tuple):
        return "none"
    return told


def _word(source: Source, option: str) -> Fact[str]:
    """systemd-detect-virt ends with code 1 when it says `none`."""
    output = source.run(DETECT, option, timeout_s=2.0)
    if isinstance(output, Absent):
        return output
    word = output.stdout.decode("utf-8", "replace").strip()
    if word and word.replace("-", "").isalnum() and len(word) <= 32:
        return word
    return Absent("unparsable", f"{DETECT} {option} gave no word", documents.text_of(word)[:80])


def _precise(source: Source, word: str, vendor: Fact[str]) -> str:
    """kvm → amazon, firecracker, … where the vendor or the kernel says so."""
    if word not in _PLAIN:
        return word
    named = _by_vendor(vendor)
    if named not in ("", "kvm"):
        return named
    release = text(source, "/proc/sys/kernel/osrelease")
    return "firecracker" if isinstance(release, str) and "-fc-" in f"{release}-" else word


def _by_vendor(vendor: Fact[str]) -> str:
    if not isinstance(vendor, str):
        return ""
    return next((word for begin, word in _DMI if vendor.startswith(begin)), "")


def _guess(source: Source, vendor: Fact[str]) -> Fact[str]:
    """From the processor's hypervisor flag (x86), else from the DMI vendor."""
    cpuinfo = text(source, "/proc/cpuinfo")
    named = _by_vendor(vendor)
    if isinstance(cpuinfo, str):
        flags = next(
            (line.partition(":")[2].split() for line in cpuinfo.splitlines() if line.startswith("flags")), None
        )
        if flags is not None:
            return (named or "kvm") if "hypervisor" in flags else "none"
    if named:
        return named
    if isinstance(vendor, str) and vendor:
        return "none"
    return Absent("not_found", "neither systemd-detect-virt, nor a hypervisor flag, nor a DMI vendor tells")
