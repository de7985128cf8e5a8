"""Which of the profiles in force belong to a library that is installed, and which are only planned for."""

from __future__ import annotations

from epctl.core.context import Context
from epctl.core.fact import Absent, known
from epctl.core.profile import Profile
from epctl.core.views import versions


def installed(context: Context, profile: Profile) -> str:
    """`deepinfer-ep 2.5.0` when a distribution of this profile is installed within its versions, '' otherwise.
    Raises Unreadable when the distributions could not be read."""
    from packaging.requirements import Requirement

    for text in profile.detect.distributions:
        wanted = Requirement(text)
        name = wanted.name.replace("_", "-").lower()
        version = context.distributions.get(name, "")
        if versions.parse(version) and wanted.specifier.contains(version, prereleases=True):
            return f"{name} {version}"
    return ""


def nccl(context: Context) -> str:
    """Version of the NCCL in use; '' when there is none. Raises Unreadable."""
    found = context.node.software.nccl_effective
    if isinstance(found, Absent) and found.absent == "not_found":  # looked for in every place that a loader would
        return ""
    return known(found, "version of the NCCL in use")


def titles(profiles: tuple[Profile, ...]) -> str:
    """Titles of profiles, for evidence."""
    return ", ".join(profile.title for profile in profiles)
