"""`stream archive -`: each line of a mixed stream to its file, and nothing held."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.archive.chain import LAYERS as LAYER_FILES
from stream.archive.writer import FilePart
from stream.boundary.descriptors import find_boundaries
from stream.codec import Lines
from stream.records.artifacts import (
    ARCHIVE_MANIFEST,
    CHAIN_FILE,
    COMPANION_FILE,
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    RUNNER_FILE,
    SDK_FILE,
    SURFACE_FILE,
)
from stream.records.control import Gap, Reject
from stream.records.kernel import RawCapture
from stream.transformers.route import FeedCounts, Route
from stream.verify.session import verify
from tests.archive.samples import (
    RUN,
    Files,
    encode,
    find_error_rules,
    make_artifacts,
    make_layers,
    make_open_event,
    make_small_files,
    ndjson,
    read_tar,
    read_tar_items,
)
from tests.archive.test_writing import ROUND
from tests.cli.command import STREAM, Place
from tests.cli.conftest import place
from tests.core.properties import feed
from tests.evidence.raw import raw, raw_open
from tests.recorder.runs import observe
from tests.sweeping import every
from tests.transformers.cells import PLAIN
from tests.transformers.runs import encode_run, good_run

__all__ = ["place"]


def split_lines(files: Files) -> list[bytes]:
    return [line for data in files.values() for line in data.splitlines()]


_OTHER = good_run()[0]["session"]["run_id"].encode()
EVENTS = [line.replace(_OTHER, RUN.encode()) for line in encode_run(good_run())]
LINES = [*split_lines({**make_layers(), **make_artifacts()}), *EVENTS, b"", b"x"]


def archive_stream(place: Place, data: bytes, *words: str) -> tuple[int, str, Files]:
    target = place.root / "a.tar.gz"
    done = place.stream("archive", "-", "-o", target, "--force", *words, data=data)
    files = dict(read_tar_items(read_tar(target))) if target.exists() else {}
    assert not [*place.root.glob("*.partial")]
    return done.code, done.err, files


def test_every_line_to_its_file_byte_for_byte(place: Place) -> None:
    given = {**make_layers(), **make_artifacts()}
    lines = [*split_lines(given), *EVENTS, PLAIN]
    code, message, files = archive_stream(place, b"\n".join((*lines, b"")))
    assert code == 0, message
    for name, data in given.items():
        assert files[name] == data, name
    assert files["events.jsonl"].splitlines() == EVENTS
    assert files["boundary.ndjson"].splitlines() == [PLAIN]
    assert files.keys() == {ARCHIVE_MANIFEST, *given, "events.jsonl", "boundary.ndjson"}
    assert find_error_rules(place.root / "a.tar.gz") == set()


def test_the_order_among_files_does_not_matter(place: Place) -> None:
    by_file = [data.splitlines() for data in {**make_layers(), **make_artifacts()}.values()]
    chance = random.Random(1)
    made = []
    for _ in range(2):
        queues = [[*lines] for lines in by_file]
        mixed = []
        while queues := [queue for queue in queues if queue]:
            mixed.append(chance.choice(queues).pop(0))
        assert archive_stream(place, b"\n".join((*mixed, b"")))[0] == 0
        made.append((place.root / "a.tar.gz").read_bytes())
    assert made[0] == made[1]


def test_nothing_around_it_makes_another_archive(place: Place, tmp_path: Path) -> None:
    data = b"\n".join((*split_lines(make_layers()), encode(make_counters()), b""))
    made = set()
    for number, (zone, mask, seed, locale) in enumerate(ROUND):
        target = tmp_path / f"{number}.tar.gz"
        env = {**place.env, "TZ": zone, "PYTHONHASHSEED": seed, "LC_ALL": locale}
        argv = [
            "sh",
            "-c",
            f'umask {mask}; exec "$@"',
            "sh",
            STREAM,
            "archive",
            "-",
            "-o",
            str(target),
        ]
        subprocess.run(argv, input=data, env=env, check=True, capture_output=True)
        made.add(target.read_bytes())
        assert find_error_rules(target) == set()
    assert len(made) == 1


def test_bad_lines_are_rejected_and_counted(place: Place) -> None:
    bad = [b"nonsense", b'{"schema":"other.v1"}', b"[]", b'{"x":1}', make_bad_event()]
    surface = make_artifacts()[SURFACE_FILE]
    lines = [*split_lines({**make_layers(), **make_artifacts()}), *bad, surface]
    reject = place.root / "rejects.ndjson"
    code, message, files = archive_stream(place, b"\n".join(lines), "--reject", str(reject))
    assert code == 1
    findings = [json.loads(line) for line in reject.read_bytes().splitlines()]
    assert len(findings) == 6
    assert findings[-1]["reason"] == (
        "a second assay.runner.capability_surface.v0: an archive has one"
    )
    assert "6 rejected" in message
    assert files[KERNEL_FILE] == make_layers()[KERNEL_FILE]
    code, message, _ = archive_stream(place, b"\n".join(lines))
    assert code == 1
    assert "names no contract: it has no place in an archive" in message


def make_bad_event() -> bytes:
    return encode(make_open_event(7, "/x")).replace(b'"seq":7', b'"seq":-7')


def test_links_of_a_chain_are_left_out(place: Place) -> None:
    files = make_small_files(place.root / "run")
    data = b"\n".join((*split_lines({**make_layers(), **make_artifacts()}), files[CHAIN_FILE]))
    code, message, made = archive_stream(place, data)
    assert code == 0
    assert CHAIN_FILE not in made
    assert "6 filtered" in message


def test_what_is_not_in_the_stream_is_an_empty_layer(place: Place) -> None:
    code, _, files = archive_stream(place, ndjson(make_open_event(0, "/work/a")))
    assert code == 0
    assert [files[name] for name in (SDK_FILE, DETAIL_FILE, RUNNER_FILE)] == [b"", b"", b""]
    assert find_error_rules(place.root / "a.tar.gz") == set()


def test_without_artifacts(place: Place) -> None:
    """They are made from the layers; without the feed's counters nothing is called complete."""
    code, message, files = archive_stream(place, make_layers()[KERNEL_FILE])
    assert code == 0, message
    assert b'"kernel_layer":"complete"' not in files[HEALTH_FILE]
    assert json.loads(files[SURFACE_FILE])["filesystem_paths"] == ["/work/a", "/work/b"]
    assert find_error_rules(place.root / "a.tar.gz") == set()


RING_FULL = Gap(source="ebpf", lost=3420, reason="the ring was full", unit="events")


@pytest.mark.parametrize(
    ("gaps", "drops"),
    [
        ([RING_FULL], 3420),
        ([RING_FULL, RING_FULL], 6840),
        ([RawCapture(feed="ebpf", got=3, dropped=3420, seen=3423), RING_FULL], 3420),
        ([RawCapture(feed="ebpf", got=3, seen=3), RING_FULL], 3420),
        ([RawCapture(feed="ebpf", got=3, dropped=9999, seen=10002), RING_FULL], 9999),
        ([RawCapture(feed="strace", got=3, seen=3, unparsed=3420), RING_FULL], 0),
    ],
)
def test_losses_of_the_gaps_are_never_zeroed(place: Place, gaps: list[object], drops: int) -> None:
    data = make_layers()[KERNEL_FILE] + make_layers()[DETAIL_FILE] + ndjson(*gaps)
    code, message, files = archive_stream(place, data)
    assert code == 0, message
    health = json.loads(files[HEALTH_FILE])
    assert (health["ringbuf_drops"], health["kernel_layer"]) == (drops, "partial_ringbuf_drops")
    findings = verify(place.root / "a.tar.gz").findings
    assert [item.message for item in findings if item.rule == "contract.health"] == []


def test_gaps_alone_are_a_capture(place: Place) -> None:
    code, _, files = archive_stream(place, ndjson(RING_FULL), "--run-id", RUN)
    assert (code, json.loads(files[HEALTH_FILE])["ringbuf_drops"]) == (0, 3420)
    assert find_error_rules(place.root / "a.tar.gz") == set()


REJECT = Reject(stage="normalize", source="x", line=1, offset=0, sha256="0" * 64, reason="x")


def make_counters(**counts: Any) -> RawCapture:
    known = {"got": 3, "seen": 3, "scopes": {"both": 3}, **counts}
    return RawCapture(feed="ebpf", cgroup="clean", uring="unused", ring_bytes=16 << 20, **known)


LAYERS = make_layers()[KERNEL_FILE] + make_layers()[DETAIL_FILE]
MORE: dict[str, Any] = {"got": 9, "seen": 9, "scopes": {"both": 9}}


@pytest.mark.parametrize("word", ["filtered", "aside"])
def test_the_counters_include_what_was_left_out_before(place: Place, word: str) -> None:
    """Nothing at all, where all events are there; else by the rules that a normalizer counts."""
    for findings in (
        make_counters(),
        make_counters(**MORE, filtered={"loader": 4}, aside={"wrote": 2}),
    ):
        code, _, files = archive_stream(place, LAYERS + ndjson(findings))
        companion = json.loads(files[COMPANION_FILE])
        assert (code, companion[word]) == (0, getattr(findings, word) or {})
        assert json.loads(files[HEALTH_FILE])["kernel_layer"] == "complete"
        assert find_error_rules(place.root / "a.tar.gz") == set()


CUT = LAYERS.split(b"\n", 1)[1].replace(b'"seq":1', b'"seq":0').replace(b'"seq":2', b'"seq":1')


@pytest.mark.parametrize(
    ("data", "why", "exit_code"),
    [
        (LAYERS + ndjson(make_counters(**MORE)), "of which 3 are in the stream and 0", 0),
        (CUT + ndjson(make_counters()), "of which 2 are in the stream and 0", 0),
        (CUT + ndjson(make_counters(filtered={}, aside={})), "of which 2 are in the stream", 0),
        (make_layers()[KERNEL_FILE] + ndjson(make_counters()), "the details of 1 event are", 0),
        (
            LAYERS + make_bad_event() + b"\n" + ndjson(make_counters()),
            "1 line of the stream was rejected",
            1,
        ),
        (LAYERS + ndjson(make_counters(), REJECT), "1 line of the stream was rejected", 1),
        (LAYERS + ndjson(make_counters(), RING_FULL), "0 lost events, and the gaps 3420", 0),
    ],
)
def test_what_is_missing_is_never_complete(
    place: Place, data: bytes, why: str, exit_code: int
) -> None:
    code, _, files = archive_stream(place, data)
    assert code == exit_code
    health = json.loads(files[HEALTH_FILE])
    assert health["kernel_layer"] == "partial_ringbuf_drops"
    assert health["cgroup_correlation"] == "partial"  # it was clean, for all that came
    assert [note for note in health["notes"] if "unknown_loss" in note and why in note]
    assert find_error_rules(place.root / "a.tar.gz") == set()


WHOLE = b"".join(data for data in make_layers().values())
UNHELD: dict[str, tuple[bytes, str]] = {
    "a companion of more events": (
        CUT + make_artifacts()[COMPANION_FILE],
        "it would not verify: companion.json: $.capture.scopes: 3 events, and 2 lines and 0 that",
    ),
    "a companion, and a line less": (
        WHOLE + make_artifacts()[COMPANION_FILE] + b"nonsense\n",
        'it would not verify without 1 rejected line: correlation-report.json: $.status: "partial"',
    ),
    "a hole in a layer": (
        b"".join(LAYERS.splitlines(keepends=True)[::2]),
        "it would not verify: layers/kernel.ndjson:2: $.seq: expected 1, got 2",
    ),
    "a health alone": (
        make_artifacts()[HEALTH_FILE],
        'observation-health.json: $.kernel_layer: "complete", but "absent" follows from the layers',
    ),
    "artifacts without what they follow from": (
        make_layers()[KERNEL_FILE] + b"".join(make_artifacts().values()),
        "it would not verify: layers/kernel-ext.ndjson: 1 events lack theirs, 2 and others",
    ),
}


@pytest.mark.parametrize("what", UNHELD)
def test_what_would_not_verify_is_not_written(place: Place, what: str) -> None:
    data, message = UNHELD[what]
    target = place.root / "a.tar.gz"
    target.write_bytes(b"mine")
    done = place.stream("archive", "-", "-o", target, "--force", data=data)
    assert (done.code, message in done.err) == (2, True), done.err
    assert target.read_bytes() == b"mine"
    assert not [*place.root.glob("*.partial")]


def test_the_counters_of_a_companion_are_the_feeds(place: Place) -> None:
    data = b"".join(make_layers().values()) + make_artifacts()[COMPANION_FILE] + b"\n"
    code, _, files = archive_stream(place, data)
    assert (code, files[HEALTH_FILE]) == (0, make_artifacts()[HEALTH_FILE])
    assert find_error_rules(place.root / "a.tar.gz") == set()


RAW: tuple[object, ...] = (
    raw_open("/work/in"),
    raw_open("/lib/x.so"),  # which is left out
    raw("rename", ret=0, path="/work/x", to_path="/work/y"),
    raw("wrote", ret=5, size=5, stream="stdout"),
)


@pytest.mark.parametrize(
    ("words", "lost", "layer"),
    [
        (("--detail", "-"), 0, "complete"),
        ((), 0, "partial_ringbuf_drops"),
        (("--detail", "-"), 1, "partial_ringbuf_drops"),
    ],
)
def test_a_normalizer_in_the_pipe(
    place: Place, words: tuple[str, ...], lost: int, layer: str
) -> None:
    """It sends along how much it left out. What it was not asked for is missing."""
    counted = make_counters(got=4, seen=4, scopes={"both": 4})
    made = place.stream(
        "normalize", "-", "--run-id", RUN, *words, data=ndjson(*RAW[lost:], counted)
    )
    assert made.code == 0
    code, _, files = archive_stream(place, made.out)
    assert (code, json.loads(files[HEALTH_FILE])["kernel_layer"]) == (0, layer)
    assert find_error_rules(place.root / "a.tar.gz") == set()


@pytest.mark.parametrize(
    ("words", "data", "message"),
    [
        (
            (),
            [make_open_event(0, "/a"), make_open_event(1, "/a", "run_2")],
            "(stdin):2: of the run 'run_2', but",
        ),
        (
            ("--run-id", "run_3"),
            [make_open_event(0, "/a")],
            "(stdin):1: of the run 'run_1', not of",
        ),
        (
            (),
            [Gap(source="x", lost=1, reason="y")],
            "no usable record names its run: name it with --run-id",
        ),
        (("--run-id", "a/b"), [], "--run-id: 'a/b': the name of a run has letters"),
    ],
)
def test_whose_run_it_is(
    place: Place, words: tuple[str, ...], data: list[object], message: str
) -> None:
    target = place.root / "a.tar.gz"
    done = place.stream("archive", "-", "-o", target, *words, data=ndjson(*data))
    assert done.code == 2
    assert message in done.err
    assert not target.exists()


def test_a_run_id_that_is_given(place: Place) -> None:
    code, _, files = archive_stream(
        place, b"\n".join(split_lines({**make_layers(), **make_artifacts()})), "--run-id", RUN
    )
    assert code == 0
    assert json.loads(files[ARCHIVE_MANIFEST])["run_id"] == RUN


def test_a_target_that_is_there_stops_it_before_anything_is_read(place: Place) -> None:
    target = place.root / "a.tar.gz"
    target.write_text("mine")
    child = place.start("archive", "-", "-o", target, stdin=(end := os.pipe())[0])
    done = place.finish(child)
    for fd in end:
        os.close(fd)
    assert done.code == 2
    assert done.err == f"stream: {target}: it is there already; --force replaces it\n"


@given(st.lists(st.sampled_from(LINES)), st.data())
def test_the_counts_balance_however_it_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(lines)))
    results = []
    for batches in ([lines], [lines[:cut], lines[cut:]]):
        transformer = Route(find_boundaries(None))
        parts: dict[str, bytes] = {}
        rejects = 0
        number = 1
        for batch in batches:
            for item in feed(transformer, Lines(batch, "x", number, 0)):
                if isinstance(item, FilePart):
                    parts[item.name] = parts.get(item.name, b"") + item.data
                else:
                    assert isinstance(item, Reject)
                    rejects += 1
            number += len(batch)
        assert transformer.counts.balanced
        assert transformer.counts.rejected == rejects
        results.append((parts, transformer.counts, transformer.run_ids))
    assert results[0] == results[1]


def test_the_counters_of_a_feed_are_kept_for_who_makes_the_health() -> None:
    transformer = Route(find_boundaries(None))
    capture = RawCapture(feed="ebpf", got=3, seen=3, filtered={"loader": 1}, aside={})
    assert [*feed(transformer, [encode(capture)])] == []
    bare = RawCapture(feed="ebpf", got=3, seen=3)
    assert transformer.feed_counts == FeedCounts(bare, {"loader": 1}, {})
    assert transformer.counts.filtered == 1


# ---------------------------------------------------------------- memory


@every(2)
def test_memory_is_flat(place: Place, tmp_path: Path, step: int) -> None:
    """A quarter of a gigabyte in a sweep, through a pipe into an archive, and verified."""
    count = 1_000_000 // step
    source = tmp_path / "records"
    with source.open("wb") as file:
        line = (
            ndjson(make_open_event(0, "/0")).replace(b'"seq":0', b'"seq":%d').replace(b"/0", b"/%d")
        )
        file.writelines(line % (seq, seq % 999) for seq in range(count))
    size = source.stat().st_size
    assert size > (200 << 20) // step
    target = tmp_path / "a.tar.gz"
    with source.open("rb") as file:
        done = place.run_measured("archive", "-", "-o", target, stdin=file)
    assert (done.code, done.peak < 100 << 20) == (0, True), done
    done = place.run_measured("verify", target)
    assert (done.code, done.peak < 100 << 20) == (0, True), done
    (place.root / "peak").unlink()


def test_what_a_run_wrote_does_not_glue_together(place: Place) -> None:
    """`cat RUN/*.json` is a stream of records: every document ends its line."""
    run = observe(place, "--kernel", "auto", "--run-id", RUN, "--", "true", check=False).folder
    names = [HEALTH_FILE, SURFACE_FILE, COMPANION_FILE]
    glued = b"".join((run / name).read_bytes() for name in (*names, *LAYER_FILES))
    code, message, files = archive_stream(place, glued)
    assert code == 0, message
    for name in names:
        assert files[name] == (run / name).read_bytes(), name
