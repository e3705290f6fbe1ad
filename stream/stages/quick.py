"""Opens that succeeded, from the ring to their lines without becoming events on the way.

What comes out is what the long way would give. Whatever is not quite ordinary is left to that.
What opens of the same folder, or with the same flags, have in common is made once.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stream.evidence.surface import Surface
from stream.records.kernel import RawEvent, path_text
from stream.records.sightings import NAMES, OPEN_FIELDS
from stream.stages.calls import CREATE, TMPFILE, open_form
from stream.stages.noise import Judge, judge_of

_MOST_KNOWN = 50_000
_CREATES = CREATE | TMPFILE
_CREAT = 2  #: in the ring: the one open whose flags are not an argument
_encode = msgspec.json.Encoder().encode


class _Place(Struct):
    """A folder, with the slash behind it."""

    path: bytes
    quoted: bytes  #: as JSON has it, behind the opening quote
    judge: Judge
    reached: dict[str, int]


class _Form(Struct):
    """What the opens with the same flags have in common."""

    is_read: bool
    ways: int
    middle: bytes  #: of the line: between the path and the result
    end: bytes  #: behind the result


class QuickOpens:
    """`line` gives the line of the open at a place in the ring, or the rule by which it is left
    out, or None where the long way has to be gone."""

    def __init__(self, run_id: str, surface: Surface | None) -> None:
        self._run_id = run_id
        self._surface = surface
        self._places: dict[bytes, _Place] = {}
        self._forms: dict[tuple[int, int, int], _Form] = {}
        self._start = b'{"schema":"assay.runner.kernel_event.v0","run_id":%b,"seq":' % _encode(
            run_id
        )
        self.ts = 0  #: of the last line

    def line(self, chunk: bytes, at: int, seq: int) -> bytes | str | None:
        call, pid, ret, ts, flags, mode, size, walked, resolve = OPEN_FIELDS.unpack_from(chunk, at)
        start = at + NAMES
        middle = start + size
        walk = chunk[middle : middle + walked]
        cut = walk.find(b"\0")
        names = walk[cut:]
        place = self._places.get(names) or self._new_place(names)
        leaf = walk[:cut]
        given = chunk[start:middle]
        if ret < 0 or given != place.path + leaf or call == _CREAT or b"\\" in leaf:
            return None
        try:
            name = leaf.decode()
        except UnicodeDecodeError:
            return None
        key = (flags, mode & 0o7777 if flags & _CREATES else 0, resolve)
        form = self._forms.get(key) or self._new_form(key)
        if form.is_read:
            rule = place.judge(name)
            if rule is not None:
                return rule
        if self._surface is not None:
            place.reached[name] = place.reached.get(name, 0) | form.ways
        self.ts = ts
        return b'%b%d,"pid":%d,"event_type":1,"kind":"openat","value":"%b%b%b%d%b' % (
            self._start,
            seq,
            pid,
            place.quoted,
            _encode(name)[1:],
            form.middle,
            ret,
            form.end,
        )

    def _new_place(self, names: bytes) -> _Place:
        """Of names from the leaf to the root, the leaf's own cut off."""
        if len(self._places) >= _MOST_KNOWN:
            self._places.clear()
        parts = names.split(b"\0")[-2:0:-1]
        path = b"/".join((b"", *parts, b""))
        text = path_text(path)
        place = self._places[names] = _Place(
            path=path,
            quoted=_encode(text)[1:-1],
            judge=judge_of(text[:-1]),
            reached={} if self._surface is None else self._surface.folder(text),
        )
        return place

    def _new_form(self, key: tuple[int, int, int]) -> _Form:
        if len(self._forms) >= _MOST_KNOWN:
            self._forms.clear()
        flags, mode, resolve = key
        event = RawEvent(0, 0, 0, "openat", flags=flags, mode=mode, resolve=resolve)
        made = open_form(self._run_id, event)
        made.line.return_value, made.line.status = 0, "success"
        _, _, rest = _encode(made.line).partition(b'"value":null')
        middle, _, end = rest.partition(b'"return_value":0')
        form = self._forms[key] = _Form(
            is_read=made.is_read, ways=made.ways, middle=middle + b'"return_value":', end=end
        )
        return form
