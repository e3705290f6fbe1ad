"""Which endpoints a run addressed: those that something was sent or connected to, or should be,
and those whose connections it accepted or took from others.

An attempt counts, whatever came of it. What cannot have been one does not: a call without a
socket, a message that was refused for its port 0, and a connect to port 0 that sends nothing, by
which libc asks which of its own addresses it would use. What has no ports, as ICMP, is sent to 0.
"""

from __future__ import annotations

from msgspec import Struct

from stream.evidence.failures import failure
from stream.records.kernel import (
    ACCEPT,
    CONNECT,
    CONNECT_BLOCKED,
    SENDMSG,
    SENDTO,
    KernelDetail,
    KernelEvent,
)

ADDRESSING = {CONNECT: "connect", SENDTO: "sendto", SENDMSG: "sendmsg", ACCEPT: "accept"}
_EBADF, _EFAULT, _EINVAL, _ENOTSOCK, _EAFNOSUPPORT, _EISCONN = 9, 14, 22, 88, 97, 106
_ETIMEDOUT, _ECONNREFUSED, _EALREADY, _EINPROGRESS = 110, 111, 114, 115
#: Then there was nothing that could have addressed a peer: no socket, no address, none of this
#: family, or a connection to somebody else.
_NO_ATTEMPT = {-_EBADF, -_EFAULT, -_ENOTSOCK, -_EAFNOSUPPORT, -_EISCONN}
#: What comes of a connect that did send something; None: it had not come to its end.
_SENT = {None, -_ETIMEDOUT, -_ECONNREFUSED, -_EALREADY, -_EINPROGRESS}


class Peers(Struct):
    _addressed: set[str] = set()
    _named_only: set[str] = set()
    _probes: set[str] = set()
    _blocked: set[str] = set()
    _failed: dict[str, set[str]] = {}
    _kinds: set[tuple[int, bool]] = set()  #: and whether it could have been an attempt

    def add(self, event: KernelEvent, detail: KernelDetail | None) -> None:
        kind, peer = event.event_type, event.value
        result = None if detail is None else detail.return_value
        asks_only = _has_no_port(peer) and (detail is None or result not in _SENT)
        is_probe = kind == CONNECT and asks_only
        may_address = is_attempt(event, detail) and not is_probe
        self._kinds.add((kind, may_address))
        if peer is None:
            return
        if is_probe:
            self._probes.add(peer)
        else:
            (self._addressed if may_address else self._named_only).add(peer)
        is_failure = detail is not None and (detail.status == "error" or result is None)
        if is_failure and is_address(peer) and kind in ADDRESSING:
            self._failed.setdefault(peer, set()).add(f"{ADDRESSING[kind]}:{failure(result)}")

    def block(self, peer: str | None) -> None:
        is_probe = _has_no_port(peer)
        self._kinds.add((CONNECT_BLOCKED, not is_probe))
        if peer is not None:
            (self._probes if is_probe else self._blocked).add(peer)

    def has(self, *kinds: int, is_reference: bool) -> bool:
        """The reference counts what addressed nobody, too."""
        found = self._kinds
        return any((k, True) in found or (is_reference and (k, False) in found) for k in kinds)

    def may_be(self, endpoints: set[str]) -> bool:
        """Whether these are all, where what came of a connect to port 0 is not known."""
        known = self.endpoints(is_reference=False)
        return known <= endpoints <= known | self.probes()

    def endpoints(self, *, is_reference: bool) -> set[str]:
        if is_reference:
            return self._addressed | self._named_only | self._probes | self._blocked
        return {peer for peer in self._addressed if is_address(peer)} | self._blocked

    def probes(self) -> set[str]:
        return {peer for peer in self._probes if is_address(peer)}

    def failed(self) -> dict[str, list[str]]:
        return {peer: sorted(why) for peer, why in sorted(self._failed.items())}


def is_attempt(event: KernelEvent, detail: KernelDetail | None) -> bool:
    """Whether a call of `ADDRESSING` can have reached somebody."""
    result = None if detail is None else detail.return_value
    is_refused = event.event_type != CONNECT and _has_no_port(event.value) and result == -_EINVAL
    return result not in _NO_ATTEMPT and not is_refused


def is_address(peer: str) -> bool:
    return peer[:1] in tuple("[0123456789")


def _has_no_port(peer: str | None) -> bool:
    return peer is not None and peer.endswith(":0")
