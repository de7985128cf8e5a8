"""Reads a trace of top-k indices: .csv, .npy and .npz with the standard library alone, .pt with PyTorch."""

from __future__ import annotations

import ast
import csv
import io
import sys
import zipfile
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from epctl.core.errors import EpctlError

Rows = tuple[tuple[int, ...], ...]
SUFFIXES = (".npz", ".npy", ".pt", ".pth", ".csv")
MAX_BYTES = 256 << 20
"""A trace of a million tokens is 64 MB in int64; more says nothing that a part of it does not."""
NAMES = ("topk_idx", "topk_ids", "topk_indices", "indices", "arr_0")
"""Arrays that are taken from a file that holds several."""
_TYPES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}
_FORM = "a trace is a table of integers: a row a token, its top-k expert indices, -1 where none is picked"


def is_trace(text: str) -> bool:
    """Whether --gate names a file and no gate."""
    return Path(text).suffix.lower() in SUFFIXES


def read_rows(path: Path) -> Rows:
    """Rows of top-k indices. Raises EpctlError for a file that is none, or of the wrong shape."""
    if not path.is_file():
        raise EpctlError(
            f"{path} does not exist", "--gate names a trace by its suffix", "check the path given to --gate"
        )
    if path.stat().st_size > MAX_BYTES:
        raise _refused(path, f"it is larger than {MAX_BYTES >> 20} MiB", "give a part of it")
    suffix = path.suffix.lower()
    try:
        if suffix == ".csv":
            return _csv(path)
        if suffix == ".npy":
            return _npy(path, path.read_bytes())
        return _npz(path) if suffix == ".npz" else _torch(path)
    except OSError as error:
        raise _refused(path, str(error.strerror or error), "check its permissions") from None


def _refused(path: Path, why: str, todo: str = "save the array with numpy.savez(FILE, topk_idx=…)") -> EpctlError:
    return EpctlError(f"the gate trace {path} cannot be taken", why, todo)


def _csv(path: Path) -> Rows:
    """Numbers with commas (or blanks) between; a first line of names is passed over."""
    rows: list[tuple[int, ...]] = []
    text = path.read_text("utf-8", "replace")
    lines = (
        csv.reader(text.splitlines(), skipinitialspace=True)
        if "," in text
        else (line.split() for line in text.splitlines())
    )
    for number, cells in enumerate(lines, 1):
        filled = [cell for cell in cells if cell.strip()]
        if not filled:
            continue
        try:
            rows.append(tuple(int(cell) for cell in filled))
        except ValueError:
            if rows or number > 1:
                raise _refused(
                    path, f"line {number} holds {filled[0][:40]!r}; {_FORM}", "give integers alone"
                ) from None
    if not rows:
        raise _refused(path, f"it holds no row; {_FORM}", "give at least one token")
    return tuple(rows)


def _npz(path: Path) -> Rows:
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in archive.infolist()}
            name = _chosen(path, list(sizes))
            if sizes[name] > MAX_BYTES:
                raise _refused(path, f"its array is larger than {MAX_BYTES >> 20} MiB", "give a part of it")
            return _npy(path, archive.read(f"{name}.npy"))
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise _refused(path, f"it is no .npz file: {error}") from None


def _chosen(path: Path, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    found = [name for name in NAMES if name in names]
    if not found:
        raise _refused(path, f"it holds {', '.join(names) or 'no array'}, and none is called {' or '.join(NAMES)}")
    return found[0]


def _npy(path: Path, raw: bytes) -> Rows:
    """NumPy's own format, versions 1 to 3. Source: numpy.lib.format."""
    if raw[:6] != b"\x93NUMPY" or len(raw) < 12:
        raise _refused(path, "it is no .npy file")
    begin = 10 if raw[6] == 1 else 12
    end = begin + int.from_bytes(raw[8:begin], "little")
    try:
        head = ast.literal_eval(raw[begin:end].decode("latin-1"))
        order, kind, shape = head["descr"][:1], head["descr"][1:], tuple(head["shape"])
        fortran = bool(head["fortran_order"])
    except (ValueError, SyntaxError, KeyError, TypeError):
        raise _refused(path, "its head is damaged") from None
    if kind not in _TYPES:
        raise _refused(path, f"its values are of type {kind!r}; {_FORM}", "convert them with astype('int64')")
    if len(shape) != 2 or 0 in shape:
        raise _refused(path, f"its shape is {shape}; {_FORM}", "give an array of shape (tokens, top-k)")
    values = array(_TYPES[kind])
    if len(raw) - end != shape[0] * shape[1] * values.itemsize:
        raise _refused(path, f"it holds {len(raw) - end} bytes for the shape {shape}")
    values.frombytes(raw[end:])
    if order == (">" if sys.byteorder == "little" else "<"):
        values.byteswap()
    return _cut(values, *shape, fortran=fortran)


def _cut(values: array[int], tokens: int, topk: int, *, fortran: bool) -> Rows:
    if fortran:
        return tuple(tuple(values[token::tokens]) for token in range(tokens))
    return tuple(tuple(values[i : i + topk]) for i in range(0, tokens * topk, topk))


def _torch(path: Path) -> Rows:
    try:
        import torch
    except ImportError:
        todo = "install PyTorch with pip install 'epctl[gpu]', or save the trace as .npz or .csv"
        raise _refused(path, ".pt files are read by PyTorch, which is not installed here", todo) from None
    import pickle

    try:
        loaded = torch.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise _refused(path, f"PyTorch cannot load it: {str(error).splitlines()[0][:200]}") from None
    if isinstance(loaded, dict):
        loaded = loaded[_chosen(path, [str(name) for name in loaded])]
    return _tensor(path, loaded)


def _tensor(path: Path, loaded: Any) -> Rows:  # noqa: ANN401 - a tensor
    if not hasattr(loaded, "is_floating_point") or loaded.is_floating_point():
        raise _refused(path, f"it holds no tensor of integers; {_FORM}", "convert it with .to(torch.int64)")
    if loaded.dim() != 2 or 0 in tuple(loaded.shape):
        raise _refused(path, f"its shape is {tuple(loaded.shape)}; {_FORM}", "give a tensor of shape (tokens, top-k)")
    rows: Iterable[list[int]] = loaded.tolist()
    return tuple(tuple(row) for row in rows)
