"""The NVIDIA driver: kernel module, user-space libraries, services, and what the kernel log says of the GPUs."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from msgspec import structs

from epctl.core.fact import Absent, Fact
from epctl.core.snapshot.gpu import Driver, Setting
from epctl.probes import documents, sysfs
from epctl.probes.driver_services import fabric_manager_version, imex, imex_nodes_file, services
from epctl.probes.kernel_log import KernelLog, kernel_log
from epctl.probes.nvml_answers import NOT_SUPPORTED, Answers, code_of
from epctl.probes.nvml_gpus import missing_of, started
from epctl.probes.reading import clean
from epctl.probes.source import Source, text
from epctl.probes.together import together

PROC = "/proc/driver/nvidia"
SMI_PATHS = ("/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")
NVLSM_PATHS = ("/opt/nvidia/nvlsm/sbin/nvlsm", "/usr/sbin/nvlsm", "/usr/bin/nvlsm")
"""The package of the NVLink subnet manager installs the first one."""
LOADER_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
)
LOADER_FOLDERS_PLAIN = ("/lib64", "/usr/lib64")
MAX_PARAMS = 200

_VERSION = re.compile(r"NVRM version:\s[^\n]{0,200}?\s{1,8}(\d{3,4}(?:\.\d{1,4}){1,3})\b", re.ASCII)
_SUFFIX = re.compile(r"\.so\.(\d{3,4}(?:\.\d{1,4}){1,3})\Z", re.ASCII)
_LISTED = re.compile(r"\s{0,8}(\S{1,80}) \(([^)]{0,80})\) => (/\S{1,400})\s{0,8}\Z")


class HostSide(NamedTuple):
    """The facts that do not come from NVML, and notes on them."""

    driver: Driver
    notes: tuple[str, ...]


def driver(source: Source, nvml: Any) -> Driver:  # noqa: ANN401 - JSON
    """All facts. `nvml`: the document of the collector of that name, or an Absent."""
    return with_nvml(host_side(source).driver, nvml)


def host_side(source: Source) -> HostSide:
    """The facts that do not come from NVML; commands run at the same time."""
    found = together(
        {
            "log": lambda: kernel_log(source),
            "services": lambda: services(source),
            "fabric manager": lambda: fabric_manager_version(source),
            "imex": lambda: imex(source),
            "files": lambda: _files(source),
        }
    )
    log, domain, made = found["log"], found["imex"], found["files"]
    log = KernelLog(log, log) if isinstance(log, Absent) else log
    domain = (domain, domain) if isinstance(domain, Absent) else domain
    made = Driver() if isinstance(made, Absent) else made
    made = structs.replace(
        made,
        services=() if isinstance(found["services"], Absent) else found["services"],
        fabric_manager_version=found["fabric manager"],
        imex_domain=domain[0],
        imex_matrix_bad=domain[1],
        xids=log.xids,
        kernel_log=log.lines,
    )
    return HostSide(made, (log.note,) if log.note else ())


def with_nvml(made: Driver, nvml: Any) -> Driver:  # noqa: ANN401 - JSON
    """`made` with what NVML says of the driver."""
    failure = started(nvml)
    entry = nvml.get("init") if isinstance(nvml, dict) else None
    code = code_of(entry)
    no_library_call = failure if failure is not None else missing_of(nvml)
    answers = Answers(nvml.get("system") if isinstance(nvml, dict) else None, no_library_call)
    return structs.replace(
        made,
        nvml_code=0 if failure is None else code if code is not None and code >= 0 else failure,
        nvml_message=failure.detail.removeprefix("NVML: ") if failure is not None else "",
        version=answers.text("driver_version"),
        cuda_version=answers.integer("cuda_version"),
        # Where NVML cannot do it there is no such mode to be on.
        confidential_computing=False
        if answers.code("confidential_computing") == NOT_SUPPORTED
        else answers.flag("confidential_computing", "ccFeature"),
    )


def _files(source: Source) -> Driver:
    version, flavour = _kernel_module(source)
    loader = source.document("driver_libraries")
    listing = None if _tells_libraries(loader) else _listing(source)
    libcuda = _library(source, loader, listing, "libcuda.so.1")
    libnvidia_ml = _library(source, loader, listing, "libnvidia-ml.so.1")
    return Driver(
        kernel_version=version,
        kernel_flavour=flavour,
        params=_params(source),
        libcuda=libcuda,
        libcuda_version=_suffix(libcuda),
        libnvidia_ml=libnvidia_ml,
        libnvidia_ml_version=_suffix(libnvidia_ml),
        nvidia_smi=_program(source, loader, "nvidia-smi", SMI_PATHS),
        nvlsm=_installed(source, loader, "nvlsm", NVLSM_PATHS),
        imex_nodes_file=imex_nodes_file(source),
    )


def _kernel_module(source: Source) -> tuple[Fact[str], Fact[Literal["open", "proprietary"]]]:
    """Version and flavour of the loaded module. sysfs knows the version where /proc/driver is hidden, as in some sandboxes."""
    found = text(source, f"{PROC}/version")
    if isinstance(found, Absent):
        version = text(source, "/sys/module/nvidia/version")
        known = isinstance(version, str) and re.fullmatch(r"[0-9.]{3,40}", version)
        return (version if known else found), found
    seen = _VERSION.search(found)
    if seen is None:
        odd = Absent("unparsable", f"{PROC}/version names no version", found.split("\n")[0][:80])
        return odd, odd
    return seen[1], "open" if "Open Kernel Module" in seen[0] else "proprietary"


def _params(source: Source) -> Fact[tuple[Setting, ...]]:
    found = source.read(f"{PROC}/params")
    if isinstance(found, Absent):
        return found
    pairs = [line.partition(":") for line in clean(found).split("\n") if ":" in line]
    settings = tuple(
        Setting(name.strip()[:80], value.strip()[:1000].strip('"'))
        for name, _, value in pairs[:MAX_PARAMS]
        if name.strip()
    )
    return settings or Absent("unparsable", f"{PROC}/params holds no setting", clean(found)[:80])


def _tells_libraries(loader: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(documents.member(loader, "libraries"), dict)


def _library(source: Source, loader: Any, listing: str | Absent | None, name: str) -> Fact[str]:  # noqa: ANN401 - JSON
    """Real path of a library as the loader picks it. Without the collector: LD_LIBRARY_PATH, the loader's cache, its folders."""
    if listing is None:
        return documents.text(documents.member(loader, "libraries"), name)
    path = documents.text(loader, "library_path")
    folders = [folder for folder in path.split(":") if folder.startswith("/")] if isinstance(path, str) else []
    for folder in folders[:64]:
        found = sysfs.target(source, f"{folder.rstrip('/')}/{name}")
        if isinstance(found, str):
            return found
    cached = [] if isinstance(listing, Absent) else _cached(listing, name)
    tried = [*cached, *(f"{folder}/{name}" for folder in (*LOADER_FOLDERS, *LOADER_FOLDERS_PLAIN))]
    for candidate in tried:
        found = sysfs.target(source, candidate)
        if isinstance(found, str):
            return found
    if isinstance(listing, Absent):
        return listing
    return (
        sysfs.target(source, cached[0]) if cached else Absent("not_found", f"the loader's cache does not list {name}")
    )


def _listing(source: Source) -> str | Absent:
    found = source.run("ldconfig", "-p")
    return found if isinstance(found, Absent) else clean(found.stdout)


def _cached(listing: str, name: str) -> list[str]:
    """Paths of `name` in the output of `ldconfig -p`, 64-bit ones only."""
    found = (_LISTED.match(line) for line in listing.split("\n") if name in line)
    return [seen[3] for seen in found if seen and seen[1] == name and re.search(r"x86-64|AArch64|64bit", seen[2])][:16]


def _suffix(path: Fact[str]) -> Fact[str]:
    if isinstance(path, Absent):
        return path
    found = _SUFFIX.search(path)
    return found[1] if found else Absent("unsupported", f"the name of {path[:200]} has no version")


def _program(source: Source, loader: Any, name: str, paths: tuple[str, ...]) -> Fact[str]:  # noqa: ANN401 - JSON
    """Path of a program on PATH; without the collector, the usual places."""
    found = documents.text(documents.member(loader, "programs"), name)
    if isinstance(found, str):
        return found or Absent("tool_missing", f"{name} is not on PATH")
    there = next((path for path in paths if isinstance(source.target(path), str)), None)
    return there if there is not None else found


def _installed(source: Source, loader: Any, name: str, paths: tuple[str, ...]) -> Fact[str]:  # noqa: ANN401 - JSON
    """Path of a program in the places where its package puts it, or on PATH."""
    answers = [source.target(path) for path in paths]
    there = next((path for path, found in zip(paths, answers, strict=True) if isinstance(found, str)), None)
    if there is not None:
        return there
    on_path = documents.text(documents.member(loader, "programs"), name)
    if isinstance(on_path, str) and on_path:
        return on_path
    unknown = next((found for found in answers if isinstance(found, Absent) and found.absent != "not_found"), None)
    return unknown if unknown is not None else Absent("not_found", f"{name} is not installed")
