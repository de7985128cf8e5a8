"""Imports deep_ep in a child of the examined interpreter, where it is installed. Standard library alone."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

IMPORT_S = 60.0


def main() -> None:
    """Prints {"error_line": …}: '' when it works."""
    json.dump({"error_line": attempt()}, sys.stdout)


def attempt(module: str = "deep_ep") -> Any:  # noqa: ANN401 - JSON
    """The last line of the import's error, '' without one."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError) as error:
        return {"error": "failed", "detail": f"{type(error).__name__}: {error}"}
    if spec is None:
        return {"error": "not_found", "detail": f"{module} is not installed"}
    argv = [sys.executable, "-W", "ignore", "-c", f"import {module}"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=IMPORT_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {"error": "timed_out", "detail": f"the import took longer than {IMPORT_S:g} s"}
    except OSError as error:
        return {"error": "failed", "detail": str(error)}
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return f"the interpreter was ended by signal {-done.returncode}"
    lines = [line.strip() for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else f"ended with code {done.returncode}"


if __name__ == "__main__":
    main()
