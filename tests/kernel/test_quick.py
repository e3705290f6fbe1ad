"""The short way from the ring to a line, held against the long one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stream.evidence.surface import Surface
from stream.records.control import TELEMETRY
from stream.sources.kernel.decode import RingDecoder
from stream.transformers.normalize import Normalize
from tests.core.laws import feed
from tests.kernel.test_decode import record, walked
from tests.sweeping import thorough

FOLDERS: tuple[list[bytes], ...] = (
    [b"usr", b"lib"],
    [b"proc", b"1"],
    [b"home", b"me", b"node_modules", b"x"],
    [b"home", b"me"],
    [b"etc"],
    [],
    [b'od"d', b"b\\s"],
    [b"\xff\xfe"],
    ["é".encode(), b"\n"],
    [b"target", b"debug"],
)
NAMES = (b"a", b"pyvenv.cfg", b"x.so.1", b'q"', b"b\\", b"\xff", "é".encode(), b"\x01", b"passwd")
CALLS = st.sampled_from(("open", "openat", "openat", "openat", "creat", "openat2"))
FLAGS = (0, 0, 1, 2, 3, 0o101, 0o2101, 0o1102, 0o20200002, 0o2000000, 0o10000000, 0o30000000)


@st.composite
def opens(draw: st.DrawFn) -> bytes:
    folder = draw(st.sampled_from(FOLDERS))
    name = draw(st.sampled_from(NAMES))
    straight = b"/" + b"/".join([*folder, name])
    path = draw(
        st.sampled_from((straight, straight, straight, name, b"/proc/self/root" + straight))
    )
    ret = draw(st.sampled_from((3, 0, 17, -2, -13)))
    return record(
        draw(CALLS),
        path,
        walked([*folder, name]) if ret >= 0 else b"",
        flags=draw(st.sampled_from((3, 3, 3, 2, 1, 3 | 64, 3 | 128, 3 | 1024, 3 | 1024))),
        ret=ret,
        opened=draw(st.sampled_from(FLAGS)),
        mode=draw(st.sampled_from((0, 0o644, 0o170777))),
        resolve=draw(st.sampled_from((0, 0, 8, 0x10))),
    )


@st.composite
def misses(draw: st.DrawFn) -> bytes:
    """What failed: by a path of any form, from a folder or from nowhere."""
    base = draw(st.sampled_from((None, *FOLDERS)))
    words = st.lists(st.sampled_from((b"", b".", b"..", b"sub", b"proc", b"dev", b"1", *NAMES)))
    return record(
        draw(CALLS),
        b"/".join(draw(words)),
        b"",
        b"" if base is None else walked(base),
        ret=draw(st.sampled_from((-2, -2, -20, -13, -4095, -4096, -512, -516))),
        opened=draw(st.sampled_from(FLAGS)),
        resolve=draw(st.sampled_from((0, 0, 8, 0x10))),
    )


def normalized(batches: list[Any]) -> tuple[list[Any], Any, Any]:
    surface = Surface()
    stage = Normalize("r", surface=surface, keeps_times=True)
    out = [item for batch in batches for item in stage.feed(batch)]
    books = (stage.counts, stage.dropped, stage.events, stage.take_times().tolist())
    return out, books, (surface.surface("r"), surface.paths(), surface.failed_paths())


@thorough(300)
@given(st.lists(opens() | misses(), max_size=20))
def test_both_ways_lead_to_the_same_lines(records: list[bytes]) -> None:
    batch, _ = RingDecoder().decode(b"".join(records))
    assert normalized([batch]) == normalized([list(batch)])


def test_whoever_reached_it_before_a_read_of_noise_is_noise() -> None:
    """O_PATH with O_TMPFILE reads nothing, and goes by the way of a read."""
    path, names = b"/usr/lib/x", walked([b"usr", b"lib", b"x"])
    first = record("openat", path, names, opened=0o30000000, resolve=0)
    batch, _ = RingDecoder().decode(first + record("openat", path, names, opened=0, resolve=0))
    assert normalized([batch]) == normalized([list(batch)])
    assert normalized([batch])[1][1] == {"loader": 1}


def test_folders_that_cannot_be_told_are_not_kept_for_ever() -> None:
    stage = Normalize("r", surface=Surface())
    for start in range(0, 120_000, 20_000):
        some = [
            record("openat", b"/proc/%d/x" % number, ret=-2)
            for number in range(start, start + 20_000)
        ]
        batch, _ = RingDecoder().decode(b"".join(some))
        feed(stage, batch, TELEMETRY)
    assert stage._quick is not None
    assert 0 < sum(map(len, stage._quick._missed.values())) <= 100_000


def test_what_is_remembered_is_bounded() -> None:
    """Ways to open one file as well: a program may make up as many flags as it likes."""
    stage = Normalize("r", surface=Surface())
    path, names = b"/etc/x", walked([b"etc", b"x"])
    for start in range(0, 120_000, 20_000):
        flags = range(start, start + 20_000)
        some = [record("openat", path, names, flags=3, ret=3, opened=one << 3) for one in flags]
        batch, _ = RingDecoder().decode(b"".join(some))
        feed(stage, batch, TELEMETRY)
    assert stage._quick is not None
    places = stage._quick._reached.values()
    assert stage.events == 120_000
    assert 0 < sum(len(place.ended) for place in places) <= 100_000
