"""A headless Chromium without a network, driven through a pipe by the DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 120.0  #: seconds; a limit that only a bug reaches
FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--force-color-profile=srgb", "--disable-dev-shm-usage"),
    "--enable-automation",
)
#: A key: its code, and its number on Windows, by which Chromium knows what it does.
KEYS: Mapping[str, tuple[str, int]] = {
    "Enter": ("Enter", 13),
    "Escape": ("Escape", 27),
    "Tab": ("Tab", 9),
    "End": ("End", 35),
    "Home": ("Home", 36),
    "ArrowLeft": ("ArrowLeft", 37),
    "ArrowUp": ("ArrowUp", 38),
    "ArrowRight": ("ArrowRight", 39),
    "ArrowDown": ("ArrowDown", 40),
}


def missing_part() -> str | None:
    """Say what is missing to start a browser here."""
    if _chromium() is None:
        return "chromium"
    done = subprocess.run([*_alone(), "true"], capture_output=True, check=False)
    return None if done.returncode == 0 else "a network namespace"


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def _alone() -> tuple[str, str]:
    """The words before a command that keep it off every network."""
    return ("unshare", "-n" if os.geteuid() == 0 else "-rn")


class Page:
    """A tab of its own."""

    def __init__(self, send: int, receive: int) -> None:
        self.events: list[dict[str, Any]] = []  #: whatever the browser reported
        self._send = send
        self._receive = receive
        self._held = b""
        self._next = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._send, data) :]
        while True:
            answer = self._read_message()
            if answer.get("id") == self._next:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read_message(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._receive], [], [], deadline - time.monotonic())
            assert ready, "the browser does not answer"
            block = os.read(self._receive, 1 << 20)
            assert block, "the browser has ended"
            self._held += block
        text, _, self._held = self._held.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def wait_for(self, method: str) -> None:
        """Wait for an event that comes after the last `forget`."""
        while not self.events_of(method):
            self._read_message()

    def events_of(self, *methods: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event["method"] in methods]

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """Evaluate an expression, and wait for its promise if it is one."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, *keys: str, modifiers: int = 0) -> None:
        """Press keys, one after the other."""
        for key in keys:
            code, number = KEYS[key]
            what = {"key": key, "code": code, "windowsVirtualKeyCode": number}
            text = {"text": "\r"} if key == "Enter" else {}
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, modifiers=modifiers, **what, **text)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def emulate(self, *, scheme: str = "light", media: str = "") -> None:
        """Let the page believe in a colour scheme and a medium."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@contextmanager
def open_browser(folder: Path) -> Iterator[Page]:
    """Start a browser with a profile of its own, in a network namespace of its own."""
    program = _chromium()
    assert program is not None
    to_browser, send = os.pipe()
    receive, from_browser = os.pipe()
    words = [
        *_alone(),
        *("bash", "-c", 'exec "${@:3}" 3<&"$1" 4>&"$2"', "bash", str(to_browser)),
        *(str(from_browser), program, *FLAGS, f"--user-data-dir={folder / 'profile'}"),
        "--no-sandbox",  # root has no other choice, and a namespace has no second one inside
        "about:blank",
    ]
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "HOME": str(folder)},
            pass_fds=(to_browser, from_browser),
            start_new_session=True,
        )
    os.close(to_browser)
    os.close(from_browser)
    try:
        page = Page(send, receive)
        yield page
    finally:
        os.close(send)  # it ends when nobody can drive it any more
        os.close(receive)
        process.wait(PATIENCE)
