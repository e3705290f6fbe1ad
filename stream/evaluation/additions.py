"""The lines that a patch of git adds, in pieces of bounded length."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from msgspec import Struct

PIECE = 1 << 16  #: bytes of a line that are read at once

_HUNK = rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@"


class Addition(Struct):
    path: str  #: as the patch writes it
    line: int  #: in the new file
    text: str  #: a piece of the line
    goes_on: bool  #: the line has a further piece


def additions(patch: Path) -> Iterator[Addition]:
    """Counts the lines of every hunk: what begins with `+++` inside of one is content."""
    path, line, old, new = "", 0, 0, 0
    with patch.open("rb") as file:
        while piece := file.readline(PIECE):
            if old <= 0 and new <= 0:
                hunk = re.match(_HUNK, piece)
                if hunk:
                    old, line, new = (int(number or 1) for number in _numbers(hunk))
                elif piece.startswith(b"+++ "):
                    path = _path(piece)
                _skip(file, piece)
                continue
            mark = piece[:1]
            if mark == b"+":
                yield from _pieces(file, piece, path, line)
            else:
                _skip(file, piece)
            line += mark in b"+ \n"
            new -= mark in b"+ \n"
            old -= mark in b"- \n"


def _numbers(hunk: re.Match[bytes]) -> tuple[bytes | None, bytes, bytes | None]:
    return hunk[1], hunk[2], hunk[3]


def _path(line: bytes) -> str:
    name = line[4:].rstrip(b"\n").removesuffix(b"\t").strip(b'"').decode("utf-8", "replace")
    return name.removeprefix("b/")


def _pieces(file: BufferedReader, piece: bytes, path: str, line: int) -> Iterator[Addition]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    piece = piece[1:]
    while True:
        goes_on = bool(piece) and not piece.endswith(b"\n")
        yield Addition(path, line, decoder.decode(piece, not goes_on), goes_on)
        if not goes_on:
            return
        piece = file.readline(PIECE)


def _skip(file: BufferedReader, piece: bytes) -> None:
    while piece and not piece.endswith(b"\n"):
        piece = file.readline(PIECE)
