"""The store at the meeting point: PyTorch's TCPStore, opened so that it says what is wrong in words and keeps quiet otherwise."""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import time
import warnings
from datetime import timedelta
from typing import Any

from epctl.core.errors import EpctlError
from epctl.core.placement import LOOPBACK, Placement

BACKLOG = 1024
_RETRY_S = (0.02, 0.5)
_OP_LIMIT_S = 60.0
"""Longest answer of the store to one request that does not wait for anybody."""


def tcp_store() -> Any:  # noqa: ANN401 - a class of PyTorch
    """The class. Raises EpctlError without PyTorch. Its C++ side prints a warning and a backtrace on every retry and on each peer that
    ends, which are told here in one line: its log is quiet unless TORCH_CPP_LOG_LEVEL is set."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
            from torch.distributed import TCPStore
    except ImportError as error:
        raise _no_torch(str(error)) from None
    return TCPStore


def need_torch() -> None:
    """Raises EpctlError where PyTorch is not installed, without importing it."""
    if importlib.util.find_spec("torch") is None:
        raise _no_torch("there is no package torch")


def _no_torch(why: str) -> EpctlError:
    return EpctlError(
        "PyTorch is missing",
        f"ranks meet through torch.distributed ({why})",
        "pip install 'epctl[gpu]', or install PyTorch 2.10 or newer",
        exit_code=4,
    )


def listener(address: str, port: int) -> socket.socket:
    """A socket that listens at the address, or at all addresses where it is not one of this machine (a service name of Kubernetes,
    a translated address). Port 0 takes a free one. Raises OSError."""
    last: OSError | None = None
    for family, kind, protocol, _, where in _resolved(address, port):
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                found.bind(where)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                found.bind(("", port) if family == socket.AF_INET else ("::", port))
            found.listen(BACKLOG)
        except OSError as error:
            found.close()
            last = error
            if error.errno == errno.EADDRINUSE:
                break  # another family would split the meeting point in two
            continue
        return found
    raise last or OSError(errno.EADDRNOTAVAIL, "it has no address")


def _resolved(address: str, port: int) -> list[Any]:
    """IPv4 first, as clients take the first that answers."""
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return sorted(found, key=lambda entry: entry[0] != socket.AF_INET)


def keep(place: Placement, listen_fd: int | None = None) -> Any:  # noqa: ANN401 - a TCPStore
    """The store of rank 0, which serves the others. `listen_fd`: a socket that listens already. Raises EpctlError when the port is
    taken."""
    make = tcp_store()
    if listen_fd is None:
        try:
            found = listener(place.address, place.port)
        except OSError as error:
            raise _taken(place, error) from None
        listen_fd = found.detach()
    with socket.socket(fileno=os.dup(listen_fd)) as view:
        address, port = view.getsockname()[:2]
    return make(
        LOOPBACK if address in {"0.0.0.0", "::"} else address,  # noqa: S104 - a comparison
        port,
        None,
        is_master=True,
        timeout=timedelta(seconds=_OP_LIMIT_S),
        wait_for_workers=False,
        master_listen_fd=listen_fd,
    )


def visit(place: Placement, limit_s: float) -> Any:  # noqa: ANN401 - a TCPStore
    """The store that rank 0, or the launcher, keeps. Raises EpctlError when there is none within `limit_s`."""
    make = tcp_store()
    deadline = time.monotonic() + limit_s
    pause_s = _RETRY_S[0]
    while True:
        try:
            # TCPStore's own retries take seconds and cannot tell a wrong name from a rank 0 that is not there yet.
            socket.create_connection((place.address, place.port), timeout=max(0.1, deadline - time.monotonic())).close()
            return make(
                place.address,
                place.port,
                None,
                is_master=False,
                timeout=timedelta(seconds=_OP_LIMIT_S),
                wait_for_workers=False,
            )
        except (OSError, RuntimeError) as error:
            if time.monotonic() + pause_s >= deadline:
                raise _nobody(place, limit_s, error) from None
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _RETRY_S[1])


def _taken(place: Placement, error: OSError) -> EpctlError:
    taken = error.errno == errno.EADDRINUSE
    return EpctlError(
        f"rank 0 cannot keep the meeting point at {place.address}:{place.port}",
        f"{error.strerror or error}{': another job is there, or this one has two ranks 0' if taken else ''}",
        "set MASTER_PORT to a free port" if taken else "set MASTER_ADDR to an address of the node of rank 0",
        exit_code=4,
    )


def _nobody(place: Placement, limit_s: float, error: Exception) -> EpctlError:
    keeper = "torchrun" if place.hosted else "rank 0"
    why = str(getattr(error, "strerror", None) or error).splitlines()
    return EpctlError(
        f"rank {place.rank} found no meeting point at {place.address}:{place.port} within {limit_s:g} s",
        f"{keeper} keeps it, and has not come up there ({why[0] if why else type(error).__name__})",
        "check that rank 0 was started, and that MASTER_ADDR and MASTER_PORT are the same on all nodes and not behind a firewall",
        exit_code=4,
    )
