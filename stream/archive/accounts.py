"""The books of a feed against what became of it: every event is accounted for, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from msgspec import Struct

from stream.archive.gathering import Gathering
from stream.records.kernel import Count, RawCapture, RunId, Scope
from stream.stages.noise import RULES
from stream.stages.normalize import NO_EVENTS


class Counted(Struct):
    """How a companion begins: what it says that does not follow from the layers."""

    run_id: RunId
    capture: dict[str, Any]
    filtered: dict[str, Count] | None
    aside: dict[str, Count] | None


_RULES = {rule.name for rule in RULES}


def account_faults(
    capture: RawCapture, companion: Counted, gathered: Gathering, *, is_streamed: bool
) -> Iterator[str]:
    """What does not add up. `is_streamed`: it was put together of a stream, in which nobody may
    have said what was left out before."""
    if capture.feed == "absent":
        yield from _absent_faults(capture, companion)
        return
    may_lack = is_streamed and bool(capture.unknown_loss)
    yield from _counted_faults(companion, may_lack=may_lack)
    yield from _cgroup_faults(capture, gathered)
    if not capture.unknown_loss:  # else nobody knows what is missing, here as there
        yield from _balance_faults(capture, companion, gathered)
        yield from _scope_faults(capture, gathered)
        yield from _feed_faults(capture, gathered)


def _absent_faults(capture: RawCapture, companion: Counted) -> Iterator[str]:
    nothing = RawCapture(feed="absent", reason=capture.reason, unknown_loss=capture.unknown_loss)
    if capture != nothing:
        yield "$.capture: there was no feed, and it has books"
    if companion.filtered or companion.aside:
        yield "$.filtered: there was no feed, and something of it was left out"


def _counted_faults(companion: Counted, *, may_lack: bool) -> Iterator[str]:
    for name, counts, known in (
        ("filtered", companion.filtered, _RULES),
        ("aside", companion.aside, {*NO_EVENTS}),
    ):
        if counts is None:
            if not may_lack:
                yield f"$.{name}: it is not known, and nothing is said to be missing"
            continue
        for rule, count in counts.items():
            if rule not in known or not count:
                yield f"$.{name}: {rule!r}, {count} times, is by no rule"


def _balance_faults(capture: RawCapture, companion: Counted, gathered: Gathering) -> Iterator[str]:
    scoped = sum(capture.scopes.values())
    told = scoped + capture.before_exec
    if capture.got + capture.dropped != capture.seen:
        yield f"$.capture.seen: {capture.got} + {capture.dropped} events, not {capture.seen}"
    # An operation of io_uring is told twice: when it is asked for, and when it is done.
    if told > capture.got or (told < capture.got and capture.uring == "unused"):
        yield f"$.capture.got: {told} events are accounted for, not {capture.got}"
    left_out = _total(companion.filtered) + _total(companion.aside)
    if gathered.events + left_out != scoped:
        yield (
            f"$.capture.scopes: {scoped} events, and {gathered.events} lines and"
            f" {left_out} that were left out"
        )


def _total(counts: Mapping[str, int] | None) -> int:
    return sum((counts or {}).values())


def _scope_faults(capture: RawCapture, gathered: Gathering) -> Iterator[str]:
    for scope, count in capture.scopes.items():
        if scope not in get_args(Scope) or count <= 0:
            yield f"$.capture.scopes: {scope!r}, {count} times, is no scope of events"
    for scope, lines in gathered.scopes().items():
        if lines > capture.scopes.get(scope, 0):
            yield f"$.capture.scopes: {lines} lines are of the scope {scope!r}"


def _cgroup_faults(capture: RawCapture, gathered: Gathering) -> Iterator[str]:
    is_clean = capture.cgroup == "clean"
    others = [scope for scope in (*capture.scopes, *gathered.scopes()) if scope != "both"]
    if is_clean and capture.feed == "strace":
        yield "$.capture.cgroup: clean, and strace sees the process tree only"
    is_lossy = capture.dropped or capture.unknown_loss
    if is_clean and (others or capture.lost_forks or capture.misses or is_lossy):
        what = f"events of the scope {others[0]!r}" if others else "processes not followed"
        what = "events lost" if is_lossy else what
        yield f"$.capture.cgroup: clean, and there are {what}"
    if is_clean and capture.cgroup_reasons:
        yield "$.capture.cgroup_reasons: clean, and there are reasons why not"
    if not is_clean and not capture.cgroup_reasons and not capture.unknown_loss:
        yield f"$.capture.cgroup_reasons: {capture.cgroup}, and no reason why"


def _feed_faults(capture: RawCapture, gathered: Gathering) -> Iterator[str]:
    if capture.reason:
        yield f"$.capture.reason: there was a feed, {capture.feed}"
    size = capture.ring_bytes
    if capture.feed == "ebpf" and (size <= 0 or size & (size - 1)):
        yield f"$.capture.ring_bytes: no ring of eBPF has {size} bytes"
    if capture.feed == "strace" and size:
        yield "$.capture.ring_bytes: strace has no ring"
    # Whoever inherits one may use it unseen without having set it up.
    if capture.uring != "hole" and bool(gathered.urings) != (capture.uring == "seen"):
        yield f"$.capture.uring: {capture.uring!r}, and {gathered.urings} were set up"
    if capture.uring == "unknown" and not capture.dropped:
        yield "$.capture.uring: it is not known, and nothing was lost"
