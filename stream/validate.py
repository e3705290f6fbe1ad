"""The composition behind `stream validate`: streams of lines, and whole documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from anyio.abc import ObjectSendStream
from msgspec import Struct

from stream.codec import DECODE_ERRORS, BrokenDocument, Lines
from stream.document import LARGEST, parse_document, parted
from stream.errors import InputError, os_reason
from stream.pattern import Boundaries
from stream.pipeline import Batch, Chain, Pipeline, Sink
from stream.sources.ndjson import STDIN, NdjsonSource
from stream.stages.validate import Validate


class DocumentSource(Struct):
    """One JSON value that spans lines, as the one line that it would be."""

    name: str

    async def run(self, out: ObjectSendStream[Batch[Any]], /) -> None:
        try:
            data = Path(self.name).read_bytes()
        except OSError as error:
            raise InputError(f"{self.name}: {os_reason(error)}") from None
        try:
            parse_document(data)
            # Only white space is taken out: numbers stay as they are written.
            line = msgspec.json.format(data, indent=-1)
        except (*DECODE_ERRORS, ValueError) as error:
            if any(map(_is_record, data.splitlines()[1:])):  # a stream whose first line is bad
                await NdjsonSource(self.name).run(out)
                return
            line = BrokenDocument.of(data, *parted(str(error)))
        await out.send(Lines([line], self.name, 1, 0))


def _is_record(line: bytes) -> bool:
    """A whole object on a line of its own, not indented: no document is written like that."""
    if not line.startswith(b"{"):
        return False
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (*DECODE_ERRORS, ValueError):
        return False


async def run_validate(
    names: Sequence[str], boundaries: Boundaries, *sinks: Sink[Any], as_filter: bool
) -> Validate:
    """One input after the other, in the order given. The stage that it returns has the books."""
    stage = Validate(boundaries, is_last=not as_filter)
    sources = [DocumentSource(name) if is_document(name) else NdjsonSource(name) for name in names]
    await Pipeline[Any]((Chain(sources),)).through(lambda: stage).into(*sinks)
    return stage


def is_document(name: str) -> bool:
    """Whether a file is one JSON value over several lines, and not a stream of lines.

    Only the first line is looked at: nothing but an opening bracket, or the beginning of
    a value in a file that is called .json.
    """
    path = Path(name)
    try:
        if name == STDIN or not path.is_file():
            return False
        with path.open("rb") as file:
            first = file.readline(LARGEST).strip()
            small = path.stat().st_size <= LARGEST
    except OSError as error:
        raise InputError(f"{name}: {os_reason(error)}") from None
    if first in (b"{", b"["):
        return small
    if path.suffix != ".json" or not small:
        return False
    try:
        msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return False
