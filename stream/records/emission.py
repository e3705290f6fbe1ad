"""What a probe cell left, before it is a boundary object; and the frame inside it.

The frame is what helpers/emit-record writes under the harness: its words, so that the
`emit` stage can check them with the catalog that it has loaded once.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from stream.records.boundary import Integral
from stream.records.control import NonNegative
from stream.records.forms import SANDBOX_MODE

RAW_EMISSION = "stream.raw_emission.v1"
FRAME_START = b"\x1estream-emit.v1 "
FRAME_END = b"\x1f"
FILE_MOST = 1 << 20  #: bytes of a file that the helper sends along: far above what a record holds

Declared = Annotated[str, Meta(pattern=SANDBOX_MODE)]


class RawEmission(
    Struct,
    tag_field="schema",
    tag=RAW_EMISSION,
    forbid_unknown_fields=True,
    kw_only=True,
    frozen=True,
):
    """One cell of the matrix: how the probe ended and what it wrote. Bytes are base64."""

    probe: str
    mode: str
    catalog: str  #: key of the one that the cell is interpreted with
    boundary: str  #: key of the descriptor
    capability: str | None  #: the primary id that the script declares, where it can be read
    workspace_root: str | None
    sandbox_mode: Declared | None
    os: str  #: of the harness; a frame carries the one seen inside the sandbox
    stdout: bytes
    stdout_bytes: NonNegative
    stderr: bytes
    stderr_bytes: NonNegative
    exit_code: Integral | None
    signal: str | None
    timed_out: Annotated[float, Meta(ge=0)] | None  #: the seconds that it was allowed
    spawn_error: str | None
    stragglers: list[str]
    harness: tuple[
        str, ...
    ] = ()  #: folders of ours: what its TMPDIR lies in, the helpers beside it


decode_raw = msgspec.json.Decoder(RawEmission).decode
encode_raw = msgspec.json.Encoder().encode


class Word(Struct, frozen=True):
    """A word of emit-record's command line, with the file that it names, if it does."""

    text: bytes
    content: bytes | None = None
    unreadable: bool = False


class Frame(Struct, frozen=True):
    os: str
    words: tuple[Word, ...]


class FrameError(ValueError):
    pass


def split_frames(stdout: bytes) -> tuple[list[Frame], bytes]:
    """The frames in what a probe wrote, and everything that is not one."""
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
