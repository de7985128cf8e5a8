"""Text from outside, made fit to be shown: nothing of a tool's output may steer a terminal, a log or an XML reader."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2028\u2029\u2060-\u206f\ufeff\ufffe\uffff\ud800-\udfff"
    r"\U000e0000-\U000e007f]"
)


def plain(text: str) -> str:
    """One line: line breaks and tabs become blanks, other control, direction and invisible characters `?`."""
    return _CONTROL.sub(lambda found: " " if found.group(0) in "\n\t\r" else "?", text)
