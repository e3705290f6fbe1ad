"""emit, validate and listen: in pipes, and on files of every kind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import STREAM, Done, Place
from tests.sweeping import every

FOREIGN = [
    b'{"schema": "somebody.else.v1",  "x": [1, 2.50]}',
    b'{ "a" : "\\u00fc" }',
    b'{"schema_version":"their_event_v9"}',
]


@pytest.fixture(scope="module")
def record(shared: Place) -> bytes:
    return shared.stream("matrix", "--probes", shared.write_probes(a="")).out


@pytest.fixture(scope="module")
def raw(shared: Place) -> bytes:
    return shared.stream("matrix", "--probes", shared.write_probes(a=""), "--raw").out


@pytest.mark.parametrize("command", ["emit", "validate"])
def test_foreign_lines_pass_byte_for_byte(place: Place, record: bytes, command: str) -> None:
    lines = b"\n".join([*FOREIGN, record])
    done = place.stream(command, "-", data=lines)
    assert (done.code, done.out) == (0, lines)


@pytest.mark.parametrize("command", ["emit", "validate"])
def test_bad_lines_are_rejected_with_their_place(place: Place, record: bytes, command: str) -> None:
    bad = [b"{", b"\xff\xfe", b"42", b"\0\0", b"[" * 10_000, b'{"a":1}x']
    data = b"\n".join([record.strip(), b"", *bad, record.strip(), b'{"torn'])
    rejects = place.root / "rejects"
    done = place.stream(command, "-", "--reject", rejects, data=data)
    assert (done.code, done.out) == (1, record * 2)
    found = [json.loads(line) for line in rejects.read_bytes().splitlines()]
    assert [reject["line"] for reject in found] == [3, 4, 5, 6, 7, 8, 10]
    assert found[0]["offset"] == len(record) + 1
    assert {reject["source"] for reject in found} == {"(stdin)"}
    assert "torn" in found[-1]["reason"]
    if command == "validate":
        assert "(stdin):3: " in done.err
    else:
        done = place.stream(command, "-", data=data)
        assert "(stdin):3: " in done.err


def test_findings_go_where_they_are_sent(place: Place, record: bytes) -> None:
    data = record.replace(b'"baseline"', b'"other"') + record
    done = place.stream("validate", "-", data=data)
    assert (done.code, done.out) == (1, record)
    assert "(stdin):1: $.run.mode: " in done.err
    done = place.stream("validate", "-", "--findings", "found", "--reject", "bad", data=data)
    assert (done.code, done.out) == (1, record)
    assert "$.run.mode" not in done.err
    (finding,) = (place.workspace / "found").read_bytes().splitlines()
    assert json.loads(finding)["path"] == "$.run.mode"
    assert (place.workspace / "bad").read_bytes().count(b"\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["validate", "-", "-"], "`-` filters stdin and does not go with files"),
        (["validate", "-", "file"], "`-` filters stdin and does not go with files"),
        (["validate", "f", "--findings", "x", "--reject", "x"], "x: the same file as x"),
        (["validate"], "Missing argument"),
        (["listen"], "Missing argument"),
        (["validate", "good", "absent"], "absent: no such file or directory"),
        (["listen", "good", "absent"], "absent: no such file or directory"),
        (["validate", "."], ".: is a directory"),
        (["listen", "."], ".: is a directory"),
        (["emit", "-", "more"], "`-` reads stdin and does not go with more"),
        (["emit", "-", "--catalog", "absent"], "absent: no such file"),
        (["emit", "--catalog", "absent", "-"], "absent: no such file"),
        (["validate", "good", "--boundary", "absent"], "absent: no such file"),
    ],
)
def test_wrong_use(place: Place, record: bytes, words: list[str], sentence: str) -> None:
    (place.workspace / "good").write_bytes(record)
    done = place.stream(*words)
    assert (done.code, done.out) == (2, b"")
    assert sentence in done.err


def make_contents(record: bytes) -> dict[str, tuple[bytes, int, str]]:
    """File -> (what is in it, the exit code of validate, what it prints)."""
    one = json.loads(record)
    pretty = json.dumps(one, indent=2).encode()
    wrong = json.dumps({**one, "schema_key": 7}, indent=2).encode()
    return {
        "good.ndjson": (record * 3, 0, "3 boundary_event_v1"),
        "no_newline.ndjson": (record + record.strip(), 0, "2 boundary_event_v1"),
        "pretty.json": (pretty, 0, "1 boundary_event_v1"),
        "pretty_wrong.json": (wrong, 1, "$.schema_key"),
        "pretty_broken.json": (pretty[:-10], 1, "malformed JSON"),
        "empty": (b"", 0, "0 in"),
        "blank": (b"\n \n\t\n", 0, "3 filtered"),
        "binary": (bytes(range(256)) * 10, 1, "binary:1: "),
        "nul": (record.strip() + b"\0\n", 1, "nul:1: "),
        "utf8": (record.replace(b'"fs"', b'"\xff"'), 1, "invalid UTF-8"),
        "nested": (b'{"a":' * 10_000 + b"\n" + record, 1, "nested too deeply"),
        "torn": (record + record[:-30], 1, "torn:2: the last line is torn"),
        "unknown": (FOREIGN[0] + b"\n", 1, "no contract that stream knows"),
        "newlines": (record.replace(b"\n", b"\r\n"), 0, "1 boundary_event_v1"),
    }


@pytest.mark.parametrize("name", make_contents(b"{}"))
def test_validate_a_file(place: Place, record: bytes, name: str) -> None:
    data, code, sentence = make_contents(record)[name]
    (place.workspace / name).write_bytes(data)
    done = place.stream("validate", name)
    assert done.code == code, done.err
    assert sentence in done.err
    assert bool(done.out) == bool(code)
    assert {finding["source"] for finding in done.records} <= {name}


def test_validate_several_files(place: Place, record: bytes) -> None:
    for name, (data, _, _) in make_contents(record).items():
        (place.workspace / name).write_bytes(data)
    done = place.stream("validate", "good.ndjson", "torn", "/dev/null", "pretty.json", "nul")
    assert done.code == 1
    assert [(f["source"], f["line"]) for f in done.records] == [("torn", 2), ("nul", 1)]
    assert "5 boundary_event_v1" in done.err


@pytest.mark.parametrize("command", ["validate", "listen"])
def test_a_fifo(place: Place, record: bytes, command: str) -> None:
    fifo = place.make_fifo("fifo")
    process = place.start(command, fifo)
    fifo.write_bytes(record * 2)
    assert place.finish(process).code == 0


def test_the_bundled_documents_are_valid(place: Place) -> None:
    root = Path(__file__).parents[2] / "catalogs"
    files = [path for path in root.glob("*.json") if path.name != "defaults.json"]
    assert place.stream("validate", *files).code == 0


@pytest.mark.parametrize("words", [["validate"], ["listen"], ["listen", "--json"]])
@pytest.mark.parametrize("suffix", ["ndjson", "json"])
def test_a_line_of_100_megabytes(
    place: Place, record: bytes, words: list[str], suffix: str
) -> None:
    path = place.workspace / f"long.{suffix}"
    with path.open("wb") as file:
        file.write(record + b'{"a": "')
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + record)
    done = place.run_measured(*words, path)
    assert done.code == 1
    assert f"long.{suffix}:2: a line of 100000009 bytes is above the limit" in done.err
    assert done.peak < 80 << 20


def test_many_lines_are_not_held(place: Place, record: bytes) -> None:
    path = place.workspace / "many"
    path.write_bytes(record * 100_000)
    for words in (["validate"], ["listen", "--json"], ["listen"]):
        done = place.run_measured(*words, path)
        assert (done.code, done.peak < 80 << 20) == (0, True)


@pytest.mark.parametrize("command", ["check", "validate"])
@pytest.mark.parametrize("nothing", [b"", b"\n\n"])
def test_nothing_in_a_pipe_is_no_yes(place: Place, command: str, nothing: bytes) -> None:
    done = place.stream(command, "-", data=nothing)
    assert (done.code, done.out) == (1, b"")
    assert f"{command}: no records arrived\n" in done.err


def test_listen(place: Place, record: bytes) -> None:
    data = record + b"{\n" + FOREIGN[0] + b"\n" + record
    done = place.stream("listen", "-", "--reject", "bad", data=data)
    assert done.code == 1
    text = done.out.decode()
    assert text.count("a (baseline)  write here") == 2
    assert "2 records of 1 probe; modes: baseline 2; 1 " in text
    assert " not shown" in text
    assert json.loads((place.workspace / "bad").read_text())["line"] == 2
    done = place.stream("listen", "--json", "-", data=data)
    summary = json.loads(done.out)
    assert (done.code, summary["records"]) == (1, 2)
    assert "(stdin):2: malformed JSON" in done.err


def test_listen_streams(place: Place, record: bytes) -> None:
    """A record is shown before the next one comes."""
    read, write = os.pipe()
    process = place.start("listen", "-", stdin=read)
    os.close(read)
    assert process.stdout is not None
    for _ in range(2):
        os.write(write, record)
        assert b"a (baseline)" in process.stdout.readline()
        assert b"cap_fs_write_temp" in process.stdout.readline()
    os.close(write)
    assert place.finish(process).code == 0


def test_emit_makes_one_record_for_each_emission(place: Place, raw: bytes, record: bytes) -> None:
    done = place.stream("emit", "-", data=raw * 3)
    assert (done.code, done.out) == (0, record * 3)
    assert done.err == "emit: 3 in = 3 out + 0 rejected + 0 filtered\n"
    broken = raw.replace(b'"exit_code":0', b'"exit_code":"0"')
    done = place.stream("emit", "-", data=broken + raw)
    assert (done.code, done.out) == (1, record)
    assert "(stdin):1: $.exit_code" in done.err


WORDS = [
    *("--run-mode", "baseline", "--probe-name", "p", "--probe-version", "1"),
    *("--category", "fs", "--verb", "read", "--target", "/", "--command", "true"),
    *("--status", "denied", "--primary-capability-id", "cap_fs_write_temp"),
]


def parse_single_record(done: Done) -> Any:
    assert (done.code, done.err) == (0, "")
    (record,) = done.records
    return record


def test_emit_alone(place: Place) -> None:
    (place.workspace / "evidence").write_bytes(b"line\n\xff")
    record = parse_single_record(
        place.stream(
            "emit", *WORDS, "--message", "--help", "--payload-stderr-file", "evidence",
            "--operation-arg", "--flag", "-", env={"FENCE_SANDBOX_MODE": "read-only"},
        )
    )  # fmt: skip
    assert record["result"]["message"] == "--help"
    assert record["operation"]["args"] == {"--flag": "-"}
    assert record["payload"]["stderr_snippet"] == "line\n\ufffd"
    assert record["stack"]["sandbox_mode"] == "read-only"
    assert record["run"]["workspace_root"] == str(place.workspace)


def test_emit_without_words_is_wrong_use(place: Place) -> None:
    done = place.stream("emit")
    assert (done.code, done.out) == (2, b"")
    assert "`-` or the flags of emit-record are missing" in done.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (WORDS[2:], "Missing required flag: --run-mode"),
        ([*WORDS, "--frob", "1"], "Unknown flag: --frob"),
        ([*WORDS, "--message"], "Missing value for --message"),
        ([*WORDS, "--status", "ok"], "Unknown status: ok (expected success|denied|partial|error)"),
        ([*WORDS, "--payload-file", "absent"], "--payload-file: cannot read absent"),
        ([*WORDS, "--payload-raw", "[]"], "--payload-raw: "),
        ([*WORDS, "--primary-capability-id", "cap_x"], "Unknown primary capability id: cap_x."),
        ([*WORDS, "--run-mode=baseline"], "Unknown flag: --run-mode=baseline"),
        (["-x"], "Unknown flag: -x"),
    ],
)
def test_emit_alone_refuses(place: Place, words: list[str], sentence: str) -> None:
    done = place.stream("emit", *words)
    assert (done.code, done.out) == (1, b"")
    assert sentence in done.err
    assert done.err.count("\n") == 1


def test_the_helper_alone_finds_stream(place: Place) -> None:
    helpers = place.stream("helpers").out.decode().strip()
    link = place.root / "bin"
    link.symlink_to(helpers)
    path = {"PATH": f"{Path(STREAM).parent}:{place.env['PATH']}"}
    own = place.root / "own"
    own.mkdir()
    for target in Path(helpers).iterdir():
        (own / target.name).symlink_to(target)
    for folder in (Path(helpers), link, own):
        helper = str(folder / "emit-record")
        record = parse_single_record(place.stream(*WORDS, argv0=(helper,), env=path))
        assert record["probe"]["id"] == "p"
        done = place.stream("--nope", argv0=(helper,), env=path)
        assert (done.code, done.out) == (1, b"")
        assert "Unknown flag: --nope" in done.err


@every(2)
@pytest.mark.parametrize("command", ["validate", "listen", "emit"])
def test_memory_is_bounded_on_short_lines(place: Place, command: str, step: int) -> None:
    """Each byte and a half of input is a line, and each line a reject."""
    source = place.root / "short"
    source.write_bytes(b"x\n" * (500_000 // step))
    if command == "emit":
        with source.open("rb") as stdin:
            done = place.run_measured("emit", "-", stdin=stdin)
    else:
        done = place.run_measured(command, source)
    assert done.code == 1
    assert done.peak < 80_000_000


def test_nobody_reads_stderr(place: Place) -> None:
    """stderr is a full disk: records and answers are what they would have been."""
    folder = place.write_probes(a="")
    one = place.stream("matrix", "--probes", folder).out
    with Path("/dev/full").open("wb") as full:
        data = one * 50 + b"{\n" + one * 40
        done = place.stream("validate", "-", data=data, stderr=full)
        assert (done.code, done.out) == (1, one * 90)
        done = place.stream("matrix", "--probes", folder, stderr=full)
        assert (done.code, done.out) == (0, one)
        for words in (["matrix", "--probe", "nope"], ["nope"]):
            assert place.stream(*words, stderr=full).code == 2


def test_a_stream_whose_first_line_is_bad(place: Place) -> None:
    """It could be the beginning of a document; the lines after it show."""
    one = place.stream("matrix", "--probes", place.write_probes(a="")).out
    for first in (b"{\n", b"[\n"):
        (place.workspace / "x.ndjson").write_bytes(first + one * 90)
        done = place.stream("validate", "x.ndjson")
        assert done.code == 1
        assert "91 in = 90 out + 1 rejected" in done.err
