"""Compilers and headers that just-in-time compilation needs. Run by the examined interpreter: standard library alone."""
# os.path throughout: what any interpreter has, and fast to start with.
# ruff: noqa: PTH110, PTH112, PTH118, PTH120

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctl.probes.collectors import _cuda_home, _loader
else:
    sys.path.append(os.path.dirname(os.path.realpath(__file__)))
    import _cuda_home
    import _loader

COMPILE_S = 8.0
ASK_S = 4.0
FORMAT_TEST = (
    '#include <format>\n#include <string>\nint main() { return static_cast<int>(std::format("{}", 7).size()) - 1; }\n'
)
LIBDWFL_TEST = "#include <elfutils/libdwfl.h>\n"
_RELEASE = re.compile(r"release (\d{1,2}\.\d{1,2})(?:, V(\d{1,2}\.\d{1,2}\.\d{1,4}))?")
_DOTTED = re.compile(r"\d{1,3}(?:\.\d{1,3}){0,3}")


def main() -> None:
    """Prints the document."""
    home, origin = _cuda_home.find()
    nvcc = os.path.join(home, "bin", "nvcc") if home else ""
    if nvcc and not os.access(nvcc, os.X_OK):
        nvcc = ""
    gxx = shutil.which("g++") or ""
    ccbin = os.environ.get("NVCC_CCBIN", "")
    host = _host_compiler(ccbin)
    compiler = host or gxx
    with ThreadPoolExecutor(5) as pool:
        nvcc_version = pool.submit(_nvcc_version, nvcc)
        gxx_version = pool.submit(_gxx_version, gxx)
        cxx_format = pool.submit(_compiles, compiler, FORMAT_TEST)
        libdwfl = pool.submit(_compiles, compiler, LIBDWFL_TEST)
        libdw = pool.submit(lambda: bool(_loader.live().find("libdw.so.1")))
    document = {
        "cuda_home": os.path.realpath(home)
        if home
        else _none("no CUDA toolkit: CUDA_HOME, nvcc, /usr/local/cuda, pip"),
        "cuda_home_origin": origin,
        "nvcc": nvcc or _none(f"no executable {home}/bin/nvcc" if home else "no CUDA toolkit"),
        "nvcc_version": nvcc_version.result(),
        "gxx": gxx or _none("no g++ on PATH"),
        "gxx_version": gxx_version.result(),
        "nvcc_ccbin": host or _none(f"NVCC_CCBIN={ccbin} names no compiler" if ccbin else "NVCC_CCBIN is not set"),
        "cxx_format": cxx_format.result(),
        "libdwfl_header": libdwfl.result(),
        "libdw": libdw.result(),
        "has_cuda_runtime_h": _has(home, "include/cuda_runtime.h"),
        "has_cccl": _has(home, "include/cccl"),
        "usr_local_cuda": os.path.realpath(_cuda_home.DEFAULT)
        if os.path.exists(_cuda_home.DEFAULT)
        else _none(f"no {_cuda_home.DEFAULT}"),
        "cpath_cuda_versions": _cpath_versions(),
    }
    json.dump(_clean(document), sys.stdout)


def _none(why: str) -> dict[str, str]:
    return {"error": "not_found", "detail": why}


def _clean(document: dict[str, Any]) -> dict[str, Any]:
    """Texts without the surrogates that stand for bytes of a path that are no UTF-8."""
    return {
        key: value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value
        for key, value in document.items()
    }


def _host_compiler(ccbin: str) -> str:
    """NVCC_CCBIN may be a program, its name on PATH, or the folder that holds g++."""
    if not ccbin:
        return ""
    if os.path.isdir(ccbin):
        ccbin = os.path.join(ccbin, "g++")
    found = shutil.which(ccbin)
    return os.path.realpath(found) if found else ""


def _ask(argv: list[str]) -> Any:  # noqa: ANN401 - text, or an error
    try:
        done = subprocess.run(argv, capture_output=True, timeout=ASK_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {"error": "timed_out", "detail": argv[0]}
    except OSError as error:
        return {"error": "failed", "detail": f"{argv[0]}: {error.strerror}"}
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        return {"error": "failed", "detail": (done.stderr.decode("utf-8", "replace").strip() or text)[:200]}
    return text


def _nvcc_version(nvcc: str) -> Any:  # noqa: ANN401 - JSON
    if not nvcc:
        return _none("no nvcc")
    told = _ask([nvcc, "--version"])
    if not isinstance(told, str):
        return told
    found = _RELEASE.search(told)
    return (found.group(2) or found.group(1)) if found else {"error": "unparsable", "detail": told[-200:]}


def _gxx_version(gxx: str) -> Any:  # noqa: ANN401 - JSON
    """g++ gives one number to -dumpversion on some systems; -dumpfullversion came with GCC 7."""
    if not gxx:
        return _none("no g++")
    told = _ask([gxx, "-dumpfullversion", "-dumpversion"])
    if not isinstance(told, str):
        return told
    found = _DOTTED.fullmatch(told.strip())
    return found.group(0) if found else {"error": "unparsable", "detail": told[:200]}


def _compiles(compiler: str, source: str) -> Any:  # noqa: ANN401 - JSON
    """True when the front end takes the source; a compiler that cannot even do an empty one is an error."""
    if not compiler:
        return _none("no C++ compiler")
    argv = [compiler, "-x", "c++", "-std=c++20", "-fsyntax-only", "-"]
    try:
        done = subprocess.run(argv, input=source.encode(), capture_output=True, timeout=COMPILE_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "timed_out", "detail": compiler}
    except OSError as error:
        return {"error": "failed", "detail": f"{compiler}: {error.strerror}"}
    said = done.stderr.decode("utf-8", "replace")
    if done.returncode != 0 and "cc1plus" in said:
        return {"error": "failed", "detail": said.strip()[:200]}
    return done.returncode == 0


def _has(home: str, path: str) -> Any:  # noqa: ANN401 - JSON
    return os.path.exists(os.path.join(home, path)) if home else _none("no CUDA toolkit")


def _cpath_versions() -> list[str]:
    folders = [
        folder
        for variable in ("CPATH", "CPLUS_INCLUDE_PATH")
        for folder in os.environ.get(variable, "").split(os.pathsep)
        if folder
    ]
    return sorted({version for version in map(_cuda_home.version_of, folders) if version})


if __name__ == "__main__":
    main()
