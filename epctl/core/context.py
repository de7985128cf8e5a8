"""What a check may look at: the snapshot, the profiles in force, and the limits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from msgspec import Struct

from epctl.core.distributions import deepep
from epctl.core.fact import Unreadable, known
from epctl.core.profile import Profile, resolved
from epctl.core.snapshot import Snapshot


class Context(Struct, frozen=True, dict=True):
    """Input of every check. Views that several checks need are computed once, here or in `epctl.core.views`."""

    node: Snapshot
    chosen: tuple[Profile, ...] = ()
    """The profiles as their files have them; `profiles` are those in force here."""
    num_nodes: int = 1
    """Nodes of the planned job; checks that concern traffic between nodes say so when it is 1."""
    asked: bool = False
    """The user named the profiles: then they are judged as if their libraries were installed, since they are going to be."""

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """Profiles in force, with the demands that this node's settings bring with them."""
        try:
            settings = self.env
        except Unreadable:
            settings = {}
        return resolved(self.chosen, settings)

    @cached_property
    def env(self) -> dict[str, str]:
        """Environment variables, with NCCL's config files below them. Raises Unreadable when they were not read."""
        settings = {entry.name: entry.value for entry in known(self.node.env.variables, "environment variables")}
        conf = self.node.env.nccl_conf
        below = {} if not isinstance(conf, tuple) else {entry.name: entry.value for entry in conf}
        return {**below, **settings}

    @cached_property
    def distributions(self) -> dict[str, str]:
        """Installed Python distributions that matter: canonical name → version. Builds of DeepEP that have another name, or no
        metadata, stand under deep-ep or deepinfer-ep with the release they are of."""
        listed = {
            entry.name: entry.version for entry in known(self.node.software.distributions, "Python distributions")
        }
        return {**{name: release for name, (release, _) in deepep(self.node).items()}, **listed}

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
