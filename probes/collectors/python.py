"""What the examined interpreter has installed for EP: packages, PyTorch, NCCL, NVSHMEM, plugins, DeepEP, JIT caches.

Run by that interpreter: standard library alone, Python 3.8 or later. Nothing of it is imported or loaded; files are read.
"""
# os.path throughout: what any interpreter has, and fast to start with.
# ruff: noqa: PTH112, PTH113, PTH118, PTH119, PTH120, PTH123, PTH207

from __future__ import annotations

import glob
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.core.standalone.communication import NCCL, NVSHMEM
    from epctl.probes.collectors import _communication, _deepep, _jit, _loader
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))
    import _communication
    import _deepep
    import _jit
    import _loader
    from standalone.communication import NCCL, NVSHMEM

WANTED = re.compile(
    r"torch|pytorch-triton|triton|nvidia-(?:nccl|nvshmem|cuda|cublas|cutlass|cudnn|ml|nvjitlink|cccl).*|cuda-toolkit|"
    r"cuda-python|cuda-bindings|nccl4py|nvshmem4py.*|deep-?ep|deepinfer.*|sgl-deep-ep.*|deep-?gemm|sgl-deep-gemm|nccl-ep|vllm|"
    r"sglang|sgl-kernel|flashinfer.*|mooncake.*|uccl.*|nixl.*|cupy.*|pplx-kernels|tensorrt-llm|megatron-core|transformer-engine|"
    r"perftest|numpy|pybind11|epctl"
)
"""Canonical names of the distributions that checks look at."""
_PIN = re.compile(r"nvidia[-_]nccl[-_]cu\d+\s*\(?\s*==\s*([0-9][0-9.]*)", re.I)
_ASSIGNED = r"^\s*{}\s*(?::[^=\n]*)?=\s*(?:['\"]([^'\"\n]*)['\"]|(None))"


def main() -> None:
    """Prints the document."""
    loader = _loader.live()
    distributions = _guarded(find_distributions)
    known = {} if "error" in distributions else distributions
    torch = torch_facts(known)
    nccl = _guarded(lambda: _communication.libraries(NCCL, loader, packaged("libnccl.so*")))
    copies = nccl if isinstance(nccl, list) else []
    used = _guarded(lambda: _communication.effective(loader, torch.get("folder", ""), copies))
    document = {
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "executable": sys.executable,
        "glibc": _guarded(_glibc),
        "distributions": [{"name": name, "version": entry["version"]} for name, entry in sorted(known.items())]
        if known or "error" not in distributions
        else distributions,
        "torch": torch,
        "nccl": nccl,
        "nccl_effective": used,
        "nvshmem": _guarded(lambda: _communication.libraries(NVSHMEM, loader, packaged("libnvshmem_host.so*"))),
        "net_plugins": _guarded(lambda: _communication.plugins(loader)),
        "roots": _guarded(_communication.roots),
        "deep_ep": _guarded(lambda: deep_ep(loader, known, used)),
        "jit_caches": _guarded(lambda: _jit.caches(module_folder("deep_ep"))),
    }
    json.dump(_clean(document), sys.stdout)


def _guarded(action: Callable[[], Any]) -> Any:  # noqa: ANN401 - JSON
    """`action()`; one part that fails must not cost the others."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - the interpreter's packages are of any age and in any state
        return {"error": "failed", "detail": f"{type(error).__name__}: {error}"}


def _clean(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Without the surrogates that stand for bytes of a path that are no UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(key): _clean(entry) for key, entry in value.items()}
    return [_clean(entry) for entry in value] if isinstance(value, list) else value


def _glibc() -> str:
    """2.39; os.confstr raises on other C libraries."""
    told = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return told.split()[-1] if told.startswith("glibc") else "0"


def find_distributions() -> dict[str, dict[str, Any]]:
    """Canonical name → {version, distribution} of those that checks look at. The first one on sys.path wins, as in an import."""
    import importlib.metadata

    found: dict[str, dict[str, Any]] = {}
    for entry in importlib.metadata.distributions():
        folder = os.path.basename(str(getattr(entry, "_path", "")))
        if folder.endswith(".dist-info") and not WANTED.fullmatch(canonical(folder.split("-")[0])):
            continue  # its name need not be read
        name = canonical(_metadata(entry, "Name"))
        if name and WANTED.fullmatch(name) and name not in found:
            found[name] = {"version": _metadata(entry, "Version"), "distribution": entry}
    return found


def canonical(name: str) -> str:
    """Lower case, hyphens (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _metadata(entry: Any, field: str) -> str:  # noqa: ANN401 - a distribution
    """A damaged installation has no metadata."""
    try:
        return str(entry.metadata[field] or "")
    except Exception:  # noqa: BLE001 - its METADATA may be missing or broken in any way
        return ""


def module_folder(name: str) -> str:
    """Folder of a package that could be imported; nothing of it runs."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return ""
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else ""


def torch_facts(known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """{version, cuda, nccl_pin, folder} from torch/version.py and the metadata."""
    folder = module_folder("torch")
    none = {"error": "not_found", "detail": "PyTorch is not installed"}
    if not folder:
        return {"version": none, "cuda": none, "nccl_pin": none, "folder": ""}
    try:
        with open(os.path.join(folder, "version.py"), errors="replace") as stream:
            written = stream.read(1 << 16)
    except OSError:
        written = ""
    version = re.search(_ASSIGNED.format("__version__"), written, re.M)
    cuda = re.search(_ASSIGNED.format("cuda"), written, re.M)
    told = known.get("torch", {}).get("version", "")
    return {
        "version": (version and version.group(1)) or told or {"error": "unparsable", "detail": "torch/version.py"},
        "cuda": _torch_cuda(cuda),
        "nccl_pin": _pin(known) or {"error": "not_found", "detail": "PyTorch pins no NCCL package"},
        "folder": folder,
    }


def _torch_cuda(found: re.Match[str] | None) -> Any:  # noqa: ANN401 - JSON
    if found is None:
        return {"error": "unparsable", "detail": "torch/version.py does not name CUDA"}
    return found.group(1) or {"error": "unsupported", "detail": "this PyTorch is built without CUDA"}


def _pin(known: dict[str, dict[str, Any]]) -> str:
    entry = known.get("torch", {}).get("distribution")
    try:
        requires = list(entry.requires or []) if entry is not None else []
    except Exception:  # noqa: BLE001 - its METADATA may be broken in any way
        return ""
    pins = [match.group(1) for match in map(_PIN.match, requires) if match]
    return pins[0] if pins else ""


def site_folders() -> list[str]:
    """Folders of sys.path."""
    return [path for path in dict.fromkeys(sys.path) if path and os.path.isdir(path)]


def packaged(pattern: str) -> list[str]:
    """Libraries that come with packages: nvidia/*/lib and torch/lib."""
    found: list[str] = []
    for site in site_folders():
        for middle in ("nvidia/*/lib", "torch/lib"):
            found.extend(sorted(glob.glob(f"{glob.escape(site)}/{middle}/{pattern}")))
    return [path for path in found if os.path.isfile(path)]


def deep_ep(loader: _loader.Loader, known: dict[str, dict[str, Any]], used: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Every installed build of DeepEP."""
    path = used.get("path", "") if isinstance(used, dict) else ""
    nccl = path if isinstance(path, str) else ""
    besides = [os.path.join(module_folder("torch"), "lib")]
    for site in site_folders():
        besides.extend(glob.glob(f"{glob.escape(site)}/nvidia/*/lib"))
    found: list[dict[str, Any]] = []
    for name, module in _deepep.MODULES.items():
        if name in known:
            entry, folder = known[name], module_folder(module)
            files = _extensions(entry["distribution"])
            found.append(_deepep.describe(loader, name, entry["version"], folder, files, nccl, besides))
    folder = module_folder("deep_ep")
    if not found and folder:  # on PYTHONPATH, without metadata
        found.append(_deepep.describe(loader, "deep-ep", _deepep.release(folder), folder, [], nccl, besides))
    return found


def _extensions(entry: Any) -> list[str]:  # noqa: ANN401 - a distribution
    """Compiled modules that a distribution lists."""
    try:
        files = [str(file.locate()) for file in entry.files or [] if str(file).endswith(".so")]
    except Exception:  # noqa: BLE001 - its RECORD may be broken in any way
        return []
    return sorted(path for path in files if os.path.isfile(path))


if __name__ == "__main__":
    main()
