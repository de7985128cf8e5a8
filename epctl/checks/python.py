"""Python, PyTorch and the binary interfaces between the packages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from epctl.core.check import Need, Seen, Severity, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.snapshot.software import DeepEp, SharedLibrary
from epctl.core.views import libraries, versions
from epctl.core.views.installing import python
from epctl.core.views.needs import GPU
from epctl.core.views.settings import is_on, told
from epctl.core.wording import counted

_SYMBOL = re.compile(r"undefined symbol: (\w+)", re.ASCII)
_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file", re.ASCII)
_TORCH_MARKS = ("c10", "torch", "N2at", "THP")
"""Parts of the mangled names of PyTorch's namespaces (c10, torch, at) and of its Python binding."""
_DEVICE_LINK = ("__cudaRegisterLinkedBinary", "__fatbinwrap", "__cudaRegister")
_REBUILD = "Rebuild it for the installed PyTorch."
_NCCL = "Install the NCCL that it was built for, and take other copies off the loader path."
_RELINK = "Build it again from a clean tree, with one architecture in TORCH_CUDA_ARCH_LIST."

NONE_THERE = ("not_found", "tool_missing")


@check(
    "PY-UNDEF-SYM",
    area="python",
    severity="fail",
    title="The installed deep_ep does not load",
    why="Its compiled module asks for symbols or libraries that NCCL, PyTorch or CUDA of this interpreter do not have.",
    fix="Symbols nccl*: fix NCCL. Symbols of c10, at, torch: rebuild for this PyTorch. __cudaRegister*: clean build with one "
    "architecture list.",
    reference="https://github.com/deepseek-ai/DeepEP/issues/710 https://github.com/deepseek-ai/DeepEP/issues/429 "
    "https://github.com/deepseek-ai/DeepEP/issues/481 https://github.com/NVIDIA-NeMo/RL/issues/4080",
    needs=(GPU,),
)
def py_undef_sym(context: Context) -> Iterator[Seen]:
    line = context.node.active.deep_ep_import
    installed = known(context.node.software.deep_ep, "installed builds of DeepEP")
    again = (f"{python(context.node)} -c 'import deep_ep'",)
    if isinstance(line, str) and line:
        yield bad(f"`import deep_ep` ends with: {line}", fix=_import_fix(line), commands=again)
    elif line == "":
        yield good("`import deep_ep` works")
    for build in installed:
        yield from _symbols(build, again)
        if line != "":
            yield from _torch_of(build, context, again)


def _import_fix(line: str) -> str:
    """By the symbol's name."""
    symbol = found.group(1) if (found := _SYMBOL.search(line)) else ""
    if symbol.startswith(("nccl", "pnccl")):
        return _NCCL
    if symbol.startswith(_DEVICE_LINK):
        return _RELINK
    if any(mark in symbol for mark in _TORCH_MARKS):
        return _REBUILD
    library = _LIBRARY.search(line)
    if library:
        return f"Install the package that brings {library.group(1)}, or put its folder on the loader path."
    return "Run the import by hand and follow its error."


def _symbols(build: DeepEp, again: tuple[str, ...]) -> Iterator[Seen]:
    name = f"{build.distribution} {build.version}"
    undefined = build.undefined_nccl_symbols
    if isinstance(undefined, Absent):
        if undefined.absent != "not_found":  # no compiled module, or no libnccl: other checks say so
            yield unread(f"NCCL symbols of {name}", undefined)
    elif undefined:
        listed = ", ".join(undefined[:3]) + (", …" if len(undefined) > 3 else "")
        text = f"{name} asks for {counted(len(undefined), 'NCCL symbol')} that the libnccl in use lacks: {listed}"
        yield bad(text, fix=_NCCL, commands=again)
    else:
        yield good(f"{name}: all its NCCL symbols are in the libnccl in use")


def _torch_of(build: DeepEp, context: Context, again: tuple[str, ...]) -> Iterator[Seen]:
    """PyTorch keeps its C++ interface within a minor release; an import that works is the better proof."""
    built, have = build.torch_built, context.node.software.torch_version
    if isinstance(built, Absent) or isinstance(have, Absent):
        return
    one, other = versions.parse(built), versions.parse(have)
    if one is None or other is None:
        return
    text = f"{build.distribution} {build.version} was built for PyTorch {built}, installed is {have}"
    yield (
        good(text) if one.release[:2] == other.release[:2] else bad(text, severity="warn", fix=_REBUILD, commands=again)
    )


@check(
    "PY-VERSIONS",
    area="python",
    severity="fail",
    title="Python or PyTorch is not what a library in use asks for",
    why="The library refuses to install, or breaks at its import, on older bases; a PyTorch without CUDA cannot carry it at all.",
    fix="Move to an image with these versions; let epctl look at the interpreter of the job with --python.",
    reference="https://github.com/deepseek-ai/DeepEP/blob/main/README.md https://pypi.org/project/deepinfer-ep/2.5.0/",
    needs=(GPU,),
)
def py_versions(context: Context) -> Iterator[Seen]:
    software = context.node.software
    for profile, floor in context.floors("python"):
        yield _floor("Python", known(software.python_version, "version of Python"), floor, profile.title)
    for profile, floor in context.floors("torch"):
        version = software.torch_version
        if isinstance(version, Absent) and version.absent in NONE_THERE:
            name = libraries.installed(context, profile)
            severity: Severity = "fail" if name else "warn"
            where = software.python_executable if isinstance(software.python_executable, str) else "this interpreter"
            yield bad(f"{where} has no PyTorch; {name or profile.title} needs {floor}", severity=severity)
            continue
        yield _floor("PyTorch", known(version, "version of PyTorch"), floor, profile.title)
        cuda = software.torch_cuda
        if isinstance(cuda, Absent) and cuda.absent == "unsupported":
            yield bad(f"PyTorch {version} is built without CUDA; {profile.title} needs it")
        else:
            yield good(f"PyTorch {version} is built for CUDA {known(cuda, 'CUDA version of PyTorch')}")


def _floor(what: str, version: str, floor: str, who: str) -> Seen:
    old = versions.below(version, floor)
    if old is None:
        return unread(f"version of {what}", Absent("unparsable", line=version))
    text = f"{what} {version}, {who} needs {floor}"
    return bad(text) if old else good(text)


def _older_deepep(context: Context) -> str:
    """Sources up to 2.1 may be older than the pull request that made them ask for the versioned names."""
    wanted = context.profile("deepep-1") or context.profile("deepep-2")
    return "" if wanted else "no DeepEP older than 2.5 is in use or planned here"


@check(
    "PY-SO-NAMES",
    area="python",
    severity="fail",
    title="A build of DeepEP finds no library without a version in its name",
    why="Wheels bring libnccl.so.2 and libnvshmem_host.so.3 alone; sources of DeepEP before pull request 627 link the plain names.",
    fix="Build from sources with that change, or add links with the plain names.",
    reference="https://github.com/deepseek-ai/DeepEP/pull/627 https://github.com/verl-project/verl/pull/6326",
    needs=(GPU, Need("older_deepep", _older_deepep)),
)
def py_so_names(context: Context) -> Iterator[Seen]:
    built = known(context.node.software.deep_ep, "installed builds of DeepEP")
    for what, stem, fact in (
        ("NCCL", "libnccl.so", context.node.software.nccl),
        ("NVSHMEM", "libnvshmem_host.so", context.node.software.nvshmem),
    ):
        packaged = [entry for entry in known(fact, f"copies of {what}") if entry.origin == "package"]
        if packaged:
            yield _plain_name(stem, packaged, severity="info" if built else None)


def _plain_name(stem: str, packaged: list[SharedLibrary], severity: Severity | None) -> Seen:
    """A library that is installed was linked already, so the condition concerns the next build."""
    first = packaged[0]
    if any(entry.path.endswith(f"/{stem}") for entry in packaged):
        return good(f"{stem} is in {first.path.rpartition('/')[0]}")
    folder, _, name = first.path.rpartition("/")
    return bad(f"{folder} has {name}, and no {stem}", severity=severity)


_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_EXPANDABLE = re.compile(r"(?:^|,)\s*expandable_segments\s*:\s*true\s*(?:,|$)", re.I)
_REGISTERING = ("uccl", "mooncake", "nixl")
"""Beginnings of distributions that register PyTorch's tensors with RDMA."""
_POOLS = ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "VLLM_USE_NCCL_SYMM_MEM", "SGLANG_USE_NCCL_SYMM_MEM")
"""Switches that let NCCL register memory of PyTorch's pools."""


def _contracted(context: Context, names: list[str]) -> tuple[str, ...]:
    """Lines that take the option out and keep the others of the list; none for a value that is no line."""
    lines = []
    for name in names:
        rest = ",".join(entry for entry in context.env[name].split(",") if not _EXPANDABLE.search(entry))
        lines.append(f"export {name}={shlex.quote(rest)}" if rest.strip(" ,") else f"unset {name}")
    return tuple(line for line in lines if line.isprintable())


@check(
    "PY-EXPANDABLE-SEGMENTS",
    area="python",
    severity="warn",
    title="PyTorch's expandable segments are on beside a library that registers its tensors",
    why="They are virtual memory that several RDMA libraries and NCCL's pools cannot register: bad address, or no use of the pool.",
    fix="Take expandable_segments:True out for these jobs, or allocate communication buffers outside of PyTorch's pool.",
    reference="https://github.com/uccl-project/uccl/issues/839 https://github.com/kvcache-ai/Mooncake/issues/2511 "
    "https://github.com/pytorch/pytorch/issues/165419 https://github.com/pytorch/pytorch/issues/147851",
    needs=(GPU,),
)
def py_expandable_segments(context: Context) -> Iterator[Seen]:
    asked = [name for name in _ALLOCATOR if _EXPANDABLE.search(context.env.get(name, ""))]
    if not asked:
        yield good("neither PYTORCH_ALLOC_CONF nor PYTORCH_CUDA_ALLOC_CONF asks for expandable segments")
        return
    text = told(context, asked[0])
    users = [f"{name} {version}" for name, version in context.distributions.items() if name.startswith(_REGISTERING)]
    users += [told(context, name) for name in _POOLS if is_on(context, name)]
    if users:
        yield bad(f"{text}, together with {', '.join(users)}", commands=_contracted(context, asked))
    else:
        yield good(f"{text}, and nothing here registers PyTorch's own memory")
