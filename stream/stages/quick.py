"""Opens, from the ring to their lines without becoming events on the way.

What comes out is what the long way would give. Whatever is not quite ordinary is left to that.
What opens of the same folder, with the same flags and the same end, have in common is made once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from stream.evidence.surface import Surface
from stream.records.kernel import BACKSLASH, KernelDetail, RawEvent, path_text
from stream.records.sightings import NAMES, NO_RESULT, OPEN_FIELDS, OPENS, Sightings
from stream.stages.calls import CREATE, CUT, ENOENT, ENOTDIR, joined, open_form
from stream.stages.noise import Judge, judge_of

_MOST_KNOWN = 100_000  #: folders, and ways in which something in them was opened
_FIRST_ERROR = 4095  #: what lies below is no result of a call, or of one that starts again
_CALL, _SHARED = 0xFF, 1024 << 16  #: of how a record begins: the call; that it has a mark
_FLAGS = 0xFFFFFFFF  #: of how it was opened; the rest is the mode
_WRITES = 3 | CREATE | CUT  #: of the flags: what a surface tells from a read
_DOTS = (b"", b".", b"..")
#: Their names may lead elsewhere, which a text does not show.
_VIEWS = ("/proc/", "/dev/")
_encode = msgspec.json.Encoder().encode
_fields = OPEN_FIELDS.unpack_from


#: Opens in the same folder, with the same flags, that ended the same way: their line, with room
#: for its number, its process, the name and the result; the names that were seen and need no second
#: look, of all that the surface holds alike; what judges the others, and whether that holds here.
_Ended: TypeAlias = tuple[bytes, set[bytes], Judge | None, bool]


class _Place(Struct):
    """A folder, with the slash behind it."""

    path: bytes
    text: str
    judge: Judge
    ended: dict[int, _Ended]


class QuickOpens:
    """Of a batch from the ring, one run of opens after the other; between them somebody else has
    to go the long way. `drop` is told by which rule an open is left out."""

    def __init__(
        self,
        run_id: str,
        surface: Surface,
        detail_line: Callable[[bytes], bytes],
        drop: Callable[[str], None],
    ) -> None:
        self.details = 0  #: lines of them
        self._run_id = run_id
        self._surface = surface
        self._detail_line = detail_line
        self._drop = drop
        self._known = 0
        #: by the names from the leaf to the root, the leaf's own cut off
        self._reached: dict[bytes, _Place] = {}
        #: by where a path starts from, and then by what stands before its last name
        self._missed: dict[bytes, dict[bytes, _Place | None]] = {}
        self._details = [b""] * len(OPENS)
        for number, call in enumerate(OPENS):
            detail = KernelDetail(run_id=run_id, seq=0, pid=0, call=call, path="")
            line = _encode(detail).replace(b'"seq":0,"pid":0', b'"seq":%d,"pid":%d', 1)
            self._details[number] = line.replace(b'"path":""', b'"path":%b', 1)

    def feed(
        self, batch: Sightings, first: int, seq: int, out: list[Any], mark: Callable[[int], None]
    ) -> tuple[int, int]:
        """Puts the lines of the opens from the `first` item on into `out`, and tells their times,
        as far as the short way goes: to which item, and the next line's number."""
        chunk, reached, fields = batch.chunk, self._reached, _fields
        offset = first - seq  # from the next line's number to the place in the batch
        for at in islice(batch.items, first, None):
            if type(at) is not int:
                break
            kind, pid, ret, ts, opened, size, walked, based, last, resolve = fields(chunk, at)
            start = at + NAMES
            middle = start + size
            given = b""
            key = opened
            place: _Place | None
            if ret >= 0:
                if not walked or based:
                    break
                cut = middle + last
                names = chunk[cut : middle + walked]
                place = reached.get(names) or self._new_reached(names)
                leaf = chunk[middle:cut]
                given = chunk[start:middle]
                if given == place.path + leaf:
                    given = b""
                elif given[:1] in b"/" or kind & _SHARED:
                    break
            else:
                place, leaf = self._missed_at(chunk, start, middle, based)
                if place is None or walked or resolve or kind & _SHARED:
                    break
                key |= -ret << 64
            if resolve:
                key |= resolve << 96
            ended = place.ended.get(key)
            if ended is None:
                ended = self._new_ended(place, key, opened, resolve, ret)
                if ended is None:
                    break
            line, known, judge, may_be_noise = ended
            if leaf not in known:
                name = _ordinary(leaf)
                if not name:
                    break
                if judge is not None and (rule := judge(name)) is not None:
                    if not may_be_noise:
                        break
                    self._drop(rule)
                    offset += 1
                    continue
                known.add(leaf)
            out.append(line % (seq, pid, leaf, ret))
            if given:
                self.details += 1
                path = _encode(path_text(given))
                call = kind & _CALL
                out.append(self._detail_line(self._details[call] % (seq, pid, path)))
            mark(ts)
            seq += 1
        return seq + offset, seq

    def _missed_at(
        self, chunk: bytes, start: int, middle: int, based: int
    ) -> tuple[_Place | None, bytes]:
        """What an open that failed was given: the folder, and the name in it."""
        cut = chunk.rfind(b"/", start, middle) + 1 or start
        folder, base = chunk[start:cut], chunk[middle : middle + based]
        try:
            place = self._missed[base][folder]
        except KeyError:
            place = self._new_missed(base, folder)
        leaf = chunk[cut:middle]
        return None if leaf in _DOTS else place, leaf

    def _new_reached(self, names: bytes) -> _Place:
        parts = names.split(b"\0")[-2:0:-1]
        place = self._new_place(b"/".join((b"", *parts, b"")))
        self._reached[names] = place
        return place

    def _new_missed(self, base: bytes, folder: bytes) -> _Place | None:
        """None where the text is not enough to tell where it leads."""
        self._count_known()
        top = b"/".join((b"", *filter(None, base.split(b"\0")[-2::-1]), b"")) if base else b""
        path = top + folder
        text = path_text(path)
        place = None
        if (
            text.startswith("/")
            and text == f"{joined('/', text).rstrip('/')}/"
            and "/../" not in text
            and not (top and folder.startswith(b"/"))
            and not text.startswith(_VIEWS)
        ):
            place = self._new_place(path, is_reached=False)
        self._missed.setdefault(base, {})[folder] = place
        return place

    def _new_place(self, path: bytes, *, is_reached: bool = True) -> _Place:
        self._count_known()
        text = path_text(path)
        judge = judge_of(text[:-1], is_reached=is_reached)
        return _Place(path=path, text=text, judge=judge, ended={})

    def _count_known(self) -> None:
        """A stream of many places, or of many ways to open, forgets and learns again."""
        self._known += 1
        if self._known > _MOST_KNOWN:
            self._known = 1
            self._reached.clear()
            self._missed.clear()

    def _new_ended(
        self, place: _Place, key: int, opened: int, resolve: int, ret: int
    ) -> _Ended | None:
        if ret < -_FIRST_ERROR or ret in NO_RESULT:
            return None
        flags, mode = opened & _FLAGS, opened >> 32
        event = RawEvent(0, 0, 0, "openat", flags=flags, mode=mode, resolve=resolve)
        form = open_form(self._run_id, event)
        form.line.return_value, form.line.status = 0, "success" if ret >= 0 else "error"
        line = _encode(form.line)
        line = line.replace(b'"seq":0,"pid":0', b'"seq":%d,"pid":%d', 1)
        line = line.replace(b'"return_value":0', b'"return_value":%d', 1)
        quoted = _encode(place.text)[1:-1].replace(b"%", b"%%")
        line = line.replace(b'"value":null', b'"value":"%b%%b"' % quoted, 1)
        self._count_known()
        if ret >= 0:
            known = self._surface.reached_in(place.text, form.ways)
        else:
            known = self._surface.missed_in(place.text, ret)
        # Whoever writes has a set for itself: none of its names is ever looked up by a read. Misses
        # have one set, however they were tried: what may be noise must not get into it.
        judge = None if ret >= 0 and flags & _WRITES else place.judge
        may_be_noise = form.is_read and (ret >= 0 or ret in (-ENOENT, -ENOTDIR))
        ended = place.ended[key] = (line, known, judge, may_be_noise)
        return ended


def _ordinary(leaf: bytes) -> str:
    """A name that is the same in a line and as a text; nothing, where it is not."""
    try:
        name = leaf.decode()
    except UnicodeDecodeError:
        return ""
    return "" if BACKSLASH in leaf or '"' in name or not name.isprintable() else name
