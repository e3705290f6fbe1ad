"""One pass over a stream: where the words of the rules stand, what the rules make of them.

The pass decides about a place only when everything that a rule may look at is there, and lets
bytes go only when no later place can reach back to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from stream.redaction.environment import forms, secret_values
from stream.redaction.rules import AHEAD, BEHIND, LOOK, Anchor, Found, Rule, anchors

STEP = 1 << 16  #: bytes that are worth a pass
KEPT = 1 << 16  #: bytes of a secret that tell it from others

# Bytes in the order of how rare they are in source code and prose.
_RARE = (
    b"@JZQXKYWVBGHUFMONLRPDSCAITE~^|%&?!$`\\zqjxkwyvb"
    b"9876543fgmpuh+<>#*21'{}[]cdlnrsoiat0(),;:\"/=._-e\n\t "
)
_RANK = {byte: rank for rank, byte in enumerate(_RARE)}
_EXACT_REACH = 64  #: a long value is looked for by a byte near its beginning

Token = Callable[[str, bytes], bytes]


def pivot(word: bytes, any_case: bool) -> int:
    """The place of the byte to look for first: the rarest of the word."""
    near = word[:_EXACT_REACH].lower() if any_case else word[:_EXACT_REACH]
    return min(range(len(near)), key=lambda place: (_RANK.get(near[place], -1), place))


class Detector:
    """The words to look for, in one pattern."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.identities: dict[bytes, bytes] = {}
        exact: list[Anchor] = []
        for value in secret_values(environment):
            identity = identity_of("env", value.encode("utf-8", "surrogateescape"))
            new = [form for form in forms(value) if form not in self.identities]
            self.identities.update(dict.fromkeys(new, identity))
            exact += [Anchor(form, _exact(form)) for form in new]
        self.by_pivot: dict[int, list[tuple[int, Anchor]]] = {}
        for anchor in exact + anchors():
            place = pivot(anchor.word, anchor.any_case)
            byte = anchor.word[place : place + 1]
            for form in {byte.lower(), byte.upper()} if anchor.any_case else {byte}:
                self.by_pivot.setdefault(form[0], []).append((place, anchor))
        self.pattern = re.compile(b"|".join(map(self._branch, sorted(self.by_pivot))))

    def _branch(self, byte: int) -> bytes:
        """All words that are looked for by this byte; the byte itself comes first, so that the
        engine passes over everything else quickly."""
        literal = re.escape(bytes((byte,)))
        return literal + b"(?:" + b"|".join(_around(*found) for found in self.by_pivot[byte]) + b")"

    def found(self, text: bytes, hit: int, covered: bool) -> list[Found]:
        """What the rules say about a hit. What reads names has nothing to add inside a secret."""
        answers = []
        for place, anchor in self.by_pivot[text[hit]]:
            start = hit - place
            if start < 0 or (covered and anchor.then):
                continue
            word = text[start : start + len(anchor.word)]
            if word == anchor.word or (anchor.any_case and word.lower() == anchor.word):
                answer = anchor.rule(text, start)
                if answer:
                    answers.append(answer)
        return answers


def _around(place: int, anchor: Anchor) -> bytes:
    before, after = anchor.word[: place + 1], anchor.word[place + 1 :]
    pattern = (b"(?<=%s)" % re.escape(before) if place else b"") + re.escape(after)
    return (b"(?i:%s)" % pattern if anchor.any_case else pattern) + anchor.then


def _exact(form: bytes) -> Rule:
    return lambda text, start: Found("env", start, start + len(form))


def identity_of(kind: str, value: bytes) -> bytes:
    """The same for a secret as it is and as it stands in JSON."""
    if kind == "private-key":
        lines = re.sub(rb"-----(?:BEGIN|END)[^-]*-----|\\+[nrt]", b"", value)
        return re.sub(rb"[^A-Za-z0-9/=]", b"", lines)
    return value.replace(b"\\", b"")


class _Span(Struct):
    """A secret, by its places in the stream."""

    kind: str
    start: int
    end: int
    value: bytes

    def grow(self, end: int, piece: bytes) -> None:
        """By the piece that ends there; of a long secret the beginning is enough."""
        self.value += piece[len(piece) - (end - self.end) :][: KEPT - len(self.value)]
        self.end = end


class Scan:
    """The state of one stream. Places are counted from its beginning."""

    def __init__(self, detector: Detector, token: Token) -> None:
        self._detector = detector
        self._token = token
        self._text = b""
        self._first = 0  # the place of the first byte of _text
        self._next = 0  # the first place that is not decided
        self._gone = 0  # what has been let go
        self._spans: list[_Span] = []  # found and not let go; in order, apart from each other
        self._open: re.Pattern[bytes] | None = None  # the last of them goes on until this
        self._hit = 0  # where the open one was seen
        self._waiting: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> bytes:
        self._waiting.append(chunk)
        self._size += len(chunk)
        return self._pass(ended=False) if self._size >= STEP else b""

    def finish(self) -> bytes:
        return self._pass(ended=True)

    def _pass(self, ended: bool) -> bytes:
        self._text = b"".join([self._text, *self._waiting])
        self._waiting, self._size = [], 0
        end = self._first + len(self._text)
        limit = end if ended else max(self._next, end - AHEAD)
        while self._open is not None or self._next < limit:
            if self._open is not None:
                if not self._close(end, ended):
                    break
                continue
            hit = self._detector.pattern.search(self._text, self._next - self._first)
            place = hit.start() + self._first if hit else limit
            if place >= limit:
                self._next = limit
                break
            self._next = place + 1
            self._look(place)
        return self._let_go(end if ended else self._next - 2 * BEHIND)

    def _look(self, place: int) -> None:
        covered = bool(self._spans) and place < self._spans[-1].end
        for found in self._detector.found(self._text, place - self._first, covered):
            self._add(found, place)
            if self._open is not None:
                return

    def _add(self, found: Found, place: int) -> None:
        start, end = found.start + self._first, found.end + self._first
        start = max(start, self._gone)
        value = self._text[start - self._first : end - self._first]
        span = _Span(found.kind, start, end, value)
        while self._spans and start < self._spans[-1].end:
            span = self._joined(self._spans.pop(), span)
        self._spans.append(span)
        if found.until is not None and span.end == end:
            self._open, self._hit = found.until, place

    def _joined(self, earlier: _Span, later: _Span) -> _Span:
        """Of two that overlap, or of which one is part of the other."""
        if earlier.start > later.start:
            before = later.value[: earlier.start - later.start]
            earlier = _Span(later.kind, later.start, earlier.end, before + earlier.value)
        if later.end > earlier.end:
            earlier.grow(later.end, later.value)
        return earlier

    def _close(self, end: int, ended: bool) -> bool:
        """Goes on in the open secret; whether its end is known."""
        assert self._open is not None
        span = self._spans[-1]
        found = self._open.search(self._text, span.end - self._first)
        sure = end if ended else max(end - LOOK, span.end)
        stop = found.start() + self._first if found else end
        if found and (ended or stop < sure):
            closing = found.end() + self._first if found[0].startswith(b"-----END") else stop
        elif ended:
            closing = end
        else:
            self._extend(span, sure)
            self._next = max(self._next, sure)
            return False
        self._extend(span, closing)
        self._open = None
        self._next = max(self._hit + 1, closing - BEHIND)
        return True

    def _extend(self, span: _Span, end: int) -> None:
        span.grow(end, self._text[span.end - self._first : end - self._first])

    def _let_go(self, safe: int) -> bytes:
        """What stands before a place, with a token for each secret."""
        pieces = []
        while (
            self._spans and self._spans[0].end <= safe and (self._open is None or self._spans[1:])
        ):
            span = self._spans.pop(0)
            pieces += [self._part(span.start), self._named(span)]
            self._gone = span.end
        if self._spans:
            safe = min(safe, self._spans[0].start)
        pieces.append(self._part(max(safe, self._gone)))
        keep = min(self._next - 2 * BEHIND, self._next_needed())
        self._text = self._text[max(keep - self._first, 0) :]
        self._first = max(keep, self._first)
        return b"".join(pieces)

    def _next_needed(self) -> int:
        """The first byte that has not been let go and is in no span yet."""
        return self._gone if not self._spans else self._next

    def _part(self, end: int) -> bytes:
        part = self._text[self._gone - self._first : end - self._first]
        self._gone = max(end, self._gone)
        return part

    def _named(self, span: _Span) -> bytes:
        identity = self._detector.identities.get(span.value)
        return self._token(span.kind, identity or identity_of(span.kind, span.value))
