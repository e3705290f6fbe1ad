"""The chain against the layers: which beginnings are what they were when they were written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from stream.archive.book import Book
from stream.archive.chain import LAYERS, STEP, Tally
from stream.archive.header import Fault
from stream.codec import DECODE_ERRORS, Lines, LineSplitter, OverlongLine, TornLine, explain
from stream.records.runner import CHAIN_FILE, RUNNER_FILE, ChainLink

_CHAINED = (*LAYERS, RUNNER_FILE)  #: the last is written when all else is over
_decode = msgspec.json.Decoder(ChainLink).decode


class Links:
    """The judge of chain.ndjson. It holds a link for each quarter of a megabyte that there may be
    of layers, and no more."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._splitter = LineSplitter(book.source(CHAIN_FILE), book.limits.line)
        self._links: list[tuple[int, ChainLink]] = []  #: and the line of each
        self._most = book.limits.decoded // STEP + 2 * len(LAYERS)
        self.vouched: dict[str, ChainLink] = {}  #: by layer: its last link before any that is wrong

    def feed(self, data: bytes) -> None:
        self._judge(self._splitter.feed(data))

    def finish(self) -> None:
        self._judge(self._splitter.finish())

    def _judge(self, lines: Lines | None) -> None:
        for part in lines.parts() if lines else ():
            self._book.take_lines(len(part))
            for number, line in enumerate(part, part.number):
                if isinstance(line, TornLine):
                    self._book.torn[CHAIN_FILE] = number, len(line)
                elif isinstance(line, OverlongLine):
                    message = f"the line has more than {self._book.limits.line} bytes"
                    self._book.find("limit.line", message, CHAIN_FILE, number)
                else:
                    self._read(line, number)

    def _read(self, line: bytes, number: int) -> None:
        try:
            link = _decode(line)
        except DECODE_ERRORS as error:
            self._book.find("contract.line", explain(error)[0], CHAIN_FILE, number)
            return
        if msgspec.json.encode(link) != line:
            message = "it is not written as links are"
            self._book.find("contract.line", message, CHAIN_FILE, number)
        if len(self._links) < self._most:
            self._links.append((number, link))
        else:
            message = "more links than there can be layers"
            self._book.find("integrity.chain", message, CHAIN_FILE, number)

    def against(
        self, tallies: Mapping[str, Tally], *, is_whole: bool
    ) -> Iterator[tuple[int, Fault]]:
        """Every fault, with its line in the chain (0: in none)."""
        due = {name: _due(tallies[name]) for name in _CHAINED if name in tallies}
        reached: dict[str, int] = {}
        wrong: set[str] = set()
        for line, link in self._links:
            if link.layer not in due:
                yield line, Fault("integrity.chain", f"{link.layer} is not there, or no layer")
                continue
            before = reached.get(link.layer, -1)
            reached[link.layer] = link.bytes
            if reason := _unfit(link, due[link.layer], tallies[link.layer].bytes, before):
                wrong.add(link.layer)
                yield line, Fault("integrity.chain", reason)
            elif link.layer not in wrong:
                self.vouched[link.layer] = link
        for name in sorted(due.keys() & {*LAYERS, *reached}):
            yield from _unlinked(tallies[name], reached.get(name), is_whole)


def trusted(
    tallies: Mapping[str, Tally], vouched: Mapping[str, ChainLink], torn: Collection[str]
) -> str:
    """What of a run that was cut off is as it was written, by the last link of each layer."""
    links = {name: link for name, link in sorted(vouched.items()) if link.lines}
    if links:
        firsts = (f"the first {link.lines} lines of {name}" for name, link in links.items())
        text = f"{' and '.join(firsts)} are as they were written"
        later = sum(tallies[name].lines - link.lines for name, link in links.items())
        others = [name for name in LAYERS if name not in links and name in tallies]
        unknown = [f"the {later} after them"] if later else []
        unknown += [name for name in others if tallies[name].bytes]
        if unknown:
            text += f"; nothing vouches for {' and for '.join(unknown)}"
    else:
        why = "its chain has no link that fits" if CHAIN_FILE in tallies else "there is no chain"
        text = f"nothing vouches for what was recorded until then: {why}"
    if torn:
        text += f"; the last line of {' and of '.join(sorted(torn))} has no end"
    return text


def _due(tally: Tally) -> dict[int, ChainLink]:
    """The links that a layer must have, by how far they reach."""
    return {link.bytes: link for link in (*tally.links, tally.link())}


def _unfit(link: ChainLink, due: Mapping[int, ChainLink], size: int, before: int) -> str:
    if link.bytes <= before:
        return f"{link.layer}: {link.bytes} bytes after {before}"
    if link.bytes > size:
        return f"{link.layer} has only {size} bytes, and had {link.bytes}"
    known = due.get(link.bytes)
    if known is None:
        return f"{link.layer}: no link is due after {link.bytes} bytes"
    if known != link:
        return f"the first {link.bytes} bytes of {link.layer} are not what they were"
    return ""


def _unlinked(tally: Tally, reached: int | None, is_whole: bool) -> Iterator[tuple[int, Fault]]:
    """A whole run has every link; one that was cut off may have bytes after the last."""
    more = tally.bytes - (reached or 0)
    if not more and (reached is not None or not is_whole):
        return
    message = f"{tally.layer}: no link vouches for its last {more} bytes"
    yield 0, Fault("integrity.chain" if is_whole else "integrity.unlinked", message)
