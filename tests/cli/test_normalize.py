"""stream normalize: a file, a pipe, where the details go, and what is printed for people."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import msgspec
import pytest

from stream.records.control import Gap
from stream.transformers.normalize import RULES
from tests.bench.evidence import write_raw
from tests.cli.command import STREAM, Place
from tests.evidence.raw import CAPTURE, raw, raw_error, raw_open

GAP = Gap(source="ebpf", lost=3, reason="the ring was full")
EVENTS = (
    *(raw("exec", ret=0, path="/bin/x", resolved="/bin/x", argv=["x"]), raw_open("/usr/lib/x")),
    *(GAP, raw_open("/srv/a"), raw_error("/proc/1/x"), raw("fork", child=8), CAPTURE),
)
LINES = [msgspec.json.encode(event) for event in EVENTS]
RAW = b"\n".join([*LINES, b""])
FOREIGN = b'{"schema": "somebody.else.v1",  "x": [1, 2.50]}'


@pytest.fixture
def source(place: Place) -> Path:
    path = place.root / "raw.ndjson"
    path.write_bytes(RAW)
    return path


def list_contracts(data: bytes) -> list[str]:
    return [json.loads(line)["schema"].rpartition(".runner.")[2] for line in data.splitlines()]


KERNEL, DETAIL, LOSS = "kernel_event.v0", "stream.kernel_detail.v1", "stream.gap.v1"


def test_a_file_becomes_the_kernel_layer(place: Place, source: Path) -> None:
    done = place.stream("normalize", source)
    assert done.code == 0
    assert list_contracts(done.out) == [KERNEL] * 3
    found = [(line["run_id"], line["seq"], line["value"]) for line in done.records]
    assert found == [("run", 0, "/bin/x"), ("run", 1, "/srv/a"), ("run", 2, None)]
    counters = "7 in = 5 out + 0 rejected + 2 filtered"
    assert done.err.splitlines() == [
        "ebpf: 3 records lost: the ring was full",
        f"normalize: {counters}; 3 kernel events, 2 detail lines; filtered: 1 loader, 1 proc",
    ]


def test_details_go_where_they_are_sent(place: Place, source: Path) -> None:
    target = place.root / "kernel-ext.ndjson"
    done = place.stream("normalize", source, "--detail", target, "--run-id", "run_001")
    assert list_contracts(done.out) == [KERNEL] * 3
    assert list_contracts(target.read_bytes()) == [DETAIL, LOSS, DETAIL]
    details = [json.loads(line) for line in target.read_bytes().splitlines()]
    assert [detail.get("seq") for detail in details] == [0, None, 2]
    assert {record["run_id"] for record in [*done.records, details[0]]} == {"run_001"}
    both = place.stream("normalize", source, "--detail", "-")
    assert list_contracts(both.out) == [KERNEL, DETAIL, LOSS, KERNEL, KERNEL, DETAIL]


def test_in_a_pipe_everything_else_goes_on(place: Place) -> None:
    data = b"\n".join([FOREIGN, *LINES, FOREIGN, b""])
    done = place.stream("normalize", "-", data=data)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == lines[-1] == FOREIGN
    expected = [KERNEL, LOSS, KERNEL, KERNEL, "stream.raw_capture.v1"]
    assert list_contracts(done.out) == ["somebody.else.v1", *expected, "somebody.else.v1"]
    counters = json.loads(lines[-2])
    left_out = {name: counters.pop(name) for name in ("filtered", "aside")}
    assert msgspec.json.encode(counters) == LINES[-1]
    assert sum(sum(counts.values()) for counts in left_out.values()) == len(LINES) - 5
    done = place.stream("normalize", "-", "--detail", "-", data=data)
    assert list_contracts(done.out)[1:4] == [KERNEL, DETAIL, LOSS]


def test_what_it_writes_keeps_the_contracts(place: Place, source: Path) -> None:
    with (
        subprocess.Popen(
            [STREAM, "normalize", source, "--detail", "-"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=place.env,
        ) as first,
        subprocess.Popen(
            [STREAM, "validate", "-"], stdin=first.stdout, stdout=subprocess.PIPE, env=place.env
        ) as second,
    ):
        assert first.stdout is not None
        first.stdout.close()
        out, _ = second.communicate()
    assert (first.wait(), second.wait()) == (0, 0)
    assert len(out.splitlines()) == 6


def test_bad_lines_are_rejected_with_their_place(place: Place, source: Path) -> None:
    bad = [b"{", b"\xff\xfe", b"42", b"[" * 10_000, LINES[0].replace(b'"pid":7', b'"pid":"7"')]
    source.write_bytes(b"\n".join([LINES[0], b"", *bad, LINES[3], LINES[5][:-4]]))
    rejects = place.root / "rejects.ndjson"
    done = place.stream("normalize", source, "--reject", rejects)
    assert done.code == 1
    assert [line["value"] for line in done.records] == ["/bin/x", "/srv/a"]
    found = [json.loads(line) for line in rejects.read_bytes().splitlines()]
    assert [record["line"] for record in found] == [3, 4, 5, 6, 7, 9]
    assert found[4]["path"] == "$.pid"
    assert "torn" in found[5]["reason"]
    assert "9 in = 2 out + 6 rejected + 1 filtered" in done.err
    done = place.stream("normalize", source)
    assert f"{source}:3: " in done.err
    assert "the feed's counters are missing" in done.err


def test_the_file_of_a_feed_has_nothing_else(place: Place, source: Path) -> None:
    source.write_bytes(RAW + FOREIGN + b"\n")
    done = place.stream("normalize", source)
    assert done.code == 1
    assert f"{source}:8: is no record of a kernel feed" in done.err
    assert list_contracts(done.out) == [KERNEL] * 3


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({}, []),
        ({"dropped": 2, "seen": 12}, ["the feed lost 2 events"]),
        ({"feed": "absent", "reason": "no BTF"}, ["there was no feed: no BTF"]),
        (
            {"misses": 500, "lost_forks": 3, "unparsed": 9, "unknown_loss": "it broke", "seen": 1},
            [
                "the capture is incomplete: stream_kernel_misses: misses=500",
                "the capture is incomplete: stream_kernel_lost_forks: lost_forks=3",
                "the capture is incomplete: stream_kernel_unparsed: unparsed=9",
                "the capture is incomplete: stream_kernel_unknown_loss: it broke",
                "the capture is incomplete: stream_kernel_books: got=10 dropped=0 seen=1",
            ],
        ),
        ({"uring": "hole"}, ["operations through io_uring were not seen"]),
    ],
)
def test_what_a_feed_lost_is_reported(
    place: Place, changes: dict[str, object], sentences: list[str]
) -> None:
    counters = json.dumps({**json.loads(LINES[-1]), **changes}).encode()
    done = place.stream("normalize", "-", data=counters)
    assert done.code == 0
    assert done.err.splitlines()[1:] == [f"normalize: {sentence}" for sentence in sentences]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "a file or `-` is missing"),
        (["-", "--run-id", "a b"], "letters, digits"),
        (["-", "--run-id", "a\n"], "letters, digits"),
        (["-", "--detail", ""], "an empty word after --detail"),
        (["/nowhere/raw.ndjson"], "/nowhere/raw.ndjson: no such file or directory"),
        (["-", "--detail", "/nowhere/x"], "/nowhere/x: no such file or directory"),
    ],
)
def test_wrong_use(place: Place, words: list[str], sentence: str) -> None:
    done = place.stream("normalize", *words)
    assert (done.code, done.out) == (2, b"")
    assert sentence in done.err


def test_no_output_takes_the_place_of_the_input(place: Place, source: Path) -> None:
    done = place.stream("normalize", source, "--detail", source)
    assert done.code == 2
    assert source.read_bytes() == RAW


def test_the_rules_are_listed(place: Place) -> None:
    done = place.stream("normalize", "--rules")
    assert done.code == 0
    lines = done.out.decode().splitlines()
    assert [line.split()[0] for line in lines] == [rule.name for rule in RULES]
    for rule in RULES:
        patterns = (rule.inside, rule.some_inside, rule.some, rule.but)
        places = (*rule.folders, *rule.files, *rule.names, *patterns)
        line = next(line for line in lines if line.startswith(f"{rule.name} "))
        assert ": " in line
        assert [place for place in places if place not in line] == []


def test_memory_stays_flat(place: Place) -> None:
    few, many = place.root / "few.ndjson", place.root / "many.ndjson"
    write_raw(few, 20_000)
    write_raw(many, 400_000)
    small = place.run_measured("normalize", few, stdout=subprocess.DEVNULL)
    large = place.run_measured("normalize", many, stdout=subprocess.DEVNULL)
    assert (small.code, large.code) == (0, 0)
    assert large.peak < small.peak + (12 << 20)
