"""Headless Chromium, driven by the DevTools protocol over a pipe (https://chromedevtools.github.io/devtools-protocol/)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *("--disable-component-update", "--disable-sync", "--remote-debugging-pipe", "--hide-scrollbars"),
)
PATIENCE_S = 20.0
KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


def chromium() -> str | None:
    """The browser's path."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page. `requests`: addresses that were asked for; `complaints`: errors of scripts and the console."""

    def __init__(self, path: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="epctl-chromium-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        os.set_blocking(self._in, False)
        # The protocol's pipes are file descriptors 3 and 4 of the browser.
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = ["/bin/bash", "-c", shell, path, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._left = b""
        self._number = 0
        self._session = ""
        self._loaded = False
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._attach()

    def _attach(self) -> None:
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401 - any method's
        """Calls a method and waits for its answer. Raises AssertionError for an error or silence."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while True:
            answer = self._message(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self._event(answer)

    def _message(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has ended"
            self._left += piece
        message, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(message))

    def _event(self, event: dict[str, Any]) -> None:
        method, found = event.get("method", ""), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            self.complaints.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(found["entry"]["text"]))
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(found["args"]))

    def open(self, path: Path) -> None:
        """Loads a file and waits until it has loaded."""
        self._loaded = False
        self.requests.clear()
        self.complaints.clear()
        self.send("Page.navigate", url=path.as_uri())
        end = time.monotonic() + PATIENCE_S
        while not self._loaded:
            self._event(self._message(end))
        self.run("0")

    def run(self, script: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The value of an expression of JavaScript. Raises AssertionError where it throws."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Presses keys one after another: Tab, Enter, ArrowRight, Escape …"""
        for key in keys:
            told: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            text = {"text": "\r"} if key == "Enter" else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", **told, **text)
            self.send("Input.dispatchKeyEvent", type="keyUp", **told)

    def move(self, x: float, y: float) -> None:
        """Moves the mouse."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Clicks with the left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def scheme(self, name: str) -> None:
        """light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path: Path) -> None:
        """A screenshot as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """Ends the browser that was started here."""
        os.close(self._out)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)
