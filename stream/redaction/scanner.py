"""One pass over a stream: it finds the words of the rules, and asks the rules about each of them.

The pass decides about a position only when everything that a rule may look at is there, and lets
bytes go only when no later position can reach back to them. Secrets in an encoded text are found as
well: percent-encoded, or in base64 as a whole.
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
    AskLater,
    Secret,
    SecretRule,
    forms_of_secret,
    secret_values,
)

STEP = 1 << 16  #: bytes that are worth a pass
MOST_VALUE = 1 << 16  #: bytes of a secret that tell it from others
MOST_PENDING = 4  #: positions that rules wait for: tables at a time

# Bytes in the order of how rare they are in source code and prose.
_RARE = (
    b"^~$!|;@&J?Q<Y}K{X`V%W*+ZjzHGUB>M][DP\\FqOCLSRA/NIv#kw97E8T6yx-543=gb:21h\"m)('u_0,.pcfdlo"
    b"niraste\t\n "
)
_WEIGHT = {byte: 1.08**rank for rank, byte in enumerate(_RARE)}
_EXACT_REACH = 64  #: a long value is looked for by a byte near its beginning
_MOST_SURROUNDINGS = 1 << 14  #: surroundings that are remembered
_SEEN = 24  #: bytes of a word that the pattern looks at

MakeToken = Callable[[str, bytes], bytes]
FindSecrets = Callable[[bytes], "list[Secret]"]  #: of a whole text, closed


# --- the stream ---------------------------------------------------------------------------------


class _Span(Struct):
    """A secret, by its positions in the stream."""

    kind: str
    start: int
    end: int
    value: bytes

    def extend(self, end: int, piece: bytes) -> None:
        """Add the piece of the secret that ends there; of a long one the beginning is enough."""
        self.value += piece[len(piece) - (end - self.end) :][: MOST_VALUE - len(self.value)]
        self.end = end


class StreamScan:
    """The state of one stream. Places are counted from its beginning."""

    def __init__(self, detector: SecretDetector, token: MakeToken) -> None:
        self._detector = detector
        self._token = token
        self._text = b""
        self._first = 0  # the position of the first byte of _text
        self._next = 0  # the first position that is not decided
        self._released = 0  # everything before this has been returned
        self._spans: list[_Span] = []  # found and not returned; in order, apart from each other
        self._open: re.Pattern[bytes] | None = None  # the last of them goes on until this
        self._hit = 0  # where the open one was seen
        self._pending: list[tuple[int, SecretRule]] = []  # later positions that rules wait for
        self._waiting: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> bytes:
        """Take in a chunk of the text, and return what is decided, without its secrets."""
        self._waiting.append(chunk)
        self._size += len(chunk)
        return self._scan_text(ended=False) if self._size >= STEP else b""

    def finish(self) -> bytes:
        """Return the rest of the stream, without its secrets."""
        return self._scan_text(ended=True)

    def _scan_text(self, ended: bool) -> bytes:
        """Look for secrets as far as the text that has come decides, and return it with tokens."""
        self._text = b"".join([self._text, *self._waiting])
        self._waiting, self._size = [], 0
        end = self._first + len(self._text)
        limit = end if ended else max(self._next, end - AHEAD)
        position = -1
        while self._open is not None or self._next < limit:
            if self._open is not None:
                if not self._close_open_secret(end, ended):
                    break
                continue
            if position < self._next:  # else it is still the first one
                hit = self._detector.pattern.search(self._text, self._next - self._first)
                position = hit.start() + self._first if hit else limit
            if self._pending and min(position for position, _ in self._pending) <= min(
                position, limit - 1
            ):
                self._ask_waiting_rule()
                continue
            if position >= limit:
                self._next = limit
                break
            self._next = position + 1
            self._ask_rules(position)
        return self._decided_text(end if ended else self._next - 2 * BEHIND)

    def _ask_rules(self, position: int) -> None:
        """Ask the rules of secrets about the word at a position."""
        covered = bool(self._spans) and position < self._spans[-1].end
        answers = self._detector.secrets_at_hit(self._text, position - self._first, covered)
        self._handle_answers(answers, position)

    def _ask_waiting_rule(self) -> None:
        """Ask the rule that waits for the first of the later positions."""
        position, rule = min(self._pending, key=lambda one: one[0])
        self._pending.remove((position, rule))
        if position >= self._next:  # else a secret covers it
            self._next = position
            self._handle_answers(rule(self._text, position - self._first), position)

    def _handle_answers(self, answers: Iterable[Secret | AskLater], position: int) -> None:
        """Keep what the rules answered: secrets, and positions at which they want to be asked
        again."""
        for answer in answers:
            if isinstance(answer, Secret):
                if self._open is None:
                    self._add_secret(answer, position)
            elif position < (later := answer.position + self._first):
                self._pending = [*self._pending[-(MOST_PENDING - 1) :], (later, answer.rule)]

    def _add_secret(self, found: Secret, position: int) -> None:
        """Note a secret that a rule found, joined with those that it overlaps."""
        start, end = found.start + self._first, found.end + self._first
        start = max(start, self._released)
        span = _Span(found.kind, start, end, self._text[start - self._first : end - self._first])
        while self._spans and start < self._spans[-1].end:
            span = self._joined_spans(self._spans.pop(), span)
        self._spans.append(span)
        if found.until is not None and span.end == end:
            self._open, self._hit = found.until, position

    def _joined_spans(self, earlier: _Span, later: _Span) -> _Span:
        """Join two secrets that overlap, or of which one is part of the other."""
        if earlier.start > later.start:
            before = later.value[: earlier.start - later.start]
            earlier = _Span(later.kind, later.start, earlier.end, before + earlier.value)
        if later.end > earlier.end:
            earlier.extend(later.end, later.value)
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
        span.extend(end, self._text[span.end - self._first : end - self._first])

    def _decided_text(self, safe: int) -> bytes:
        """Return what stands before a position, with a token for each secret."""
        pieces = []
        while self._spans and self._spans[0].end <= safe:
            if self._open is not None and len(self._spans) == 1:
                break
            span = self._spans.pop(0)
            pieces += [self._text_until(span.start), self._token_for_span(span)]
            self._released = span.end
        if self._spans:
            safe = min(safe, self._spans[0].start)
        pieces.append(self._text_until(max(safe, self._released)))
        needed = self._next if self._spans else self._released  # has not gone, and is in no span
        keep = min(self._next - 2 * BEHIND, needed)
        self._text = self._text[max(keep - self._first, 0) :]
        self._first = max(keep, self._first)
        return b"".join(pieces)

    def _text_until(self, end: int) -> bytes:
        part = self._text[self._released - self._first : end - self._first]
        self._released = max(end, self._released)
        return part

    def _token_for_span(self, span: _Span) -> bytes:
        identity = self._detector.identities.get(span.value)
        return self._token(span.kind, identity or secret_identity(span.kind, span.value))


def secret_identity(kind: str, value: bytes) -> bytes:
    """Return what is the same for a secret as it is and as it stands in JSON."""
    if kind == "private-key":
        lines = re.sub(rb"-----(?:BEGIN|END)[^-]*-----|\\+[nrt]", b"", value)
        return re.sub(rb"[^A-Za-z0-9/=]", b"", lines)
    return value.replace(b"\\", b"")


# --- the words of the rules ---------------------------------------------------------------------


def detector_for(environment: Mapping[str, str]) -> SecretDetector:
    """Return the detector for an environment; it takes a while to make, and does not change."""
    return _detector(tuple(secret_values(environment)))


@lru_cache(maxsize=4)
def _detector(secrets: tuple[str, ...]) -> SecretDetector:
    return SecretDetector(secrets)


class SecretDetector:
    """Finds the words of all rules with one pattern, and asks the rules about each of them."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self.identities: dict[bytes, bytes] = {}
        exact: list[Anchor] = []
        for value in secrets:
            identity = secret_identity("env", value.encode("utf-8", "surrogateescape"))
            new = [form for form in forms_of_secret(value) if form not in self.identities]
            self.identities.update(dict.fromkeys(new, identity))
            exact += [Anchor(form, _exact_rule(form)) for form in new]
        self.by_pivot: dict[int, list[tuple[int, Anchor]]] = {}
        words = [*(key.word for key in KEYS if not key.before), *_BLOCKS]
        every = [*exact, *_table_anchors(), *_encoded_anchors(words, self.find_secrets)]
        for anchor, position in zip(every, _pivot_places(every), strict=True):
            for byte in _byte_cases(anchor.word[position], anchor):
                self.by_pivot.setdefault(byte, []).append((position, anchor))
        self._known_words: dict[bytes, list[tuple[int, Anchor]]] = {}
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

    def find_secrets(self, text: bytes) -> list[Secret]:
        """Return what is secret in a whole text, which is not part of a stream."""
        closed = []
        for hit in self.pattern.finditer(text):
            for found in self.secrets_at_hit(text, hit.start(), covered=False):
                if isinstance(found, Secret):
                    end = found.until.search(text, found.end) if found.until else None
                    stop = end.start() if end else len(text) if found.until else found.end
                    closed.append(Secret(found.kind, found.start, stop))
        return closed

    def secrets_at_hit(self, text: bytes, hit: int, covered: bool) -> list[Secret | AskLater]:
        """Return what the rules find at a hit; rules that read names are not asked in a secret."""
        answers: list[Secret | AskLater] = []
        asked: list[tuple[int, SecretRule]] = []
        for position, anchor in self._words_at_hit(text[max(hit - 1, 0) : hit + 3], text[hit], hit):
            start = hit - position
            if start < 0 or (covered and anchor.then and anchor.any_case):
                continue
            if (start, anchor.rule) in asked:  # `pass` and `passw` have the same rule
                continue
            word = text[start : start + len(anchor.word)]
            if word == anchor.word or (anchor.any_case and word.lower() == anchor.word):
                asked.append((start, anchor.rule))
                answers += anchor.rule(text, start)
        return answers

    def _words_at_hit(self, around: bytes, byte: int, hit: int) -> list[tuple[int, Anchor]]:
        """Return the words that the bytes around a hit allow; few different ones surround hits."""
        every = self.by_pivot[byte]
        if hit == 0 or len(every) == 1:
            return every
        known = self._known_words.get(around)
        if known is None:
            if len(self._known_words) >= _MOST_SURROUNDINGS:
                self._known_words.clear()
            known = self._known_words[around] = [
                (position, anchor)
                for position, anchor in every
                if _fits_word(anchor, position - 1, around)
            ]
        return known


def _fits_word(anchor: Anchor, first: int, around: bytes) -> bool:
    """Return whether bytes from a position of the word on, or one before it, are the word's."""
    return all(
        byte in _byte_cases(anchor.word[first + n], anchor)
        for n, byte in enumerate(around)
        if 0 <= first + n < len(anchor.word)
    )


def _pattern_around_pivot(position: int, anchor: Anchor) -> tuple[list[bytes], bytes]:
    """Return a pattern for each byte that follows, and one for what is looked at last."""
    after = anchor.word[position + 1 :]
    before = b"".join(
        _byte_pattern(byte, anchor) for byte in anchor.word[max(position - _SEEN, 0) : position]
    )
    last = b"(?<=%s%s)" % (before, b"." * (1 + min(len(after), _SEEN))) if before else b""
    return [_byte_pattern(byte, anchor) for byte in after[:_SEEN]], last + (
        anchor.then if len(after) <= _SEEN else b""
    )


def _byte_pattern(byte: int, anchor: Anchor) -> bytes:
    both = b"".join(bytes((case,)) for case in sorted(_byte_cases(byte, anchor)))
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


def _exact_rule(form: bytes) -> SecretRule:
    return lambda text, start: [Secret("env", start, start + len(form))]


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

    def find_key(text: bytes, position: int) -> list[Secret | AskLater]:
        """Find the key that begins at a position."""
        found = pattern.match(text, position)
        if not found:
            return []
        start = position
        if before:
            lowest = max(position - LOOK, 0)
            start = max([lowest, *(end.end() for end in _COLOUR.finditer(text, lowest, position))])
            ahead = before.search(text[start:position])
            if not ahead:
                return []
            start += ahead.start()
        if key.word[:1].isalnum() and not before and not EDGE.match(text, position):
            return []
        if "secret" in pattern.groupindex:
            return [Secret(key.kind, *found.span("secret"))]
        long = len(found[0]) >= 512  # as far as the shape goes, and perhaps further
        return [Secret(key.kind, start, found.end(), _KEY_END if long else None)]

    return find_key


def _pivot_places(anchors: Sequence[Anchor]) -> list[int]:
    """Return for each word the position of the byte to look for first.

    They are chosen together, so that few bytes, and rare ones, are enough for all words.
    """
    options: list[set[frozenset[int]]] = [
        {frozenset(_byte_cases(byte, anchor)) for byte in set(anchor.word[:_EXACT_REACH])}
        for anchor in anchors
    ]
    chosen: set[int] = set()
    left = options
    while left := [ways for ways in left if not any(way <= chosen for way in ways)]:
        count = Counter(way for ways in left for way in ways)
        worth = {way: times / _pivot_cost(way - chosen) for way, times in count.items()}
        chosen.update(max((value, sorted(way)) for way, value in worth.items())[1])
    for byte in sorted(chosen, key=lambda byte: (-_pivot_cost(frozenset((byte,))), byte)):
        if all(any(way <= chosen - {byte} for way in ways) for ways in options):
            chosen.remove(byte)  # what was chosen later does without it
    return [_choose_pivot(anchor, chosen) for anchor in anchors]


def _byte_cases(byte: int, anchor: Anchor) -> set[int]:
    one = bytes((byte,))
    return {one.lower()[0], one.upper()[0]} if anchor.any_case else {byte}


def _pivot_cost(bytes_: frozenset[int]) -> float:
    return sum(_WEIGHT.get(byte, 1.0) for byte in bytes_)


def _choose_pivot(anchor: Anchor, chosen: set[int]) -> int:
    """Choose the byte by which a word is looked for; not its last one, if it can be: what follows
    is compared sooner than what is before."""
    beginning = anchor.word[:_EXACT_REACH]
    positions = [n for n in range(len(beginning)) if _byte_cases(beginning[n], anchor) <= chosen]
    last = len(anchor.word) - 1
    return min(
        positions,
        key=lambda n: (n == last, _pivot_cost(frozenset(_byte_cases(beginning[n], anchor))), n),
    )


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


def _encoded_anchors(words: Iterable[bytes], spans: FindSecrets) -> list[Anchor]:
    """Return the anchors of encoded texts. `words`: what a text in base64 may begin with."""

    def find_percent_encoded(text: bytes, position: int) -> Iterator[Secret | AskLater]:
        """Find secrets in a word of percent escapes, once for each word."""
        start = _token_start(text, position)
        if not _ESCAPE.search(text, start, position):  # the first of its word
            yield from find_in_token(text, start, position)

    def find_in_token(text: bytes, start: int, position: int) -> Iterator[Secret | AskLater]:
        """Find secrets in what a word of percent escapes means."""
        found = _TOKEN.match(text, start, position + _FAR)
        if not found or found.end() <= position:
            return
        is_cut = found.end() == position + _FAR
        plain, positions = _decoded_token(found[0])
        if len(plain) < _SHORTEST:
            return
        for span in spans(plain):
            begin, end = start + positions[span.start], start + positions[span.end]
            until = _TOKEN_END if is_cut and span.end == len(plain) else None
            yield Secret(span.kind, begin, end, until)
        if is_cut:
            yield AskLater(position + _STRIDE, continue_in_token)

    def continue_in_token(text: bytes, position: int) -> Iterator[Secret | AskLater]:
        """Go on with a word of percent escapes from a position."""
        return find_in_token(text, _token_start(text, position), position)

    def find_base64_encoded(text: bytes, position: int) -> Iterator[Secret]:
        """Find secrets in what base64 means."""
        found = EDGE.match(text, position) and _BASE64.match(text, position, position + _FAR)
        if not found:
            return
        if inner := spans(_decode_base64(found[0])):
            yield Secret(inner[0].kind, position, found.end(), _BASE64_END)

    forms = {_base64_beginning(word) for word in words}
    return [
        Anchor(b"%", find_percent_encoded, then=rb"(?=[0-9A-Fa-f]{2})"),
        *(Anchor(form, find_base64_encoded) for form in sorted(forms) if len(form) >= 4),
    ]


def _token_start(text: bytes, position: int) -> int:
    """Return where the word around a position begins."""
    found = _BACKWARDS.match(text[max(position - _BACK, 0) : position][::-1])
    return position - (found.end() if found else 0)


def _decoded_token(token: bytes) -> tuple[bytes, list[int]]:
    """Return the plain text, and where in the token each byte begins and the last one ends."""
    plain, position = bytearray(), 0
    positions: list[int] = []
    for found in _ESCAPE.finditer(token):
        plain += token[position : found.start()]
        positions += range(position, found.start())
        plain.append(32 if found[0] == b"+" else int(found[0][1:], 16))
        positions.append(found.start())
        position = found.end()
    plain += token[position:]
    positions += [*range(position, len(token)), len(token)]
    return bytes(plain), positions


def _base64_beginning(word: bytes) -> bytes:
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
