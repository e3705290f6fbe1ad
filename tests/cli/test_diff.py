"""`stream diff`: a table for people, a record for programs, an exit code for CI."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stream.records.artifacts import KERNEL_FILE
from tests.archive.samples import make_stream_files, write_files_as_archive
from tests.cli.command import Place

ASSAY = Path(__file__).parent.parent / "data/assay"
GOLDEN = ASSAY / "golden"
OPENAI, GEMINI = ASSAY / "archives/openai-1.tar.gz", ASSAY / "archives/gemini-1.tar.gz"


CUT = "the gzip data ends too early"


def write_changed(place: Place, where: str = "changed", **fields: Any) -> Path:
    """A folder with the golden artifacts, and another surface."""
    folder = place.root / where
    shutil.copytree(GOLDEN, folder, dirs_exist_ok=True)
    path = next(folder.glob("capability-surface-*"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


def test_a_pipe_gets_the_record(place: Place) -> None:
    done = place.stream("diff", GOLDEN, GOLDEN)
    golden = json.loads((GOLDEN / "capability-diff-s5-idempotent-v0.json").read_text())
    assert (done.code, done.err, done.records) == (0, "", [golden])


def test_a_terminal_gets_a_table(place: Place) -> None:
    leader, follower = pty.openpty()
    process = place.start("diff", OPENAI, GEMINI, stdout=follower)
    os.close(follower)
    shown = b""
    while piece := read_terminal(leader):
        shown += piece
    os.close(leader)
    assert place.finish(process).code == 0
    text = shown.decode()
    assert "status  partial:unbound" in text
    assert "network_endpoints +15 -4 =1" in text
    assert "  - 162.159.140.245:443" in text


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 0),
        (["--fail-on", "added-tools"], 1),
        (["--fail-on", "removed-tools"], 0),
        (["--fail-on", "added-paths,added-tools"], 1),
        (["--fail-on", "added-paths", "--fail-on", "removed-tools"], 0),
        (["--fail-on", "any"], 1),
        (["--fail-on", "partial,changed-policy"], 0),
    ],
)
def test_what_ci_asks_for_is_the_exit_code(place: Place, words: list[str], code: int) -> None:
    head = write_changed(place, mcp_tools=["read_file", "shell"])
    done = place.stream("diff", GOLDEN, head, *words)
    assert done.code == code
    assert done.records[0]["surface"]["mcp_tools"]["added"] == ["shell"]
    assert bool(done.err) == bool(code)
    assert all(line.startswith("stream: --fail-on ") for line in done.err.splitlines())
    assert ("stream: --fail-on added-tools: 1 tool\n" in done.err) == ("added-tools" in str(words))


def test_the_same_twice_fails_on_nothing_but_what_it_is(place: Place) -> None:
    assert place.stream("diff", GOLDEN, GOLDEN, "--fail-on", "any,partial").code == 0
    for word, code in (("added-paths,removed-tools", 0), ("partial", 1), ("any", 1)):
        assert place.stream("diff", OPENAI, OPENAI, "--fail-on", word).code == code


def test_broken_evidence_is_a_record_and_exit_1(place: Place) -> None:
    torn = place.root / "torn.tar.gz"
    torn.write_bytes(OPENAI.read_bytes()[:1500])
    done = place.stream("diff", torn, OPENAI)
    assert (done.code, done.records[0]["status"]) == (1, "failed")
    assert "the archive is damaged" in done.records[0]["notes"][0]
    assert done.err == f"stream: diff: failed: A: {torn}: the archive is damaged: {CUT}\n"
    done = place.stream("diff", OPENAI, torn, "--canonical")
    assert (done.code, done.out) == (1, b"")
    assert done.err == f"stream: diff: failed: B: {torn}: the archive is damaged: {CUT}\n"
    done = place.stream("diff", GOLDEN, write_changed(place, run_id=""), "--json")
    assert (done.code, done.records[0]["status"]) == (1, "failed")


def test_no_evidence_is_exit_2(place: Place) -> None:
    for path, sentence in ((place.root / "none", "no such file"), (place.tmp, "no evidence")):
        done = place.stream("diff", GOLDEN, path)
        assert (done.code, done.out) == (2, b"")
        assert str(path) in done.err
        assert sentence in done.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--fail-on", "added-files"], "--fail-on added-files: for runs, use one of added-paths"),
        (["--fail-on", ","], "--fail-on names nothing"),
        (["--canonical", "--json"], "--canonical does not go with"),
        (["--canonical", "--fail-on", "any"], "--canonical does not go with"),
        (["--canonical", "--ignore", "x"], "--canonical does not go with"),
        (["--canonical", "--baseline", str(GOLDEN)], "--canonical does not go with"),
    ],
)
def test_wrong_words(place: Place, words: list[str], sentence: str) -> None:
    done = place.stream("diff", GOLDEN, GOLDEN, *words)
    assert (done.code, done.out) == (2, b"")
    assert sentence in " ".join(done.err.split())


def test_canonical(place: Place) -> None:
    done = place.stream("diff", "--canonical", OPENAI, OPENAI)
    assert done.code == 0
    assert "layers/kernel.ndjson: 29 lines, the same" in done.out.decode().splitlines()
    done = place.stream("diff", "--canonical", OPENAI, GEMINI)
    assert done.code == 1
    text = done.out.decode()
    assert "layers/kernel.ndjson:1: differs" in text
    assert '  A {"schema":"assay.runner.kernel_event.v0","run_id":"run","seq":0,"pid":"p1"' in text
    assert place.stream("diff", "--canonical", OPENAI, GOLDEN).code == 2


@pytest.mark.parametrize(
    ("health", "doubt"),
    [
        (None, "observation-health.json is missing"),
        ({"cgroup_correlation": "partial"}, "observation-health.json: cgroup_correlation=partial"),
        (
            {"kernel_layer": "absent"},
            "observation-health.json: cgroup_correlation: clean, and nothing was captured",
        ),
        (
            {"ringbuf_drops": 5},
            "observation-health.json: kernel_layer: complete, and 5 events were dropped",
        ),
        ({"platform": "darwin"}, "observation-health.json: kernel_layer: complete on a platform"),
    ],
)
def test_what_nobody_saw_is_not_the_same(
    place: Place, health: dict[str, Any] | None, doubt: str
) -> None:
    folder = place.root / "blind"
    with tarfile.open(OPENAI) as archive:
        archive.extractall(folder, filter="data")
    assert place.stream("diff", "--canonical", OPENAI, folder).code == 0
    path = folder / "observation-health.json"
    fields = json.loads(path.read_text())
    path.unlink()
    if health is not None:
        path.write_text(json.dumps({**fields, **health}))
    for sides in ((OPENAI, folder), (folder, OPENAI)):
        done = place.stream("diff", "--canonical", *sides)
        assert done.code == 1
        name = "AB"[sides.index(folder)]
        first, *rest = done.out.decode().splitlines()
        assert first.startswith(f"{name}: its capture is incomplete: {doubt}")
        assert "layers/kernel.ndjson: 29 lines, the same" in rest


def write_with_paths(place: Place, where: str, *paths: str, **fields: Any) -> Path:
    return write_changed(place, where, filesystem_paths=sorted(paths), **fields)


def select_notes(record: Any, code: str) -> list[str]:
    return [note for note in record["notes"] if note.startswith(f"capability_diff_{code}: ")]


def test_what_is_to_be_ignored_is_counted_and_compared_nowhere(place: Place) -> None:
    base = write_with_paths(place, "a", "/same", "/home/u/.cache/x/1", process_execs=["/bin/a"])
    head = write_with_paths(
        place, "b", "/same", "/home/u/.cache/y/2", "/new", process_execs=["/bin/b"]
    )
    words = ("--fail-on", "added-paths,removed-paths,added-execs,removed-execs")
    done = place.stream("diff", base, head, *words, "--ignore", "*/.cache/*", "--ignore", "/new")
    assert done.code == 1
    assert "added-execs" in done.err
    assert "paths" not in done.err
    globs = ("*/.cache/*", "/new", "/bin/?", "/none")
    ignored = [word for glob in globs for word in ("--ignore", glob)]
    done = place.stream("diff", base, head, *words, *ignored)
    assert (done.code, done.err) == (0, "")
    (record,) = done.records
    paths = {"added": [], "removed": [], "unchanged": ["/same"]}
    assert record["surface"]["filesystem_paths"] == paths
    assert select_notes(record, "ignored") == [
        "capability_diff_ignored: 2 values match */.cache/*",
        "capability_diff_ignored: 1 values match /new",
        "capability_diff_ignored: 2 values match /bin/?",
        "capability_diff_ignored: 0 values match /none",
    ]
    assert not select_notes(record, "idempotent"), "they are the same but for what nobody compared"


def test_what_flaps_among_runs_of_a_kind_is_no_difference(place: Place) -> None:
    base = write_with_paths(place, "a", "/same", "/sometimes", "/always")
    head = write_with_paths(place, "b", "/same", "/other", "/new")
    second = write_with_paths(place, "c", "/same", "/other", "/always", mcp_tools=["t"])
    kinds: list[tuple[str | Path, ...]] = [
        *((), ("--baseline", second)),
        ("--baseline", second, "--baseline", base),
    ]
    for words in kinds:
        done = place.stream("diff", base, head, *words)
        (record,) = done.records
        found = record["surface"]["filesystem_paths"]
        flapping = select_notes(record, "flapping")
        if not words:
            assert (found["added"], flapping) == (["/new", "/other"], [])
            assert found["removed"] == ["/always", "/sometimes"]
            continue
        assert found == {"added": ["/new"], "removed": ["/always"], "unchanged": ["/same"]}
        counts = "filesystem_paths=2 mcp_tools=1"
        runs = 1 + len(words) // 2
        assert flapping == [
            f"capability_diff_flapping: in some of {runs} runs of a kind, not in all: {counts}"
        ]


def test_that_a_baseline_was_blind_excuses_nothing(place: Place) -> None:
    """It may have reached what it does not list; what it lists, it reached."""
    base, head = write_with_paths(place, "a", "/was"), write_with_paths(place, "b", "/other")
    blind = write_with_paths(place, "c", "/other")
    path = next(blind.glob("observation-health-*"))
    health = json.loads(path.read_text())
    path.write_text(json.dumps({**health, "cgroup_correlation": "partial"}))
    (record,) = place.stream("diff", base, head, "--baseline", blind).records
    found = record["surface"]["filesystem_paths"]
    assert (found["added"], found["removed"]) == ([], ["/was"])


def test_a_baseline_that_is_broken_is_no_baseline(place: Place) -> None:
    torn = place.root / "torn.tar.gz"
    torn.write_bytes(OPENAI.read_bytes()[:1500])
    done = place.stream("diff", GOLDEN, GOLDEN, "--baseline", torn)
    assert (done.code, done.records[0]["status"]) == (1, "failed")
    assert done.err == f"stream: diff: failed: --baseline: {torn}: the archive is damaged: {CUT}\n"
    done = place.stream("diff", GOLDEN, GOLDEN, "--baseline", place.root / "none")
    assert (done.code, done.out) == (2, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal(place: Place, number: signal.Signals) -> None:
    """While it writes more than a pipe holds."""
    head = write_changed(place, filesystem_paths=[f"/{'x' * 100}/{n}" for n in range(10_000)])
    process = place.start("diff", GOLDEN, head)
    assert process.stdout
    assert os.read(process.stdout.fileno(), 1) == b"{"
    process.send_signal(number)
    done = place.finish(process)
    assert (done.code, done.err) == (128 + number, "stream: interrupted\n")


def test_memory_is_flat(place: Place) -> None:
    """An archive is read to its end, whatever it decodes to."""
    small, large = place.root / "small.tar.gz", place.root / "large.tar.gz"
    files = make_stream_files()
    write_files_as_archive(small, files)
    write_files_as_archive(large, {**files, KERNEL_FILE: files[KERNEL_FILE] * 200_000})
    peaks = []
    for archive in (small, large):
        done = place.run_measured("diff", archive, archive)
        assert (done.code, done.err) == (0, "")
        peaks.append(done.peak)
    assert peaks[1] < peaks[0] + (24 << 20)
