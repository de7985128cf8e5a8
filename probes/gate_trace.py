"""Reads a trace of top-k indices: .csv, .npy and .npz with the standard library alone, .pt with PyTorch.

Of long traces every n-th row is taken, so that time and memory stay bounded.
"""

from __future__ import annotations

import ast
import csv
import io
import sys
import zipfile
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from epctl.core.errors import EpctlError

Rows = tuple[tuple[int, ...], ...]
SUFFIXES = (".npz", ".npy", ".pt", ".pth", ".csv")
MAX_BYTES = 256 << 20
"""A trace of a million tokens is 64 MB in int64; more says nothing that a part of it does not."""
NAMES = ("topk_idx", "topk_ids", "topk_indices", "indices", "arr_0")
"""Arrays that are taken from a file that holds several."""
MAX_ROWS = 200_000
"""Rows that are kept: the mean over them is exact to about 0.03 %."""
INDEX_NAMES = ("", "token", "tokens", "token_id", "token_idx", "idx", "index", "id", "row", "step", "unnamed: 0")
"""Headings of a first column that numbers the rows and names no expert."""
_TYPES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}
_FORM = "a trace is a table of integers: a row a token, its top-k expert indices, -1 where none is picked"


class GateTrace(NamedTuple):
    """A trace as far as it is kept."""

    rows: Rows
    num_rows: int
    """Rows of the file."""
    stride: int
    """Every so-many-th of them is kept."""
    index_column: str | None = None
    """Heading of a first column that was left out, because it numbers the rows."""

    @property
    def note(self) -> str:
        """What was not taken as it stands; '' where all was."""
        said = []
        if self.stride > 1:
            rows = f"{len(self.rows)} of its {self.num_rows} rows are looked at"
            said.append(f"{rows}, one in {self.stride}, evenly over the file")
        if self.index_column is not None:
            said.append(f"its first column ({self.index_column or 'without heading'}) numbers the rows and is left out")
        return "; ".join(said)


def is_trace(text: str) -> bool:
    """Whether --gate names a file and no gate."""
    return Path(text).suffix.lower() in SUFFIXES


def read_rows(path: Path) -> Rows:
    """Rows of top-k indices, as `read_trace` keeps them."""
    return read_trace(path).rows


def read_trace(path: Path) -> GateTrace:
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


def _csv(path: Path) -> GateTrace:
    """Numbers with commas (or blanks) between; a first line of names is passed over, and with it a column that counts the rows."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        commas = "," in file.read(65536)
        file.seek(0)
        cells = csv.reader(file, skipinitialspace=True) if commas else (line.split() for line in file)
        try:
            return _table(path, cells)
        except csv.Error as error:
            raise _refused(path, f"it is no table of integers: {error}; {_FORM}", "give integers alone") from None


def _table(path: Path, lines: Iterable[list[str]]) -> GateTrace:
    names: list[str] | None = None
    kept: list[tuple[int, ...]] = []
    count, stride = 0, 1
    for number, cells in enumerate(lines, 1):
        filled = [cell for cell in cells if cell.strip()]
        if not filled:
            continue
        try:
            row = tuple(int(cell) for cell in filled)
        except ValueError:
            if count or names is not None:
                why = f"line {number} holds {_no_integer(filled)[:40]!r}; {_FORM}"
                raise _refused(path, why, "give integers alone") from None
            names = [cell.strip() for cell in cells]
            continue
        if kept and len(row) != len(kept[0]):
            why = f"line {number} has {len(row)} entries, the first row {len(kept[0])}; {_FORM}"
            raise _refused(path, why, "give rows of equal length, filled up with -1")
        if count % stride == 0:
            kept.append(row)
        count += 1
        if len(kept) > MAX_ROWS:
            kept, stride = kept[::2], stride * 2
    if not kept:
        raise _refused(path, f"it holds no row; {_FORM}", "give at least one token")
    return _without_index(path, GateTrace(tuple(kept), count, stride), names)


def _no_integer(cells: list[str]) -> str:
    return next((cell.strip() for cell in cells if not cell.strip().lstrip("+-").isdigit()), cells[0])


def _without_index(path: Path, found: GateTrace, names: list[str] | None) -> GateTrace:
    """Without a first column that a heading calls an index."""
    if not names or names[0].strip().lower() not in INDEX_NAMES or len(names) != len(found.rows[0]):
        return found
    if len(names) == 1:
        raise _refused(path, f"its one column is {names[0]!r}; {_FORM}", "give the columns of the experts, too")
    return found._replace(rows=tuple(row[1:] for row in found.rows), index_column=names[0])


def _npz(path: Path) -> GateTrace:
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


def _npy(path: Path, raw: bytes) -> GateTrace:
    """NumPy's own format, versions 1 to 3. Source: numpy.lib.format."""
    if raw[:6] != b"\x93NUMPY" or len(raw) < 12:
        raise _refused(path, "it is no .npy file")
    begin = 10 if raw[6] == 1 else 12
    end = begin + int.from_bytes(raw[8:begin], "little")
    try:
        head = ast.literal_eval(raw[begin:end].decode("latin-1"))
        told, shape, fortran = head["descr"], tuple(head["shape"]), bool(head["fortran_order"])
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise _refused(path, "its head is damaged") from None
    if not isinstance(told, str):
        why = f"its rows are records ({str(told)[:60]}); {_FORM}"
        raise _refused(path, why, "save the integer columns alone, numpy.stack([…], axis=1)")
    order, kind = told[:1], told[1:]
    if kind not in _TYPES:
        raise _refused(path, f"its values are of type {told!r}; {_FORM}", "convert them with astype('int64')")
    if len(shape) != 2 or not all(type(size) is int and size > 0 for size in shape):
        raise _refused(path, f"its shape is {shape}; {_FORM}", "give an array of shape (tokens, top-k)")
    if len(raw) - end != shape[0] * shape[1] * array(_TYPES[kind]).itemsize:
        raise _refused(path, f"it holds {len(raw) - end} bytes for the shape {shape}")
    swapped = order == (">" if sys.byteorder == "little" else "<")
    return _cut(memoryview(raw)[end:], _TYPES[kind], *shape, fortran=fortran, swapped=swapped)


def _stride(tokens: int) -> int:
    return -(-tokens // MAX_ROWS)


def _cut(raw: memoryview, code: str, tokens: int, topk: int, *, fortran: bool, swapped: bool) -> GateTrace:
    """Every n-th row, read without a copy of the rest."""
    stride = _stride(tokens)
    return GateTrace(tuple(_picked(raw, code, tokens, topk, fortran, swapped, stride)), tokens, stride)


def _picked(
    raw: memoryview, code: str, tokens: int, topk: int, fortran: bool, swapped: bool, stride: int
) -> Iterator[tuple[int, ...]]:
    size = array(code).itemsize

    def values(part: memoryview) -> array[int]:
        found = array(code)
        found.frombytes(part)
        if swapped:
            found.byteswap()
        return found

    if fortran:
        columns = (values(raw[k * tokens * size : (k + 1) * tokens * size])[::stride] for k in range(topk))
        yield from zip(*columns, strict=True)
        return
    for token in range(0, tokens, stride):
        yield tuple(values(raw[token * topk * size : (token + 1) * topk * size]))


def _torch(path: Path) -> GateTrace:
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


def _tensor(path: Path, loaded: Any) -> GateTrace:  # noqa: ANN401 - a tensor
    if not hasattr(loaded, "is_floating_point") or loaded.is_floating_point():
        raise _refused(path, f"it holds no tensor of integers; {_FORM}", "convert it with .to(torch.int64)")
    if loaded.dim() != 2 or 0 in tuple(loaded.shape):
        raise _refused(path, f"its shape is {tuple(loaded.shape)}; {_FORM}", "give a tensor of shape (tokens, top-k)")
    tokens = int(loaded.shape[0])
    stride = _stride(tokens)
    rows: Iterable[list[int]] = (loaded[::stride] if stride > 1 else loaded).tolist()
    return GateTrace(tuple(tuple(row) for row in rows), tokens, stride)
