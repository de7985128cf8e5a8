"""Renderers: pure functions from a report to text, one per format."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from epctl.core.doctor import Report


class View(Struct, frozen=True):
    """How a report is looked at. `terminal`: it goes to one, so colours and its width are welcome. `verbose`: also what passed,
    with its evidence, and why checks were skipped."""

    terminal: bool = False
    verbose: bool = False


Renderer: TypeAlias = "Callable[[Report, View], str]"
FORMATS: dict[str, str] = {
    "text": "epctl.core.render.text:render",
    "json": "epctl.core.render.data:json",
    "junit": "epctl.core.render.data:junit",
    "prometheus": "epctl.core.render.data:prometheus",
    "nagios": "epctl.core.render.data:nagios",
    "markdown": "epctl.core.render.markdown:render",
}
"""Format of a doctor's report → module and function; imported when asked for."""


def renderer(name: str) -> Renderer:
    """The function that renders a report in the format `name` (a key of FORMATS)."""
    module, function = FORMATS[name].split(":")
    found: Renderer = getattr(import_module(module), function)
    return found
