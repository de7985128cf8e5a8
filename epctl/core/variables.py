"""Variables of launchers: read one by one with errors that name them, and what can be checked within one process. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping

from epctl.core.errors import EpctlError
from epctl.core.placement import UNKNOWN, Job, Placement

Env = Mapping[str, str]

MAX_SIZE = 1 << 20
_NUMBER = re.compile(r"\d{1,10}", re.ASCII)
_DERIVED_PORTS = (15000, 15000)
"""First, and how many: below Linux's ephemeral ports (32768 up) and Kubernetes' node ports (30000 up)."""


def given(env: Env, names: Iterable[str]) -> str:
    """`RANK=3, WORLD_SIZE=8`: those of the names that are set."""
    return ", ".join(f"{name}={env[name]}" for name in names if name in env)


def half(whose: str, env: Env, have: Iterable[str], missing: Iterable[str]) -> EpctlError:
    """The error for an incomplete set of variables."""
    lacking = ", ".join(missing)
    return EpctlError(
        f"half of {whose} variables are set: {given(env, have)}, but not {lacking}",
        "with them missing it cannot be known which ranks the job has",
        f"set {lacking} too, or unset the others",
    )


def number(env: Env, name: str, least: int = 0) -> int:
    """The variable as a number. Raises EpctlError that names it."""
    text = env[name]
    if _NUMBER.fullmatch(text) is None or not least <= int(text) <= MAX_SIZE:
        raise EpctlError(
            f"{name}={text} is no number from {least} to {MAX_SIZE}",
            "a launcher, or a script around it, set it so",
            f"correct or unset {name}",
        )
    return int(text)


def port(env: Env, name: str = "MASTER_PORT") -> int:
    """The variable as a TCP port. Raises EpctlError that names it."""
    text = env[name]
    if _NUMBER.fullmatch(text) is None or not 1 <= int(text) <= 65535:
        raise EpctlError(f"{name}={text} is no port", "a port is a number from 1 to 65535", f"correct or unset {name}")
    return int(text)


def all_of(whose: str, env: Env, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in env]
    if missing:
        raise half(whose, env, names, missing)


def index_of(env: Env, index_name: str, size_name: str) -> tuple[int, int]:
    index, size = number(env, index_name), number(env, size_name, 1)
    if index >= size:
        raise EpctlError(
            f"{given(env, (index_name, size_name))} contradict each other",
            f"{index_name} counts from 0 to {size_name} - 1 = {size - 1}",
            "correct the one that is wrong, or unset both",
        )
    return index, size


def job_of(place: Placement, env: Env, names: tuple[str, ...]) -> Job:
    """The job of a rank, after what can be checked within one process."""
    why = ""
    if place.local_rank >= place.local_world_size:
        why = f"local rank {place.local_rank} of {place.local_world_size} ranks on this node"
    elif place.local_world_size > place.world_size:
        why = f"{place.local_world_size} ranks on this node, of {place.world_size} in all"
    elif place.local_rank > place.rank or place.world_size - place.rank < place.local_world_size - place.local_rank:
        why = f"local rank {place.local_rank} of {place.local_world_size} cannot be rank {place.rank} of {place.world_size}"
    elif place.num_nodes != UNKNOWN and not place.node_idx < place.num_nodes <= place.world_size:
        why = f"node {place.node_idx} of {place.num_nodes} with {place.world_size} ranks"
    elif place.num_nodes == 1 and place.local_world_size != place.world_size:
        why = f"one node, but {place.local_world_size} of {place.world_size} ranks are on it"
    elif place.num_nodes not in {1, UNKNOWN} and place.local_world_size > place.world_size - place.num_nodes + 1:
        why = f"{place.local_world_size} of {place.world_size} ranks are on this node, too few are left for {place.num_nodes - 1} others"
    if why:
        raise EpctlError(
            f"{place.origin}'s variables contradict each other: {given(env, names)}",
            why,
            "correct or unset those that are wrong",
        )
    reachable(place.address, 1 if place.local_world_size == place.world_size else 2, env)
    return Job(place.origin, place.address, place.port, place.node_idx, place.num_nodes, place, job_id=place.job_id)


def reachable(address: str, num_nodes: int, env: Env) -> None:
    """Ranks of several nodes cannot meet at each one's own loopback: that is how a job splits."""
    if num_nodes > 1 and (address in {"localhost", "::1"} or address.startswith("127.")):
        raise EpctlError(
            f"{given(env, ('MASTER_ADDR',)) or 'the meeting point'} is each node's own loopback, but the job has several nodes",
            "every node would wait for the others at itself",
            "set MASTER_ADDR to the name or address of the node of rank 0",
        )


def derived_port(job_id: str) -> int:
    """A port that all ranks of a job compute, and that two jobs on one machine hardly share."""
    first, count = _DERIVED_PORTS
    return first + zlib.crc32(job_id.encode("utf-8", "replace")) % count
