"""The contract of a raw emission: what a probe cell left before a boundary object is made of it.

In its stdout stands the frame that helpers/emit-record writes under the harness: its words, so that
`emit` can check them with the catalog that it has loaded once.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from stream.records.boundary import Integral
from stream.records.control import BASE64, SANDBOX_MODE, FrozenRecord, NonNegative
from stream.records.modes import OutsideView

RAW_EMISSION = "stream.raw_emission.v1"
FRAME_START = b"\x1estream-emit.v1 "
FRAME_END = b"\x1f"
FILE_MOST = 1 << 20  #: bytes of a file that the helper sends along: far above what a record holds

Declared = Annotated[str, Meta(pattern=SANDBOX_MODE)]
Base64 = Annotated[bytes, Meta(extra_json_schema={"pattern": BASE64})]


class RawEmission(FrozenRecord, tag=RAW_EMISSION, kw_only=True, frozen=True):
    """One execution of a probe as the harness saw it, before a boundary object is made of it."""

    probe: str  #: Id of the probe.
    mode: str  #: Run mode of the cell.
    catalog: str  #: Key of the catalog that the cell is interpreted with.
    boundary: str  #: Key of the descriptor in force.
    #: Primary capability id that the script declares; null when it declares none.
    capability: str | None
    workspace_root: str | None  #: Absolute path of the workspace; null when there was none.
    sandbox_mode: Declared | None  #: Sandbox mode that the user declared; null when none was.
    #: Kernel name, release and machine as the harness sees them, in the form of `uname -srm`; an
    #: emission brings what the probe saw.
    os: str
    stdout: Base64  #: The captured bytes of stdout, in base64.
    stdout_bytes: NonNegative  #: How many bytes the probe wrote to stdout, captured or not.
    stderr: Base64  #: The first bytes of stderr, in base64.
    stderr_bytes: NonNegative  #: How many bytes the probe wrote to stderr, captured or not.
    exit_code: Integral | None  #: Exit code of the script; null when it did not exit by itself.
    #: Name of the signal that ended the script, for example SIGKILL; null when none did.
    signal: str | None
    #: Seconds that the script was allowed, when it took longer; null when it kept to its time.
    timed_out: Annotated[float, Meta(ge=0)] | None
    spawn_error: str | None  #: Why the script could not be started; null when it was.
    #: Processes that the script left behind and that were ended; empty when there were none.
    stragglers: list[str]
    #: Folders of the harness: the one that the script's TMPDIR lay in, and the helpers beside the
    #: script. Absent or empty: none.
    harness: tuple[str, ...] = ()
    #: What was seen of the cell from outside; absent when the probe was not run in a mode.
    outside: OutsideView | UnsetType = UNSET


decode_raw = msgspec.json.Decoder(RawEmission).decode
encode_raw = msgspec.json.Encoder().encode


class Word(Struct, frozen=True):
    """A word of emit-record's command line, with the file that it names, if it does."""

    text: bytes
    content: bytes | None = None
    unreadable: bool = False


class Frame(Struct, frozen=True):
    """One call of emit-record: its words, and the system that it saw."""

    os: str
    words: tuple[Word, ...]


class FrameError(ValueError):
    """A frame is damaged or cut."""


def split_frames(stdout: bytes) -> tuple[list[Frame], bytes]:
    """Return the frames of emit-record in what a probe wrote, and everything that is not one."""
    frames: list[Frame] = []
    rest = bytearray()
    position = 0
    while True:
        start = stdout.find(FRAME_START, position)
        if start < 0:
            rest += stdout[position:]
            return frames, bytes(rest)
        rest += stdout[position:start]
        frame, position = _parse_frame(stdout, start + len(FRAME_START))
        frames.append(frame)


def _parse_frame(data: bytes, position: int) -> tuple[Frame, int]:
    """Read a frame of emit-record at a position: (frame, where it ends). Raise FrameError."""
    seen_os = ""
    words: list[Word] = []
    while data[position : position + 1] != FRAME_END:
        colon = data.find(b":", position, position + 12)
        digits = data[position:colon] if colon > 0 else b""
        if not digits.isdigit():
            raise FrameError(f"the frame is damaged or cut at byte {position}")
        end = colon + 1 + int(digits)
        if data[end : end + 1] != b",":
            raise FrameError(f"the frame is damaged or cut at byte {end}")
        kind, value = data[colon + 1 : colon + 2], data[colon + 2 : end]
        position = end + 1
        if kind == b"o":
            seen_os = value.decode(errors="replace")
        elif kind == b"w":
            words.append(Word(value))
        elif kind in (b"f", b"x") and words:
            words[-1] = Word(words[-1].text, value if kind == b"f" else None, kind == b"x")
        else:
            raise FrameError(f"the frame has an unknown part at byte {colon + 1}")
    return Frame(seen_os, tuple(words)), position + 1
