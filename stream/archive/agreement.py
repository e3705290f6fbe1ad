"""What two lines say of the same thing: a detail and its event, a marker and its SDK event.

Each is a sentence about what does not agree. Lines are taken to keep their schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from stream.records.kernel import (
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
    LOCAL_CONNECT,
    LOCAL_SEND,
    MKDIR,
    MKNOD,
    RENAME,
    RMDIR,
    SENDMSG,
    SENDTO,
    SYMLINK,
    TRUNCATE,
    UNLINK,
    URING_SETUP,
    KernelDetail,
    KernelEvent,
    kind_of,
)
from stream.records.runner import Marker, SdkEvent

_TOOL_EVENTS = ("tool_call_started", "tool_call_completed")
_BY_PEER = {CONNECT: (CONNECT, LOCAL_CONNECT)} | {
    kind: (kind, LOCAL_SEND) for kind in (SENDTO, SENDMSG)
}
#: By call: of which types its event may be.
_TYPES = {call: _BY_PEER.get(kind, (kind,)) for call, kind in EVENT_TYPES.items()}
_WITH_PEER = {CONNECT, SENDTO, SENDMSG, LOCAL_CONNECT, LOCAL_SEND, CONNECT_BLOCKED}
_WITHOUT_VALUE = {FORK, EXIT, URING_SETUP}
#: They give nothing but 0 where they succeed.
_GIVES_NOTHING = {
    *(UNLINK, RENAME, MKDIR, RMDIR, LINK, SYMLINK, CHMOD, CHOWN, TRUNCATE, MKNOD),
    *(EXEC, EXEC_FAILED, CONNECT, LOCAL_CONNECT),
}
_ONLY_BEGUN = (-114, -115)  #: of a connect: EALREADY, EINPROGRESS


def line_strangeness(detail: KernelDetail, pid: int, event_type: int) -> str:
    """Why a detail is not of the event of its line; empty where it may be."""
    if event_type not in _TYPES.get(detail.call, ()):
        return f"{detail.call}, but its line is {kind_of(event_type)}"
    return "" if detail.pid == pid else f"of {detail.pid}, but its line is of {pid}"


def event_strangeness(event: KernelEvent, detail: KernelDetail | None) -> Iterator[str]:
    """Of any event but an open."""
    kind = event.event_type
    if kind in _WITHOUT_VALUE and event.value is not None:
        yield f"a value, {event.value!r}, of {event.kind}"
    if detail is None:
        return
    yield from _result_strangeness(detail, kind)
    if kind in _WITH_PEER and detail.peer != event.value:
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


def saying_strangeness(event: SdkEvent) -> str:
    if event.event_type in _TOOL_EVENTS or (event.tool is None and event.tool_call_id is None):
        return ""
    return f"{event.event_type} is of no tool call"
