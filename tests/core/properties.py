"""Properties that every transformer has, as functions that its own tests call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any

from msgspec.structs import replace

from stream.codec import Lines
from stream.pipeline import Batch, Counts, Transformer, batches_by_kind
from stream.records.control import EMISSIONS, LINES, TELEMETRY, kind_of_item
from stream.records.emission import RawEmission
from stream.records.kernel import RawEvent

_KINDS: dict[type, str] = {RawEmission: EMISSIONS, RawEvent: TELEMETRY}


def cut_into_batches(items: Sequence[Any], cuts: Iterable[int]) -> list[Sequence[Any]]:
    """The same items in several batches, empty ones among them. `Lines` stay `Lines`."""
    places = [0, *sorted(place % (len(items) + 1) for place in cuts), len(items)]
    return [_slice(items, start, end) for start, end in pairwise(places)]


def _slice(items: Sequence[Any], start: int, end: int) -> Sequence[Any]:
    if not isinstance(items, Lines):
        return items[start:end]
    offset = items.offset + sum(len(line) + 1 for line in items.items[:start])
    return Lines(items.items[start:end], items.source, items.number + start, offset)


def feed(
    transformer: Transformer, items: Sequence[Any], kind: str = LINES, *, but: Collection[str] = ()
) -> list[Any]:
    """What becomes of one batch, as one list, but for items of some kinds. As in a pipeline,
    control records among lines go past a transformer that does not take them."""
    if items and type(items[0]) in _KINDS:
        kind = _KINDS[type(items[0])]
    batches = [Batch(kind, items)]
    if kind == LINES and any(kind_of_item(item) != LINES for item in items):
        batches = batches_by_kind(items, kind_of_item)
    made = chain.from_iterable(
        transformer.feed(batch) if batch.kind in transformer.kinds else [batch] for batch in batches
    )
    return _items(made, but)


def finish(transformer: Transformer, *, but: Collection[str] = ()) -> list[Any]:
    return _items(transformer.finish(), but)


def _items(batches: Iterable[Batch[Any]], but: Collection[str]) -> list[Any]:
    return [item for made in batches if made.kind not in but for item in made.items]


def run_and_check(
    transformer: Transformer,
    batches: Iterable[Sequence[Any]],
    kind: str | None = None,
    *,
    but: Collection[str] = (),
) -> list[Any]:
    """What a transformer makes of the batches, as one list; its counts are checked."""
    out: list[Any] = []
    fed = 0
    for batch in batches:
        fed += len(batch)
        out += feed(transformer, batch, kind or next(iter(transformer.kinds)), but=but)
        assert transformer.counts.received == fed
    out += finish(transformer, but=but)
    assert transformer.counts.received == fed, (
        f"{transformer.name}: given {fed}, {transformer.counts}"
    )
    assert transformer.counts.balanced, f"{transformer.name}: {transformer.counts}"
    return out


def check_batch_independence(
    make_transformer: Callable[[], Transformer],
    items: Sequence[Any],
    cuts: Iterable[int],
    kind: str | None = None,
    *,
    but: Collection[str] = (),
) -> tuple[list[Any], Counts]:
    """However the items are cut into batches, the output and the counts are the same.

    `cuts` are any numbers, as Hypothesis makes them. Items in a `Lines` keep their places;
    a plain list whose transformer rejects something cannot have this property, since its
    rejects name the position in the batch. Items of the kinds `but` are left out. Returns what
    the transformer gave out in one batch, and its counts.
    """
    whole, parts, singles = make_transformer(), make_transformer(), make_transformer()
    assert whole is not parts, "a new transformer for each run"
    expected = run_and_check(whole, [items], kind, but=but)
    assert run_and_check(parts, cut_into_batches(items, cuts), kind, but=but) == expected
    assert parts.counts == whole.counts
    assert (
        run_and_check(singles, cut_into_batches(items, range(len(items))), kind, but=but)
        == expected
    )
    assert singles.counts == whole.counts
    return expected, replace(whole.counts)
