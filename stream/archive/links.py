"""The chain against the layers: which beginnings are what they were when they were written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from stream.archive.chain import LAYERS, Tally
from stream.archive.header import Fault
from stream.codec import DECODE_ERRORS, explain
from stream.records.runner import CHAIN_FILE, ChainLink

_decode = msgspec.json.Decoder(ChainLink).decode


class Links:
    """The judge of chain.ndjson. It holds a link for each quarter of a megabyte."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._links: list[tuple[int, ChainLink]] = []  #: and the line of each
        self._line = 0
        self.faults: list[tuple[int, Fault]] = []
        self.vouched: dict[str, ChainLink] = {}  #: by layer: its last link before any that is wrong

    def feed(self, data: bytes) -> None:
        self._held += data
        *lines, self._held = self._held.split(b"\n")
        for line in lines:
            self._line += 1
            try:
                link = _decode(line)
            except DECODE_ERRORS as error:
                self._find("contract.line", explain(error)[0])
                continue
            if msgspec.json.encode(link) != line:
                self._find("contract.line", "it is not written as links are")
            self._links.append((self._line, link))

    def finish(self) -> None:
        if self._held:
            self._line += 1
            self._find("integrity.torn", f"{len(self._held)} bytes follow the last line")

    def against(
        self, tallies: Mapping[str, Tally], *, is_whole: bool
    ) -> Iterator[tuple[int, Fault]]:
        """Every fault, with its line in the chain (0: in none)."""
        yield from self.faults
        reached: dict[str, int] = {}
        wrong: set[str] = set()
        for line, link in self._links:
            tally = tallies.get(link.layer)
            if tally is None:
                yield line, Fault("integrity.chain", f"{link.layer} is not there")
                continue
            before, reached[link.layer] = reached.get(link.layer, 0), link.bytes
            if reason := _unfit(link, tally, before):
                wrong.add(link.layer)
                yield line, Fault("integrity.chain", reason)
            elif link.layer not in wrong:
                self.vouched[link.layer] = link
        for name, tally in sorted(tallies.items()):
            if name in reached or name in LAYERS:
                yield from _unlinked(tally, reached.get(name, 0), is_whole)

    def _find(self, rule: str, message: str) -> None:
        self.faults.append((self._line, Fault(rule, message)))


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


def _unfit(link: ChainLink, tally: Tally, before: int) -> str:
    if link.bytes < before:
        return f"{link.layer}: {link.bytes} bytes after {before}"
    if link.bytes > tally.bytes:
        return f"{link.layer} has only {tally.bytes} bytes, and had {link.bytes}"
    due = {known.bytes: known for known in (*tally.links, tally.link())}
    known = due.get(link.bytes)
    if known is None:
        return f"{link.layer}: no link is due after {link.bytes} bytes"
    if known != link:
        return f"the first {link.bytes} bytes of {link.layer} are not what they were"
    return ""


def _unlinked(tally: Tally, reached: int, is_whole: bool) -> Iterator[tuple[int, Fault]]:
    """A whole run has every link; one that was cut off may have bytes after the last."""
    more = tally.bytes - reached
    if not more:
        return
    message = f"{tally.layer}: no link vouches for its last {more} bytes"
    yield 0, Fault("integrity.chain" if is_whole else "integrity.unlinked", message)
