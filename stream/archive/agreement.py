"""What two lines say of the same thing: a detail and its event, a marker and its SDK event.

Each is a sentence about what does not agree. Lines are taken to keep their schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from msgspec import UNSET

from stream.records.kernel import (
    ACCEPT,
    ACCOUNT,
    ATTRIBUTES,
    BIND,
    BY_PEER,
    CHMOD,
    CHOWN,
    CONNECT,
    CONNECT_BLOCKED,
    EVENT_TYPES,
    EXEC,
    EXEC_FAILED,
    EXIT,
    FORK,
    LINK,
    LOCAL_ACCEPT,
    LOCAL_BIND,
    LOCAL_CONNECT,
    LOCAL_SEND,
    MKDIR,
    MKNOD,
    NO_QUEUE,
    NO_XATTR,
    OPEN,
    REACH,
    RENAME,
    RMDIR,
    SENDMSG,
    SENDTO,
    SOCKET_FILE,
    SYMLINK,
    TIMES,
    TRUNCATE,
    UNLINK,
    URING_SETUP,
    WITH_PEER,
    XATTR,
    KernelDetail,
    KernelEvent,
    kind_of,
    unknown_type,
)
from stream.records.runner import Marker, SdkEvent

_TOOL_EVENTS = ("tool_call_started", "tool_call_completed")
#: By call: of which types its event may be.
_TYPES = {call: (kind, *BY_PEER.get(kind, ())) for call, kind in EVENT_TYPES.items()}
_WITHOUT_VALUE = {FORK, EXIT, URING_SETUP}
#: They give nothing but 0 where they succeed.
_GIVES_NOTHING = {
    *(UNLINK, RENAME, MKDIR, RMDIR, LINK, SYMLINK, CHMOD, CHOWN, TRUNCATE, MKNOD),
    *(EXEC, EXEC_FAILED, CONNECT, LOCAL_CONNECT, BIND, LOCAL_BIND, SOCKET_FILE),
    *(XATTR, NO_XATTR, TIMES, ATTRIBUTES, ACCOUNT, NO_QUEUE),
}
_IP_PEER = {CONNECT, SENDTO, SENDMSG, BIND, ACCEPT}
_ANY_PEER = {LOCAL_CONNECT, LOCAL_SEND, LOCAL_BIND, LOCAL_ACCEPT, CONNECT_BLOCKED, REACH}
_KINDS = {*EVENT_TYPES.values()}
_PORT = re.compile("0|[1-9][0-9]{0,4}")
#: Absolute; or, where it lies in no folder, as `pipe:[5]`.
_PLACE = re.compile(r"(?:/|[a-z_0-9]+:)(?:[^\\\0]|\\\\|\\x[0-9a-f]{2})*", re.DOTALL)
_OTHER_FAMILY = re.compile(r"af[0-9]{1,5}:[0-9a-f]*")  #: of addresses that no text is made of
_ONLY_BEGUN = (-114, -115)  #: of a connect: EALREADY, EINPROGRESS


def line_strangeness(detail: KernelDetail, pid: int, event_type: int) -> str:
    """Why a detail is not of the event of its line; empty where it may be."""
    types = _TYPES.get(detail.call) or (unknown_type(detail.call),)
    if event_type not in types:
        return f"{detail.call}, but its line is {kind_of(event_type)}"
    return "" if detail.pid == pid else f"of {detail.pid}, but its line is of {pid}"


def open_strangeness(detail: KernelDetail) -> str:
    """Why a detail is of no open: what its line says, it does not say again."""
    said = (detail.return_value, detail.mode, detail.exit_status)
    if detail.flags or detail.status is not UNSET or said != (None, None, None):
        return "an open's flags, mode and result stand in its own line"
    return ""


def must_have_detail(event: KernelEvent) -> bool:
    """All but opens and connects leave something unsaid, and so do these without a value."""
    return event.event_type not in (OPEN, CONNECT) or event.value is None


def is_place(text: str) -> bool:
    """Whether it is text by `path_text`, of a file that has a name or of one that needs none."""
    return _PLACE.fullmatch(text) is not None


def value_strangeness(event: KernelEvent) -> str:
    """Why an event is none of our feeds', by its line alone. Of any event but an open."""
    kind, value = event.event_type, event.value
    if kind in _IP_PEER:
        return "" if value is None or _is_endpoint(value) else f"{value!r} is no endpoint"
    if value is None or kind in _ANY_PEER or kind not in _KINDS:
        return ""
    return "" if is_place(value) else f"{value!r} is the path of no file"


def _is_endpoint(text: str) -> bool:
    if _OTHER_FAMILY.fullmatch(text):
        return True
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 0xFFFF:
        return False
    is_long = host.startswith("[")
    try:
        address = ip_address(host[1:-1] if is_long and host.endswith("]") else host)
    except ValueError:
        return False
    return is_long == (address.version == 6)


def event_strangeness(event: KernelEvent, detail: KernelDetail | None) -> Iterator[str]:
    """Of any event but an open."""
    kind = event.event_type
    if kind in _WITHOUT_VALUE and event.value is not None:
        yield f"a value, {event.value!r}, of {event.kind}"
    if detail is None:
        return
    yield from _result_strangeness(detail, kind)
    if kind in WITH_PEER and detail.peer != event.value:
        yield f"to {detail.peer!r}, but its line is to {event.value!r}"
    if kind == SYMLINK and event.value is not None and detail.to_path != event.value:
        yield f"at {detail.to_path!r}, but its line is of {event.value!r}"


def _result_strangeness(detail: KernelDetail, kind: int) -> Iterator[str]:
    result = detail.return_value
    is_known = result is not None and not (detail.call == "connect" and result in _ONLY_BEGUN)
    follows = UNSET if not is_known else "error" if result is not None and result < 0 else "success"
    if detail.status != follows:
        yield f"status is {detail.status}, and {result} was returned"
    if result is not None and result > 0 and kind in _GIVES_NOTHING:
        yield f"{detail.call} gives nothing, and {result} was returned"
    if (kind == EXEC and result != 0) or (kind == EXEC_FAILED and detail.status == "success"):
        yield f"{kind_of(kind)}, and {result} was returned"


def marker_strangeness(marker: Marker, sdk: Sequence[SdkEvent]) -> str:
    """Why a marker does not stand for its line of the SDK layer."""
    number = marker.sdk_seq
    if marker.name not in _TOOL_EVENTS:
        is_bare = number is None and marker.tool_call_id is None and marker.command is None
        if marker.name == "run_started" and marker.at:
            return f"the run starts after {marker.at} events"
        return "" if is_bare else f"{marker.name} is of no tool call"
    if number is None or not 0 <= number < len(sdk):
        return "it is of no line of the SDK layer"
    event = sdk[number]
    if (event.event_type, event.tool_call_id) != (marker.name, marker.tool_call_id):
        return f"line {number} of the SDK layer says something else"
    return ""


def frame_strangeness(markers: Sequence[Marker], total: int) -> str:
    """Why markers do not reach from the start of a run with so many kernel events to its end."""
    names = [marker.name for marker in markers]
    if not names:
        return ""  # of a stream that had none
    if names[0] != "run_started" or names[-1] != "run_finished":
        return "they do not reach from the start of the run to its end"
    if {"run_started", "run_finished"} & {*names[1:-1]}:
        return "the run starts or ends in the middle"
    at = markers[-1].at
    return "" if at == total else f"the run ends after {at} events, and there are {total}"
