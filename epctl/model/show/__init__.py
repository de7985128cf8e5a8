"""Renderers of `epctl plan`: pure functions from a report (or the rows of a sweep) to text."""

from __future__ import annotations

FORMATS = ("text", "json", "csv", "markdown", "env")
