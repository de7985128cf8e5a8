"""What a check may look at: the snapshot, the profiles in force, and the limits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from msgspec import Struct

from epctl.core.fact import known
from epctl.core.profile import Profile
from epctl.core.snapshot import Snapshot


class Context(Struct, frozen=True, dict=True):
    """Input of every check. Views that several checks need are computed once, here or in `epctl.core.views`."""

    node: Snapshot
    profiles: tuple[Profile, ...] = ()
    num_nodes: int = 1
    """Nodes of the planned job; checks that concern traffic between nodes say so when it is 1."""

    @cached_property
    def env(self) -> dict[str, str]:
        """Environment variables, with NCCL's config files below them. Raises Unreadable when they were not read."""
        settings = {entry.name: entry.value for entry in known(self.node.env.variables, "environment variables")}
        conf = self.node.env.nccl_conf
        below = {} if not isinstance(conf, tuple) else {entry.name: entry.value for entry in conf}
        return {**below, **settings}

    @cached_property
    def distributions(self) -> dict[str, str]:
        """Installed Python distributions that matter: canonical name → version."""
        return {entry.name: entry.version for entry in known(self.node.software.distributions, "Python distributions")}

    def profile(self, id: str) -> Profile | None:  # noqa: A002
        """The profile `id` when it is in force."""
        return next((profile for profile in self.profiles if profile.id == id), None)

    def floors(self, key: str) -> Iterator[tuple[Profile, str]]:
        """(profile, floor) of every profile in force that sets a floor for `key`."""
        for profile in self.profiles:
            if key in profile.floors:
                yield profile, profile.floors[key]

    def wants(self, feature: str) -> tuple[Profile, ...]:
        """Profiles in force that ask for `feature` (see `Profile.requires`)."""
        return tuple(profile for profile in self.profiles if feature in profile.requires)
