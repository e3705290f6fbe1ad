"""A record that is as long as what a run touched: its JSON, without ever being held whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

RecordT = TypeVar("RecordT", bound=Struct)
#: Of a list or of an object: the next of what is in it.
Pieces = Callable[[], Iterator[list[Any] | dict[str, Any]]]
_encode = msgspec.json.Encoder().encode


class Long(Struct, Generic[RecordT]):
    outline: RecordT  #: the record, nothing in its long fields
    fields: Mapping[str, Pieces]

    def encoded(self) -> Iterator[bytes]:
        """The same bytes as those of the whole record."""
        if not self.fields:
            yield _encode(self.outline)
            return
        config = type(self.outline).__struct_config__
        yield b'{"%b":%b' % (str(config.tag_field).encode(), _encode(config.tag))
        names = zip(
            self.outline.__struct_fields__, self.outline.__struct_encode_fields__, strict=True
        )
        for name, encoded in names:
            value = getattr(self.outline, name)
            yield b",%b:" % _encode(encoded)
            if name in self.fields:
                yield from _joined(_encode(value), self.fields[name]())
            else:
                yield _encode(value)
        yield b"}"

    def whole(self) -> RecordT:
        """For who has to look into it."""
        made: dict[str, Any] = {}
        for name, pieces in self.fields.items():
            made[name] = getattr(self.outline, name).copy()
            add = made[name].update if isinstance(made[name], dict) else made[name].extend
            for piece in pieces():
                add(piece)
        return msgspec.structs.replace(self.outline, **made)


def _joined(empty: bytes, pieces: Iterator[list[Any] | dict[str, Any]]) -> Iterator[bytes]:
    """`empty`: the two brackets."""
    yield empty[:1]
    comma = b""
    for piece in filter(None, pieces):
        yield comma + _encode(piece)[1:-1]
        comma = b","
    yield empty[1:]
