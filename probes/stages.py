"""Documents of the collectors of STAGED: lines of JSON that count although the collector hung or died later."""

from __future__ import annotations

from typing import Any

from epctl.core.fact import NOT_PROBED, Absent
from epctl.probes import documents


class Stages:
    """The lines of a collector of STAGED. A stage that is not among them is absent for the reason that the collector ended for."""

    def __init__(self, document: Any) -> None:  # noqa: ANN401 - JSON
        lines = documents.items(document, "stages", lambda line: line if isinstance(line, dict) else None)
        self.lines: tuple[dict[str, Any], ...] = () if isinstance(lines, Absent) else lines
        self.absent = lines if isinstance(lines, Absent) else _ending(document, self.lines)

    def every(self, name: str) -> tuple[dict[str, Any], ...]:
        """All lines of one stage."""
        return tuple(line for line in self.lines if line.get("stage") == name)

    def stage(self, name: str) -> Any:  # noqa: ANN401 - JSON
        """The line of one stage, or why there is none. The failure of a call stands in place of what it should have told."""
        found = next(iter(self.every(name)), None)
        if found is None:
            return self.absent
        if "failed" in found:
            call, code = documents.text_of(found["failed"]), documents.text_of(found.get("code"))
            failure = {"error": call, "detail": code}
            return {"code": found.get("code"), "version": failure, "devices": failure}
        return found


def _ending(document: Any, lines: tuple[dict[str, Any], ...]) -> Absent:  # noqa: ANN401 - JSON
    """Why there are no more stages."""
    ended, detail = documents.name_of(document, "ended"), documents.name_of(document, "detail")
    if not ended:
        return NOT_PROBED
    begun = [line["begin"] for line in lines if isinstance(line.get("begin"), str)]
    where = f"in the stage {documents.text_of(begun[-1])}: " if begun else ""
    reason = documents.absent_of({"error": ended, "detail": f"{where}{detail}"})
    return reason or NOT_PROBED
