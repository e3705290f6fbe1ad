"""Which endpoints a run addressed: those that something was sent or connected to, or should be.

An attempt counts, whatever came of it. What cannot have been one does not: a call without a
socket, and port 0, by which libc asks which of its own addresses it would use.
"""

from __future__ import annotations

from msgspec import Struct

from stream.evidence.failures import failure
from stream.records.kernel import CONNECT, SENDMSG, SENDTO, KernelDetail, KernelEvent

ADDRESSING = {CONNECT: "connect", SENDTO: "sendto", SENDMSG: "sendmsg"}
_EBADF, _EFAULT, _ENOTSOCK, _EAFNOSUPPORT, _EISCONN = 9, 14, 88, 97, 106
#: Then there was nothing that could have addressed a peer: no socket, no address, none of this
#: family, or a connection to somebody else.
_NO_ATTEMPT = {-_EBADF, -_EFAULT, -_ENOTSOCK, -_EAFNOSUPPORT, -_EISCONN}


class Peers(Struct):
    _addressed: set[str] = set()
    _named_only: set[str] = set()
    _blocked: set[str] = set()
    _failed: dict[str, set[str]] = {}
    _kinds: set[tuple[int, bool]] = set()  #: and whether it could have been an attempt

    def add(self, event: KernelEvent, detail: KernelDetail | None) -> None:
        peer = event.value
        result = None if detail is None else detail.return_value
        is_attempt = result not in _NO_ATTEMPT
        self._kinds.add((event.event_type, is_attempt and not (peer and _is_probe(peer))))
        if peer is None:
            return
        (self._addressed if is_attempt else self._named_only).add(peer)
        is_failure = detail is not None and (detail.status == "error" or result is None)
        if is_failure and _is_address(peer):
            why = f"{ADDRESSING[event.event_type]}:{failure(result)}"
            self._failed.setdefault(peer, set()).add(why)

    def block(self, peer: str) -> None:
        self._blocked.add(peer)

    def has(self, *kinds: int, is_reference: bool) -> bool:
        """The reference counts what addressed nobody, too."""
        found = self._kinds
        return any((k, True) in found or (is_reference and (k, False) in found) for k in kinds)

    def endpoints(self, *, is_reference: bool) -> set[str]:
        if is_reference:
            return self._addressed | self._named_only | self._blocked
        addressed = {peer for peer in self._addressed if _is_address(peer)}
        return {peer for peer in addressed | self._blocked if not _is_probe(peer)}

    def probes(self) -> set[str]:
        named = self._addressed | self._named_only | self._blocked
        return {peer for peer in named if _is_address(peer) and _is_probe(peer)}

    def failed(self) -> dict[str, list[str]]:
        return {peer: sorted(why) for peer, why in sorted(self._failed.items())}


def _is_address(peer: str) -> bool:
    return peer[:1] in tuple("[0123456789")


def _is_probe(peer: str) -> bool:
    return peer.endswith(":0")
