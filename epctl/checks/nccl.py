"""Checks of the NCCL in use: its version and its copies."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.distributions import release
from epctl.core.fact import Absent, Fact, known, value_or
from epctl.core.snapshot.software import DeepEp, SharedLibrary
from epctl.core.views import gin, installing, libraries, needs, versions
from epctl.core.views.needs import GPU
from epctl.core.views.settings import is_off, is_on, setting, told

EXACT_BELOW = "2.31.0"
"""Before this NCCL the device communicator's layout must be that of the build; from it on newer run times do (dev_runtime.cc)."""
ROOT_VARIABLES = ("EP_NCCL_ROOT_DIR", "NCCL_DIR")
"""Where DeepEP looks for NCCL before the wheels, the first one wins (deep_ep/utils/find_pkgs.py)."""


def _wheels(context: Context) -> dict[str, str]:
    return {name: version for name, version in context.distributions.items() if name.startswith("nvidia-nccl-")}


def _reinstall(context: Context, floor: str) -> tuple[str, ...]:
    """Shell line that installs the NCCL wheel of this PyTorch's CUDA major; none when `floor` is no version."""
    version = versions.parse(floor)
    if version is None:
        return ()
    wheel = f"nvidia-nccl-cu{installing.torch_cuda_major(context)}"
    python = installing.python(context.node)
    return (f"{python} -m pip install --no-deps --force-reinstall '{wheel}>={version.public}'",)


@check(
    "NCCL-TOO-OLD",
    area="nccl",
    severity="fail",
    title="NCCL is older than a library in use needs",
    why="Device API functions, attributes or GIN features are missing, so the library stops while it builds or starts.",
    fix="Install a newer NCCL wheel as the last step, with --no-deps, and keep one copy of NCCL.",
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/README.md "
    "https://github.com/aws/aws-ofi-nccl/blob/master/doc/gin-getting-started.md",
    needs=(GPU,),
)
def nccl_too_old(context: Context) -> Iterator[Seen]:
    for profile, floor in context.floors("nccl"):
        found = libraries.nccl(context)
        if not found:
            user = libraries.installed(context, profile)
            if user:
                yield bad(f"no NCCL is installed; {user} needs {floor}", commands=_reinstall(context, floor))
            continue
        where = value_or(context.node.software.nccl_effective_path, "path not known")
        text = f"NCCL {found} ({where}); {profile.title} needs {floor}"
        old = versions.below(found, floor)
        if old is None:
            yield unread("NCCL version", Absent("unparsable", text))
        elif old:
            yield bad(text, commands=_reinstall(context, floor))
        else:
            yield good(text)


@check(
    "NCCL-DOWNGRADED-BY-PIP",
    area="nccl",
    severity="fail",
    title="pip put an older NCCL in place than the EP library was built with",
    why="PyTorch pins an older NCCL wheel; any later pip install restores that pin, and the import of deep_ep ends in an "
    "undefined NCCL symbol.",
    fix="Install the newer NCCL wheel last, with --no-deps --force-reinstall, and put it in a constraints file.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/710 https://github.com/deepseek-ai/DeepEP/issues/712 "
    "https://github.com/vllm-project/vllm/issues/45321",
    needs=(GPU,),
)
def nccl_downgraded_by_pip(context: Context) -> Iterator[Seen]:
    for library in known(context.node.software.deep_ep, "installed EP libraries"):
        yield from _symbols(library)
        if not versions.below(release(library), "2.0"):
            yield from _wheel_against(context, library)
    pin = context.node.software.torch_nccl_pin
    for profile, floor in context.floors("nccl"):
        for name, version in _wheels(context).items():
            if version == pin and versions.below(version, floor):
                installed = profile.detect.distributions and gin.is_installed(context, profile)
                severity: Severity | None = None if installed else "info"
                yield bad(f"{name} {version} is PyTorch's pin; {profile.title} needs {floor}", severity=severity)


def _symbols(library: DeepEp) -> Iterator[Seen]:
    missing = library.undefined_nccl_symbols
    if isinstance(missing, Absent):
        return
    if missing:
        yield bad(f"{library.distribution} {library.version} needs {missing[0]}, which the NCCL in use does not export")
    else:
        yield good(f"{library.distribution} {library.version}: all its NCCL symbols are there")


def _wheel_against(context: Context, library: DeepEp) -> Iterator[Seen]:
    built = library.nccl_built
    wheels = _wheels(context)
    if not wheels:
        return
    if isinstance(built, Absent):
        if isinstance(library.undefined_nccl_symbols, Absent):
            yield unread(f"NCCL that {library.distribution} was built with", built)
        return
    for name, version in wheels.items():
        pin = f" (PyTorch pins {version})" if version == context.node.software.torch_nccl_pin else ""
        text = f"{name} {version}{pin}; {library.distribution} {library.version} was built with {built}"
        if versions.below(version, built):
            yield bad(text, commands=_reinstall(context, built))
        else:
            yield good(text)


@check(
    "NCCL-DUPLICATE-LOADED",
    area="nccl",
    severity="fail",
    title="Two copies of NCCL are in play",
    why="PyTorch and the EP library must share one NCCL; with two, the import asserts, or communicators of one are handed to "
    "the other.",
    fix="Make both resolve to one file: unset EP_NCCL_ROOT_DIR and NCCL_DIR or point them at PyTorch's copy, drop other "
    "copies from LD_LIBRARY_PATH and LD_PRELOAD.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/640",
    needs=(GPU,),
)
def nccl_duplicate_loaded(context: Context) -> Iterator[Seen]:
    libraries = known(context.node.software.nccl, "NCCL libraries")
    severity: Severity | None = None if context.wants("same_nccl") else "warn"
    loaded = sorted({library.real_path for library in libraries if library.origin == "loaded"})
    if len(loaded) > 1:
        yield bad(f"loaded at once: {', '.join(loaded)}", severity=severity)
    wheels = _wheels(context)
    if len(wheels) > 1:
        names = " and ".join(f"{name} {version}" for name, version in wheels.items())
        yield bad(f"{names} install the same files, the last one wins", severity="warn")
    yield from _expected_against_used(context, libraries, severity)
    if is_on(context, "EP_SUPPRESS_NCCL_CHECK"):
        yield bad(
            f"{told(context, 'EP_SUPPRESS_NCCL_CHECK')} hides DeepEP's own test for this",
            severity="warn",
            fix="Unset EP_SUPPRESS_NCCL_CHECK once there is one NCCL.",
        )


def _expected_against_used(
    context: Context, libraries: tuple[SharedLibrary, ...], severity: Severity | None
) -> Iterator[Seen]:
    expected = _expected(context, libraries)
    if expected is None:
        return
    path = known(context.node.software.nccl_effective_path, "path of the NCCL in use")
    used = next((entry for entry in libraries if path in (entry.path, entry.real_path)), None)
    if path in (expected.path, expected.real_path) or (used is not None and used.real_path == expected.real_path):
        yield good(f"PyTorch and the EP library use {expected.real_path}")
        return
    text = f"PyTorch uses {path} ({_version(used)}), the EP library expects {expected.path} ({_version(expected)})"
    alike = _alike(used, expected)
    if alike is None:
        yield unread(text, Absent("not_read", "their contents could not be compared"))
    elif alike:
        yield good(f"{text}; the two files are equal")
    else:
        yield bad(text, severity=severity)


def _expected(context: Context, libraries: tuple[SharedLibrary, ...]) -> SharedLibrary | None:
    """The libnccl that DeepEP's search finds: roots in their order, then the wheel."""
    for variable in ROOT_VARIABLES:
        root = setting(context, variable)
        if root is not None:
            inside = root.rstrip("/") + "/"
            below = [entry for entry in libraries if entry.origin == "root" and entry.path.startswith(inside)]
            return below[0] if below else None
    return next((entry for entry in libraries if entry.origin == "package"), None)


def _version(library: SharedLibrary | None) -> str:
    return "version not known" if library is None else value_or(library.version, "version not known")


def _alike(one: SharedLibrary | None, other: SharedLibrary) -> bool | None:
    """Equal contents; None when that cannot be told."""
    if one is None:
        return None
    if isinstance(one.sha256, str) and isinstance(other.sha256, str):
        return one.sha256 == other.sha256
    if isinstance(one.version, str) and isinstance(other.version, str) and one.version != other.version:
        return False
    return None


@check(
    "NCCL-ROOT-NOT-FOUND",
    area="nccl",
    severity="fail",
    title="DeepEP cannot find an NCCL with headers",
    why="Its search knows EP_NCCL_ROOT_DIR, NCCL_DIR and Python packages; an NCCL of the distribution stays invisible, and "
    "kernels cannot be compiled without the device headers.",
    fix="Install the nvidia-nccl wheel, or set EP_NCCL_ROOT_DIR to a folder with include/nccl_device and lib/libnccl.so.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/738 https://github.com/coreweave/ml-containers/issues/232",
    needs=(GPU, needs.wants("same_nccl")),
)
def nccl_root_not_found(context: Context) -> Iterator[Seen]:
    variable = next((name for name in ROOT_VARIABLES if setting(context, name) is not None), None)
    if variable is None:
        wheels = _wheels(context)
        if wheels:
            yield good(", ".join(f"{name} {version}" for name, version in wheels.items()))
        else:
            yield bad(f"{' and '.join(ROOT_VARIABLES)} are not set and no nvidia-nccl distribution is installed")
        return
    roots = [entry for entry in context.node.software.roots if entry.variable == variable]
    if not roots:
        yield unread(told(context, variable), Absent("not_read", "the folder was not looked at"))
        return
    root = roots[0]
    device = known(root.has_device_headers, f"{root.path}/include/nccl_device")
    library = known(root.has_lib, f"{root.path}/lib")
    if not device:
        yield bad(f"{told(context, variable)}: no include/nccl_device")
    if not library:
        yield bad(f"{told(context, variable)}: no libnccl.so below lib")
    if device and library:
        yield good(f"{told(context, variable)}: device headers and library are there")


@check(
    "NCCL-BUILD-RUNTIME-SKEW",
    area="nccl",
    severity="fail",
    title="The NCCL that is loaded does not fit the one of the build",
    why="Before NCCL 2.31 the device communicator's layout must be exactly that of the build; later the run time must not be older.",
    fix="Rebuild the EP library against the NCCL that is loaded, or load the one it was built with.",
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/csrc/kernels/backend/nccl.cu "
    "https://github.com/NVIDIA/nccl/blob/master/src/dev_runtime.cc",
    needs=(GPU,),
)
def nccl_build_runtime_skew(context: Context) -> Iterator[Seen]:
    looked = False
    for library in known(context.node.software.deep_ep, "installed EP libraries"):
        if versions.below(release(library), "2.0"):
            continue  # the first generation stands on NVSHMEM
        looked = True
        yield from _skew(context, f"{library.distribution} {library.version} was built with NCCL", library.nccl_built)
    if looked and context.wants("jit"):
        yield from _skew(context, "kernels are compiled with headers of NCCL", context.node.software.nccl_headers)
    if looked and is_off(context, "NCCL_ENABLE_VERSION_CHECK"):
        yield bad(
            f"{told(context, 'NCCL_ENABLE_VERSION_CHECK')} hides a mismatch",
            severity="warn",
            fix="Unset NCCL_ENABLE_VERSION_CHECK.",
        )


def _skew(context: Context, what: str, built: Fact[str]) -> Iterator[Seen]:
    if isinstance(built, Absent):
        yield unread(what, built)
        return
    used = libraries.nccl(context)
    if not used:
        yield bad(f"{what} {built}, and none is installed")
        return
    text = f"{what} {built}, in use is {used}"
    older, newer = versions.below(used, built), versions.below(built, used)
    if older is None or newer is None:
        yield unread(text, Absent("unparsable"))
    elif older or (newer and versions.below(built, EXACT_BELOW)):
        yield bad(text)
    else:
        yield good(text)
