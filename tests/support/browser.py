"""A headless Chromium, driven by the DevTools protocol over a pipe: what a user would see, click and type."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # as root, as in CI; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--window-size=1200,900",
)


def find_chromium() -> str | None:
    """The program, if there is one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Tab:
    """A page, and what it has said and asked for."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._target = browser.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = browser.send("Target.attachToTarget", {"targetId": self._target, "flatten": True})
        self._session = attached["sessionId"]
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.loaded: set[str] = set()
        browser.tabs[self._session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Page.setLifecycleEventsEnabled", {"enabled": True})

    def send(self, method: str, parameters: dict[str, Any] | None = None) -> Any:
        return self._browser.send(method, parameters or {}, self._session)

    def close(self) -> None:
        """Close it: pages in the background take time, too."""
        self._browser.send("Target.closeTarget", {"targetId": self._target})

    def open(self, path: Path, *, dark: bool = False, script: bool = True) -> Tab:
        """Open a file, and wait until it is loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.send("Emulation.setScriptExecutionDisabled", {"value": not script})
        loader = self.send("Page.navigate", {"url": path.resolve().as_uri()})["loaderId"]
        self._browser.wait(lambda: loader in self.loaded)
        return self

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click into the middle of the first element that fits, with the mouse."""
        # Twice: what comes into view gets its height then.
        where = self.run(
            f"(async () => {{ const found = document.querySelector({json.dumps(selector)});"
            "for (let n = 0; n < 2; n++) {"
            "found.scrollIntoView({block: 'center'});"
            "await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); }"
            "const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            event = {"type": kind, "x": where[0], "y": where[1], "button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", event)

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        for letter in text:
            self.send("Input.dispatchKeyEvent", {"type": "char", "text": letter})

    def press(self, key: str) -> None:
        """Press a key that has a name."""
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13, "Backspace": 8, "Space": 32}[key]
            text = {"Space": " ", "Enter": "\r"}.get(key)
            event = {"type": kind, "key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
            self.send("Input.dispatchKeyEvent", event | ({"text": text} if text and kind == "keyDown" else {}))

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write the visible page as PNG."""
        picture = self.send("Page.captureScreenshot", {"captureBeyondViewport": whole})["data"]
        path.write_bytes(base64.b64decode(picture))

    def hear(self, message: dict[str, Any]) -> None:
        """Note what the page complains of and asks for."""
        method, parameters = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Page.lifecycleEvent" and parameters["name"] == "load":
            self.loaded.add(parameters["loaderId"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


class Browser:
    """The process and its pipe. Made by `chromium`."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out = into, out
        self._buffer = b""
        self._number = 0
        self.tabs: dict[str, Tab] = {}

    def send(self, method: str, parameters: dict[str, Any], session: str = "") -> Any:
        """Send a command, and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        data = json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0"
        while data:
            data = data[os.write(self._into, data) :]
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def wait(self, happened: Callable[[], bool]) -> None:
        """Wait until a tab has heard of something."""
        while not happened():
            self._receive()

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._out, 1 << 20)
            assert data, "Chromium has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            tab = self.tabs.get(message.get("sessionId", ""))
            if tab is not None:
                tab.hear(message)
        return message


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A running browser with a profile of its own."""
    program = find_chromium()
    assert program is not None
    child_in, into = os.pipe()
    out, child_out = os.pipe()
    # DevTools reads descriptor 3 and writes to 4.
    shell = f'exec 3<&{child_in} 4>&{child_out}; exec "$@"'
    command = ["bash", "-c", shell, "chromium", program, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, pass_fds=(child_in, child_out), stdin=-3, stdout=-3, stderr=-3)
    os.close(child_in)
    os.close(child_out)
    try:
        yield Browser(into, out)
    finally:
        process.kill()
        process.wait()
        os.close(into)
        os.close(out)
