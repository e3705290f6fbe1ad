"""One pass over a stream: it finds the words of the rules, and asks the rules about each of them.

The pass decides about a place only when everything that a rule may look at is there, and lets bytes
go only when no later place can reach back to them. Secrets in an encoded text are found as well:
percent-encoded, or in base64 as a whole.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64, b2a_base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from stream.redaction.patterns import CONTEXTS, KEYS, Key
from stream.redaction.values import (
    AHEAD,
    BEHIND,
    COLOUR,
    EDGE,
    LOOK,
    Anchor,
    Found,
    Next,
    SecretRule,
    forms_of_secret,
    secret_values,
)

STEP = 1 << 16  #: bytes that are worth a pass
MOST_VALUE = 1 << 16  #: bytes of a secret that tell it from others
MOST_PENDING = 4  #: places that rules wait for: tables at a time

# Bytes in the order of how rare they are in source code and prose.
_RARE = (
    b"^~$!|;@&J?Q<Y}K{X`V%W*+ZjzHGUB>M][DP\\FqOCLSRA/NIv#kw97E8T6yx-543=gb:21h\"m)('u_0,.pcfdlo"
    b"niraste\t\n "
)
_WEIGHT = {byte: 1.08**rank for rank, byte in enumerate(_RARE)}
_EXACT_REACH = 64  #: a long value is looked for by a byte near its beginning
_MOST_NEAR = 1 << 14  #: surroundings that are remembered
_SEEN = 24  #: bytes of a word that the pattern looks at

Token = Callable[[str, bytes], bytes]
Spans = Callable[[bytes], "list[Found]"]  #: of a whole text, closed


# --- the stream ---------------------------------------------------------------------------------


class _Span(Struct):
    """A secret, by its places in the stream."""

    kind: str
    start: int
    end: int
    value: bytes

    def grow(self, end: int, piece: bytes) -> None:
        """Add the piece that ends there; of a long secret the beginning is enough."""
        self.value += piece[len(piece) - (end - self.end) :][: MOST_VALUE - len(self.value)]
        self.end = end


class Scan:
    """The state of one stream. Places are counted from its beginning."""

    def __init__(self, detector: Detector, token: Token) -> None:
        self._detector = detector
        self._token = token
        self._text = b""
        self._first = 0  # the place of the first byte of _text
        self._next = 0  # the first place that is not decided
        self._released = 0  # everything before this has been returned
        self._spans: list[_Span] = []  # found and not returned; in order, apart from each other
        self._open: re.Pattern[bytes] | None = None  # the last of them goes on until this
        self._hit = 0  # where the open one was seen
        self._pending: list[tuple[int, SecretRule]] = []  # later places that rules wait for
        self._waiting: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> bytes:
        """Take in a chunk of the text, and return what is decided, without its secrets."""
        self._waiting.append(chunk)
        self._size += len(chunk)
        return self._scan_text(ended=False) if self._size >= STEP else b""

    def finish(self) -> bytes:
        """Return the rest."""
        return self._scan_text(ended=True)

    def _scan_text(self, ended: bool) -> bytes:
        """Look for secrets as far as the text that has come decides, and return it with tokens."""
        self._text = b"".join([self._text, *self._waiting])
        self._waiting, self._size = [], 0
        end = self._first + len(self._text)
        limit = end if ended else max(self._next, end - AHEAD)
        place = -1
        while self._open is not None or self._next < limit:
            if self._open is not None:
                if not self._close_open_secret(end, ended):
                    break
                continue
            if place < self._next:  # else it is still the first one
                hit = self._detector.pattern.search(self._text, self._next - self._first)
                place = hit.start() + self._first if hit else limit
            if self._pending and min(place for place, _ in self._pending) <= min(place, limit - 1):
                self._ask_pending()
                continue
            if place >= limit:
                self._next = limit
                break
            self._next = place + 1
            self._ask_rules(place)
        return self._release_text(end if ended else self._next - 2 * BEHIND)

    def _ask_rules(self, place: int) -> None:
        """Ask the rules of secrets about the word at a place."""
        covered = bool(self._spans) and place < self._spans[-1].end
        self._take_answers(
            self._detector.secrets_at_hit(self._text, place - self._first, covered), place
        )

    def _ask_pending(self) -> None:
        """Ask the rule that waits for the first of the later places."""
        place, rule = min(self._pending, key=lambda one: one[0])
        self._pending.remove((place, rule))
        if place >= self._next:  # else a secret covers it
            self._next = place
            self._take_answers(rule(self._text, place - self._first), place)

    def _take_answers(self, answers: Iterable[Found | Next], place: int) -> None:
        """Take what the rules answered: secrets, and places at which they want to be asked
        again."""
        for answer in answers:
            if isinstance(answer, Found):
                if self._open is None:
                    self._add_secret(answer, place)
            elif place < (later := answer.place + self._first):
                self._pending = [*self._pending[-(MOST_PENDING - 1) :], (later, answer.rule)]

    def _add_secret(self, found: Found, place: int) -> None:
        """Note a secret that a rule found, joined with those that it overlaps."""
        start, end = found.start + self._first, found.end + self._first
        start = max(start, self._released)
        value = self._text[start - self._first : end - self._first]
        span = _Span(found.kind, start, end, value)
        while self._spans and start < self._spans[-1].end:
            span = self._joined_spans(self._spans.pop(), span)
        self._spans.append(span)
        if found.until is not None and span.end == end:
            self._open, self._hit = found.until, place

    def _joined_spans(self, earlier: _Span, later: _Span) -> _Span:
        """Join two that overlap, or of which one is part of the other."""
        if earlier.start > later.start:
            before = later.value[: earlier.start - later.start]
            earlier = _Span(later.kind, later.start, earlier.end, before + earlier.value)
        if later.end > earlier.end:
            earlier.grow(later.end, later.value)
        return earlier

    def _close_open_secret(self, end: int, ended: bool) -> bool:
        """Go on in the open secret, and return whether its end is known."""
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
            self._extend_secret(span, sure)
            self._next = max(self._next, sure)
            return False
        self._extend_secret(span, closing)
        self._open = None
        self._next = max(self._hit + 1, closing - BEHIND)
        return True

    def _extend_secret(self, span: _Span, end: int) -> None:
        span.grow(end, self._text[span.end - self._first : end - self._first])

    def _release_text(self, safe: int) -> bytes:
        """Return what stands before a place, with a token for each secret."""
        pieces = []
        while self._spans and self._spans[0].end <= safe:
            if self._open is not None and len(self._spans) == 1:
                break
            span = self._spans.pop(0)
            pieces += [self._part(span.start), self._token_for_span(span)]
            self._released = span.end
        if self._spans:
            safe = min(safe, self._spans[0].start)
        pieces.append(self._part(max(safe, self._released)))
        needed = self._next if self._spans else self._released  # has not gone, and is in no span
        keep = min(self._next - 2 * BEHIND, needed)
        self._text = self._text[max(keep - self._first, 0) :]
        self._first = max(keep, self._first)
        return b"".join(pieces)

    def _part(self, end: int) -> bytes:
        part = self._text[self._released - self._first : end - self._first]
        self._released = max(end, self._released)
        return part

    def _token_for_span(self, span: _Span) -> bytes:
        identity = self._detector.identities.get(span.value)
        return self._token(span.kind, identity or identity_of(span.kind, span.value))


def identity_of(kind: str, value: bytes) -> bytes:
    """Return what is the same for a secret as it is and as it stands in JSON."""
    if kind == "private-key":
        lines = re.sub(rb"-----(?:BEGIN|END)[^-]*-----|\\+[nrt]", b"", value)
        return re.sub(rb"[^A-Za-z0-9/=]", b"", lines)
    return value.replace(b"\\", b"")


# --- the words of the rules ---------------------------------------------------------------------


def detector_for(environment: Mapping[str, str]) -> Detector:
    """Return the detector for an environment; it takes a while to make, and does not change."""
    return _detector(tuple(secret_values(environment)))


@lru_cache(maxsize=4)
def _detector(secrets: tuple[str, ...]) -> Detector:
    return Detector(secrets)


class Detector:
    """Finds the words of all rules with one pattern, and asks the rules about each of them."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self.identities: dict[bytes, bytes] = {}
        exact: list[Anchor] = []
        for value in secrets:
            identity = identity_of("env", value.encode("utf-8", "surrogateescape"))
            new = [form for form in forms_of_secret(value) if form not in self.identities]
            self.identities.update(dict.fromkeys(new, identity))
            exact += [Anchor(form, _exact(form)) for form in new]
        self.by_pivot: dict[int, list[tuple[int, Anchor]]] = {}
        words = [*(key.word for key in KEYS if not key.before), *_BLOCKS]
        every = [*exact, *_table_anchors(), *_encoded_anchors(words, self.spans)]
        for anchor, place in zip(every, _pivot_places(every), strict=True):
            for byte in _cases(anchor.word[place], anchor):
                self.by_pivot.setdefault(byte, []).append((place, anchor))
        self._near: dict[bytes, list[tuple[int, Anchor]]] = {}
        self.pattern = re.compile(
            b"|".join(map(self._pivot_pattern, sorted(self.by_pivot))), re.DOTALL
        )

    def _pivot_pattern(self, byte: int) -> bytes:
        """Return the pattern of all words that are looked for by this byte.

        The byte comes first, so that the engine passes over everything else quickly.
        """
        return re.escape(bytes((byte,))) + _word_alternation(
            [_pattern_around_pivot(*one) for one in self.by_pivot[byte]]
        )

    def spans(self, text: bytes) -> list[Found]:
        """Return what is secret in a whole text, which is not part of a stream."""
        closed = []
        for hit in self.pattern.finditer(text):
            for found in self.secrets_at_hit(text, hit.start(), covered=False):
                if isinstance(found, Found):
                    end = found.until.search(text, found.end) if found.until else None
                    stop = end.start() if end else len(text) if found.until else found.end
                    closed.append(Found(found.kind, found.start, stop))
        return closed

    def secrets_at_hit(self, text: bytes, hit: int, covered: bool) -> list[Found | Next]:
        """Return what the rules find at a hit; rules that read names are not asked in a secret."""
        answers: list[Found | Next] = []
        asked: list[tuple[int, SecretRule]] = []
        for place, anchor in self._words_at_hit(text[max(hit - 1, 0) : hit + 3], text[hit], hit):
            start = hit - place
            if start < 0 or (covered and anchor.then and anchor.any_case):
                continue
            if (start, anchor.rule) in asked:  # `pass` and `passw` have the same rule
                continue
            word = text[start : start + len(anchor.word)]
            if word == anchor.word or (anchor.any_case and word.lower() == anchor.word):
                asked.append((start, anchor.rule))
                answers += anchor.rule(text, start)
        return answers

    def _words_at_hit(self, near: bytes, byte: int, hit: int) -> list[tuple[int, Anchor]]:
        """Return the words that the bytes around a hit allow; few different ones surround hits."""
        every = self.by_pivot[byte]
        if hit == 0 or len(every) == 1:
            return every
        known = self._near.get(near)
        if known is None:
            if len(self._near) >= _MOST_NEAR:
                self._near.clear()
            known = self._near[near] = [
                (place, anchor) for place, anchor in every if _fits_word(anchor, place - 1, near)
            ]
        return known


def _fits_word(anchor: Anchor, first: int, near: bytes) -> bool:
    """Return whether bytes from a place of the word on, or one before it, are the word's."""
    return all(
        byte in _cases(anchor.word[first + n], anchor)
        for n, byte in enumerate(near)
        if 0 <= first + n < len(anchor.word)
    )


def _pattern_around_pivot(place: int, anchor: Anchor) -> tuple[list[bytes], bytes]:
    """Return a pattern for each byte that follows, and one for what is looked at last."""
    after = anchor.word[place + 1 :]
    before = b"".join(_one(byte, anchor) for byte in anchor.word[max(place - _SEEN, 0) : place])
    last = b"(?<=%s%s)" % (before, b"." * (1 + min(len(after), _SEEN))) if before else b""
    return [_one(byte, anchor) for byte in after[:_SEEN]], last + (
        anchor.then if len(after) <= _SEEN else b""
    )


def _one(byte: int, anchor: Anchor) -> bytes:
    both = b"".join(bytes((case,)) for case in sorted(_cases(byte, anchor)))
    return b"[%s]" % both if len(both) > 1 else re.escape(both)


def _word_alternation(words: Sequence[tuple[list[bytes], bytes]]) -> bytes:
    """Return an alternation in which no common beginning is tried twice."""
    ends = {last for after, last in words if not after}
    heads: dict[bytes, list[tuple[list[bytes], bytes]]] = {}
    for after, last in words:
        if after:
            heads.setdefault(after[0], []).append((after[1:], last))
    if b"" in ends:
        return b""
    ways = [head + _word_alternation(inner) for head, inner in sorted(heads.items())] + sorted(ends)
    return ways[0] if len(ways) == 1 else b"(?:" + b"|".join(ways) + b")"


def _exact(form: bytes) -> SecretRule:
    return lambda text, start: [Found("env", start, start + len(form))]


_BLOCKS = (b"-----BEGIN ", b"eyJ")
_KEY_END = re.compile(rb"[^A-Za-z0-9_-]")


def _table_anchors() -> Iterator[Anchor]:
    """Yield the words that the tables of secrets are looked up by, each with its rule."""
    for key in KEYS:
        unnamed = key.shape.replace(b"(?P<secret>", b"(?:")
        yield Anchor(key.word, _key_rule(key), then=b"(?=%s)" % unnamed)
    for row in CONTEXTS:
        yield from (Anchor(word, row.rule, row.any_case, row.then) for word in row.words)


_COLOUR = re.compile(COLOUR)


def _key_rule(key: Key) -> SecretRule:
    """Return the rule that finds a key by its own form."""
    pattern = re.compile(re.escape(key.word) + key.shape)
    before = re.compile(key.before) if key.before else None

    def rule(text: bytes, place: int) -> list[Found | Next]:
        """Find the key that begins at a place."""
        found = pattern.match(text, place)
        if not found:
            return []
        start = place
        if before:
            start = max(place - LOOK, 0)
            start = max(start, *(0, *(end.end() for end in _COLOUR.finditer(text, start, place))))
            ahead = before.search(text[start:place])
            if not ahead:
                return []
            start += ahead.start()
        if key.word[:1].isalnum() and not before and not EDGE.match(text, place):
            return []
        if "secret" in pattern.groupindex:
            return [Found(key.kind, *found.span("secret"))]
        long = len(found[0]) >= 512  # as far as the shape goes, and perhaps further
        return [Found(key.kind, start, found.end(), _KEY_END if long else None)]

    return rule


def _pivot_places(anchors: Sequence[Anchor]) -> list[int]:
    """Return for each word the place of the byte to look for first.

    They are chosen together, so that few bytes, and rare ones, are enough for all words.
    """
    options: list[set[frozenset[int]]] = [
        {frozenset(_cases(byte, anchor)) for byte in set(anchor.word[:_EXACT_REACH])}
        for anchor in anchors
    ]
    chosen: set[int] = set()
    left = options
    while left := [ways for ways in left if not any(way <= chosen for way in ways)]:
        count = Counter(way for ways in left for way in ways)
        worth = {way: times / _cost(way - chosen) for way, times in count.items()}
        chosen.update(max((value, sorted(way)) for way, value in worth.items())[1])
    for byte in sorted(chosen, key=lambda byte: (-_cost(frozenset((byte,))), byte)):
        if all(any(way <= chosen - {byte} for way in ways) for ways in options):
            chosen.remove(byte)  # what was chosen later does without it
    return [_choose_pivot(anchor, chosen) for anchor in anchors]


def _cases(byte: int, anchor: Anchor) -> set[int]:
    one = bytes((byte,))
    return {one.lower()[0], one.upper()[0]} if anchor.any_case else {byte}


def _cost(bytes_: frozenset[int]) -> float:
    return sum(_WEIGHT.get(byte, 1.0) for byte in bytes_)


def _choose_pivot(anchor: Anchor, chosen: set[int]) -> int:
    """Choose the byte by which a word is looked for; not its last one, if it can be: what follows
    is compared sooner than what is before."""
    near = anchor.word[:_EXACT_REACH]
    places = [n for n in range(len(near)) if _cases(near[n], anchor) <= chosen]
    last = len(anchor.word) - 1
    return min(places, key=lambda n: (n == last, _cost(frozenset(_cases(near[n], anchor))), n))


# --- encoded texts ------------------------------------------------------------------------------

_FAR = AHEAD - 2 * LOOK
_BACK = 512
_STRIDE = 1024
_SHORTEST = 12  #: bytes of a word that may have a secret in it
_TOKEN = re.compile(rb"[\w%.~+*!(),;:-]+")
_TOKEN_END = re.compile(rb"[^\w%.~+*!(),;:-]")
_BACKWARDS = re.compile(rb"[\w%.~+*!(),;-]*")
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}|\+")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{12,}={0,2}")
_BASE64_END = re.compile(rb"[^A-Za-z0-9+/_=-]")


def _encoded_anchors(words: Iterable[bytes], spans: Spans) -> list[Anchor]:
    """Return the anchors of encoded texts. `words`: what a text in base64 may begin with."""

    def percent(text: bytes, place: int) -> Iterator[Found | Next]:
        """Find secrets in a word of percent escapes, once for each word."""
        start = _token_start(text, place)
        if not _ESCAPE.search(text, start, place):  # the first of its word
            yield from view(text, start, place)

    def view(text: bytes, start: int, place: int) -> Iterator[Found | Next]:
        """Find secrets in what a word of percent escapes means."""
        found = _TOKEN.match(text, start, place + _FAR)
        if not found or found.end() <= place:
            return
        is_cut = found.end() == place + _FAR
        plain, places = _decoded_token(found[0])
        if len(plain) < _SHORTEST:
            return
        for span in spans(plain):
            end = start + places[span.end]
            is_open = is_cut and span.end == len(plain)
            yield Found(span.kind, start + places[span.start], end, _TOKEN_END if is_open else None)
        if is_cut:
            yield Next(place + _STRIDE, again)

    def again(text: bytes, place: int) -> Iterator[Found | Next]:
        """Go on with a word of percent escapes from a place."""
        return view(text, _token_start(text, place), place)

    def base64(text: bytes, place: int) -> Iterator[Found]:
        """Find secrets in what base64 means."""
        found = EDGE.match(text, place) and _BASE64.match(text, place, place + _FAR)
        if not found:
            return
        inner = spans(_decode_base64(found[0]))
        if inner:
            yield Found(inner[0].kind, place, found.end(), _BASE64_END)

    forms = {_beginning(word) for word in words}
    return [
        Anchor(b"%", percent, then=rb"(?=[0-9A-Fa-f]{2})"),
        *(Anchor(form, base64) for form in sorted(forms) if len(form) >= 4),
    ]


def _token_start(text: bytes, place: int) -> int:
    """Return where the word around a place begins."""
    found = _BACKWARDS.match(text[max(place - _BACK, 0) : place][::-1])
    return place - (found.end() if found else 0)


def _decoded_token(token: bytes) -> tuple[bytes, list[int]]:
    """Return the plain text, and where in the token each byte begins and the last one ends."""
    plain, place = bytearray(), 0
    places: list[int] = []
    for found in _ESCAPE.finditer(token):
        plain += token[place : found.start()]
        places += range(place, found.start())
        plain.append(32 if found[0] == b"+" else int(found[0][1:], 16))
        places.append(found.start())
        place = found.end()
    plain += token[place:]
    places += [*range(place, len(token)), len(token)]
    return bytes(plain), places


def _beginning(word: bytes) -> bytes:
    """Return the characters of base64 that a word at the beginning decides alone."""
    return b2a_base64(word, newline=False)[: len(word) * 8 // 6]


def _decode_base64(text: bytes) -> bytes:
    """Decode base64, also the URL form of it, with or without padding; empty where it is none."""
    text = text.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    whole = len(text) // 4 * 4
    rest = text[whole:]
    padded = rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b""
    try:
        return a2b_base64(text[:whole] + padded)
    except Error:
        return b""
