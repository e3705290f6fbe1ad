"""One call that a feed saw, as the lines of the kernel layer that it becomes.

Opens, from the ring to their lines without becoming events on the way.

What comes out is what the long way would give. Whatever is not quite ordinary is left to that.
What opens of the same folder, with the same flags and the same end, have in common is made once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from stream.evidence.consistency import ACCESS, operations_of
from stream.evidence.surface import Surface, ways_of
from stream.records.kernel import (
    BACKSLASH,
    BIND,
    BY_PEER,
    CHMOD,
    CONNECT,
    EXEC,
    EXIT,
    FORK,
    MKDIR,
    MKNOD,
    NAMES_AT,
    NO_QUEUE,
    NO_RESULT,
    OPEN,
    OPEN_FIELDS,
    OPENS,
    QUEUE,
    REACH,
    SOCKET_FILE,
    SYMLINK,
    WITH_PEER,
    KernelDetail,
    KernelEvent,
    RawEvent,
    RingBatch,
    Status,
    beyond_view,
    goes_up,
    path_text,
    unknown_type,
)
from stream.transformers.filters import FolderFilter, filter_rule_for

# As Linux has them on x86-64 and arm64, whatever machine reads the line.
CREATE, CUT, TMPFILE = 0o100, 0o1000, 0o20000000
_CREAT_FLAGS = 0o1101  #: what creat(2) stands for
IN_ROOT = 0x10  #: of openat2: an absolute path starts from `base` too
ENOENT, ENOTDIR, EALREADY, EINPROGRESS = 2, 20, 114, 115
#: Others than these go out of the machine, or may: packets, virtual machines, radio.
_LOCAL_PEERS = ("unix:", "netlink", "unspec", "af38:")  # the last one: the kernel's own ciphers
#: With one of these marks nobody knows which file it was, or what has its name elsewhere.
UNSURE = {"unreachable", "walk_cut", "fault", "truncated", "other_mounts", "shared_files"}
#: Rules for places where only root puts anything.
ROOTS_RULES = {"loader", "locale", "proc", "sys", "trust_store"}


class OpenForm(Struct):
    """What the opens with the same flags have in common."""

    line: KernelEvent  #: of a success; who uses it sets what is its own
    is_read: bool
    ways: int  #: how the surface says it


def open_form(run_id: str, event: RawEvent) -> OpenForm:
    flags = event.flags | (_CREAT_FLAGS if event.call == "creat" else 0)
    line = KernelEvent(
        run_id=run_id,
        seq=0,
        pid=0,
        event_type=OPEN,
        kind="openat",
        value=None,
        flags=flags,
        mode=event.mode if flags & (CREATE | TMPFILE) else UNSET,
        resolve=event.resolve or UNSET,
        access_mode=ACCESS[flags & 3],
        operation_flags=operations_of(flags) or UNSET,
    )
    ways = ways_of(line.access_mode, line.operation_flags)
    return OpenForm(line, not flags & (3 | CREATE | CUT | TMPFILE), ways)


def named(event: RawEvent) -> str | None:
    """What its path names, by the text and by where that starts. None where that is not known."""
    return _named(event, event.path, event.base)


def named_second(event: RawEvent) -> str | None:
    """The same of its other path."""
    return _named(event, event.to_path, event.to_base)


def _named(event: RawEvent, path: str | None, base: str | None) -> str | None:
    if not path:
        return None
    is_absolute, in_other = path[0] == "/", "other_root" in event.marks
    if base is not None and not base.startswith("/"):
        base = None  # a pipe, for one
    if event.resolve & IN_ROOT or (is_absolute and in_other):
        return None if base is None else joined(base, path, is_root=True)
    if is_absolute:
        rest = None if base is None else beyond_view(path)
        return joined("/", path) if base is None or rest is None else joined(base, rest)
    if base is None or (in_other and goes_up(path)):  # how far up, nobody knows
        return None
    return joined(base, path)


def joined(base: str, path: str, *, is_root: bool = False) -> str:
    """`path` from `base`, in which there are no links. Behind a name `..` stays: if that name is
    a link, it leads somewhere else than the text says."""
    parts = [part for part in base.split("/") if part]
    least = len(parts) if is_root else 0
    is_real = True
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == ".." and is_real:
            del parts[max(least, len(parts) - 1) :]
        else:
            parts.append(part)
            is_real = False
    return "/" + "/".join(parts)


def is_literal(event: RawEvent, value: str) -> bool:
    """Whether `value` is nothing but what the program named, from where it stood."""
    path = event.path
    if path is None:
        return False
    if path == value or f"{event.base}/{path}" == value:
        return True
    if event.base is not None and beyond_view(path) is not None:
        return False
    return "/../" not in f"/{path}/" and named(event) == value


def with_peer(event: RawEvent, event_type: int) -> int:
    """Peers on the same machine that have no IP address have types of their own, and so has a
    socket that becomes a file."""
    if event_type == BIND and event.path is not None:
        return SOCKET_FILE
    if event.peer is None or not event.peer.startswith(_LOCAL_PEERS):
        return event_type
    return BY_PEER.get(event_type, (event_type,))[0]


def value_of(event: RawEvent, event_type: int) -> str | None:
    """The path or endpoint of any call but an open. Of one that is not known, what would be meant
    by either is not known."""
    if unknown_type(event.call) is not None:
        return None
    if event_type in WITH_PEER:
        return event.peer
    if event_type in (QUEUE, NO_QUEUE):
        return None if event.path is None else f"mqueue:/{event.path}"
    if event_type == REACH:
        return event.peer or event.resolved
    if event_type == SOCKET_FILE or (event_type == EXEC and _is_by_number(event)):
        return event.resolved or (named(event) if event_type == SOCKET_FILE else None)
    if event_type in (FORK, EXIT):
        return None
    if event_type == SYMLINK:  # its `path` is a text, and leads nowhere yet
        return named_second(event)
    return named(event) or event.resolved


def _is_by_number(event: RawEvent) -> bool:
    """Whether a program has no other name than that of a descriptor, which may lead to nothing
    that has one: nobody can tell what it was by then."""
    return event.base is None and event.path is not None and beyond_view(event.path) is not None


def status_of(event: RawEvent) -> Status | UnsetType:
    """Unset where the outcome was not seen: a connect that has only begun, for one."""
    if event.ret is None or (event.call == "connect" and event.ret in (-EINPROGRESS, -EALREADY)):
        return UNSET
    return "success" if event.ret >= 0 else "error"


def has_detail(event: RawEvent, event_type: int, value: str | None) -> bool:
    """Whether a line of the kernel layer leaves something unsaid."""
    if event.marks or event.scope != "both" or value is None:
        return True
    if event_type == OPEN:
        return not is_literal(event, value)
    return event_type != CONNECT or event.ret != 0


def detail_of(
    run_id: str, seq: int, event: RawEvent, event_type: int, value: str | None
) -> KernelDetail:
    is_open = event_type == OPEN  # whose flags, mode and result stand in its own line
    has_mode = event_type in (MKDIR, CHMOD, MKNOD, QUEUE)
    is_said = event.path == value
    if is_open and value is not None and event.resolved is None:
        is_said = is_literal(event, value)
    return KernelDetail(
        run_id=run_id,
        seq=seq,
        pid=event.pid,
        call=event.call,
        path=None if is_said else event.path,
        base=event.base if is_open and value is None else None,
        to_path=named_second(event) or event.to_path,
        resolved=event.resolved if event_type == EXEC or event.resolved != value else None,
        return_value=None if is_open else event.ret,
        status=UNSET if is_open else status_of(event),
        flags=0 if is_open else event.flags,
        mode=event.mode if has_mode else None,
        uid=event.uid,
        gid=event.gid,
        size=event.size,
        peer=event.peer,
        argv=event.argv,
        child=event.child,
        name=event.name,
        target=event.target,
        exit_status=event.status if event_type == EXIT else None,
        scope=event.scope,
        marks=event.marks,
        asked=event.asked,
    )


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
_Ended: TypeAlias = tuple[bytes, set[bytes], FolderFilter | None, bool]


class _OpenFolder(Struct):
    """A folder, with the slash behind it."""

    path: bytes
    text: str
    judge: FolderFilter
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
        self._reached: dict[bytes, _OpenFolder] = {}
        #: by where a path starts from, and then by what stands before its last name
        self._missed: dict[bytes, dict[bytes, _OpenFolder | None]] = {}
        self._details = [b""] * len(OPENS)
        for number, call in enumerate(OPENS):
            detail = KernelDetail(run_id=run_id, seq=0, pid=0, call=call, path="")
            line = _encode(detail).replace(b'"seq":0,"pid":0', b'"seq":%d,"pid":%d', 1)
            self._details[number] = line.replace(b'"path":""', b'"path":%b', 1)

    def feed(
        self, batch: RingBatch, first: int, seq: int, out: list[Any], mark: Callable[[int], None]
    ) -> tuple[int, int]:
        """Puts the lines of the opens from the `first` item on into `out`, and tells their times,
        as far as the short way goes: to which item, and the next line's number."""
        chunk, reached, fields = batch.chunk, self._reached, _fields
        offset = first - seq  # from the next line's number to the place in the batch
        for at in islice(batch.items, first, None):
            if type(at) is not int:
                break
            kind, pid, ret, ts, opened, size, walked, based, last, resolve = fields(chunk, at)
            start = at + NAMES_AT
            middle = start + size
            given = b""
            key = opened
            place: _OpenFolder | None
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
    ) -> tuple[_OpenFolder | None, bytes]:
        """What an open that failed was given: the folder, and the name in it."""
        cut = chunk.rfind(b"/", start, middle) + 1 or start
        folder, base = chunk[start:cut], chunk[middle : middle + based]
        try:
            place = self._missed[base][folder]
        except KeyError:
            place = self._new_missed(base, folder)
        leaf = chunk[cut:middle]
        return None if leaf in _DOTS else place, leaf

    def _new_reached(self, names: bytes) -> _OpenFolder:
        parts = names.split(b"\0")[-2:0:-1]
        place = self._new_place(b"/".join((b"", *parts, b"")))
        self._reached[names] = place
        return place

    def _new_missed(self, base: bytes, folder: bytes) -> _OpenFolder | None:
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

    def _new_place(self, path: bytes, *, is_reached: bool = True) -> _OpenFolder:
        self._count_known()
        text = path_text(path)
        judge = filter_rule_for(text[:-1], is_reached=is_reached)
        return _OpenFolder(path=path, text=text, judge=judge, ended={})

    def _count_known(self) -> None:
        """A stream of many places, or of many ways to open, forgets and learns again."""
        self._known += 1
        if self._known > _MOST_KNOWN:
            self._known = 1
            self._reached.clear()
            self._missed.clear()

    def _new_ended(
        self, place: _OpenFolder, key: int, opened: int, resolve: int, ret: int
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
