"""Which of the profiles in force belong to a library that is installed, and which are only planned for."""

from __future__ import annotations

from epctl.core.context import Context
from epctl.core.profile import Profile


def installed(context: Context, profile: Profile) -> str:
    """`deepinfer-ep 2.5.0` when a distribution of this profile is installed within its versions, '' otherwise.
    Raises Unreadable when the distributions could not be read."""
    from packaging.requirements import Requirement

    for text in profile.detect.distributions:
        wanted = Requirement(text)
        name = wanted.name.replace("_", "-").lower()
        version = context.distributions.get(name, "")
        if version and wanted.specifier.contains(version, prereleases=True):
            return f"{name} {version}"
    return ""


def titles(profiles: tuple[Profile, ...]) -> str:
    """Titles of profiles, for evidence."""
    return ", ".join(profile.title for profile in profiles)
