"""An archive of a run that somebody rewrote: every digest in it is right, and its content is
not. What gives it away is what else is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stream.archive.chain import STEP, Tally
from stream.archive.reader import Limits
from stream.records.artifacts import (
    ARCHIVE_MANIFEST,
    CHAIN_FILE,
    COMPANION_FILE,
    DETAIL_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    V0_FILES,
    ChainLink,
)
from stream.records.run import (
    BOUNDARY_FILE,
    CHANGES_FILE,
    COMMANDS_FILE,
    EVENTS_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    STDOUT_FILE,
    SUMMARY_FILE,
)
from stream.verify.layers import ChainChecker
from stream.verify.report import MOST_OF_RULE, VerifyReport
from stream.verify.session import verify
from tests.archive.samples import (
    ARCHIVES,
    SUMMARY,
    Files,
    build_manifest,
    build_tar,
    compress_tar,
    encode,
    encode_document,
    find_error_rules,
    make_run_files,
    make_stream_files,
    ndjson,
    read_tar,
    read_tar_items,
    update_digests,
    update_hashes,
    update_manifest,
    write_files_as_archive,
)
from tests.archive.test_rewritten_evidence import iter_variants
from tests.sweeping import every
from tests.transformers.cells import PLAIN

Target = Path


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return tmp_path / "a.tar.gz"


@pytest.mark.parametrize("kind", [make_run_files, make_stream_files])
def test_no_entry_can_be_taken_away(target: Target, kind: Any) -> None:
    files = kind()
    assert find_error_rules(write_files_as_archive(target, files)) == set()
    for name in files:
        rest = update_digests({other: data for other, data in files.items() if other != name})
        target.write_bytes(
            compress_tar(build_tar((ARCHIVE_MANIFEST, build_manifest(rest)), *sort_entries(rest)))
        )
        assert find_error_rules(target), name


def sort_entries(files: Files) -> list[tuple[str, bytes]]:
    first = [name for name in V0_FILES if name in files]
    return [(name, files[name]) for name in (*first, *sorted(files.keys() - {*first}))]


@pytest.mark.parametrize("kept", [METADATA_FILE, CHAIN_FILE, MANIFEST_FILE, STDOUT_FILE])
def test_one_file_of_a_recorded_run_asks_for_all_of_them(target: Target, kept: str) -> None:
    """Or a run that was recorded would be a stream, of which less is asked."""
    files = {**make_stream_files(), kept: make_run_files()[kept]}
    found = {item.source for item in verify(write_files_as_archive(target, files)).findings}
    assert {f"{target}/{name}" for name in (EVENTS_FILE, SUMMARY_FILE)} <= found


@pytest.mark.parametrize("name", [COMPANION_FILE, DETAIL_FILE, MARKERS_FILE])
def test_one_file_of_ours_makes_it_none_of_the_references(target: Target, name: str) -> None:
    files = dict(read_tar_items(read_tar(ARCHIVES[0])))
    run_id = json.loads(files.pop(ARCHIVE_MANIFEST))["run_id"]
    assert find_error_rules(write_files_as_archive(target, files, run_id)) == set()
    assert "integrity.missing" in find_error_rules(
        write_files_as_archive(target, {**files, name: b""}, run_id)
    )


NO_PLACE = [
    *("layers/other.ndjson", "workspace/x", "x", ".bashrc", "artifacts/.x", "artifacts/.x/y"),
    *("Companion.json", "layers/KERNEL.ndjson", "layers/x/y", ".wrappers/hook", "chain.ndjson/x"),
]


@pytest.mark.parametrize("name", NO_PLACE)
def test_a_file_that_no_recorder_writes(target: Target, name: str) -> None:
    assert "security.place" in find_error_rules(
        write_files_as_archive(target, update_digests({**make_run_files(), name: b""}))
    )


@pytest.mark.parametrize(
    "names",
    [
        ("artifacts/Claude_stdout.txt",),
        ("artifacts/straße", "artifacts/STRASSE"),
        ("artifacts/\u00e9", "artifacts/e\u0301"),
    ],
)
def test_names_that_are_the_same_elsewhere(target: Target, names: tuple[str, ...]) -> None:
    files = update_digests({**make_run_files(), **dict.fromkeys(names, b"")})
    assert find_error_rules(write_files_as_archive(target, files)) == {"security.conflict"}


# ---------------------------------------------------------------- the run's own documents

#: What follows from nothing else in an archive, and why.
FREE = {
    # Whoever recorded it states it, and nobody else could know.
    (METADATA_FILE, ".started"),
    (METADATA_FILE, ".stream_version"),
    (METADATA_FILE, ".system"),
    (METADATA_FILE, ".workspace"),
    (METADATA_FILE, ".parameters"),
    # What the agent declares stands in its stdout, and how often it was refused in an event.
    (SUMMARY_FILE, ".declared_denied_tools"),
    (SUMMARY_FILE, ".declared_denials"),  # none, or not known
    (SUMMARY_FILE, ".declared_error"),  # the same
    # Names in the environment are the recorder's own.
    (RUNNER_FILE, ".env_keys"),
}


def iter_rewritten(files: Files, name: str) -> Iterator[tuple[str, Files]]:
    """One thing in one file, and all that depends on its bytes."""
    is_document = name.endswith(".json")
    lines = [files[name]] if is_document else files[name].splitlines()
    for index, line in enumerate(lines):
        whole = json.loads(line)
        for place, other in iter_variants(whole):
            if other == whole:
                continue
            text = encode_document(other) if is_document else encode(other)
            spoiled = (*lines[:index], text, *lines[index + 1 :])
            data = text if is_document else b"".join(one + b"\n" for one in spoiled)
            yield place, update_digests({**files, name: data})


def test_what_the_recorder_reports_as_lost(target: Target) -> None:
    """What is there is as it was written, and not all that there was."""
    files = make_run_files()
    *lines, last = files[EVENTS_FILE].splitlines()
    event = json.loads(last)
    event["agent_action"]["action_summary"] += "; incomplete: 1"
    files[EVENTS_FILE] = b"".join(line + b"\n" for line in (*lines, encode(event)))
    files[SUMMARY_FILE] = encode_document(replace(SUMMARY, incomplete=["when events happened"]))
    (found,) = verify(write_files_as_archive(target, update_digests(files))).findings
    assert (found.rule, found.severity) == ("contract.losses", "warning")
    assert found.source == f"{target}/{SUMMARY_FILE}"
    assert found.message == "the recorder itself lost: when events happened"


@pytest.mark.parametrize(
    ("text", "end"), [("; incomplete: ", ""), ("; declared_permission_denials=", " ")]
)
def test_a_number_without_an_end(target: Target, text: str, end: str) -> None:
    """Python refuses to read such a one: that must not be the end of all other findings."""
    files = make_run_files()
    *lines, last = files[EVENTS_FILE].splitlines()
    event = json.loads(last)
    event["agent_action"]["action_summary"] += f"{text}{'9' * 5000}{end}"
    spoiled = b"".join(line + b"\n" for line in (*lines, encode(event)))
    assert find_error_rules(
        write_files_as_archive(target, update_digests({**files, EVENTS_FILE: spoiled}))
    )


@pytest.mark.parametrize("name", [METADATA_FILE, SUMMARY_FILE, RUNNER_FILE])
def test_every_field_is_repeated_somewhere_else(target: Target, name: str) -> None:
    files, free, count = make_run_files(), set(), 0
    for place, spoiled in iter_rewritten(files, name):
        count += 1
        if not find_error_rules(write_files_as_archive(target, spoiled)):
            free.add((name, place))
    assert count > 30
    assert free - FREE == set()
    assert {item for item in FREE if item[0] == name} - free == set()


@every(5)
def test_every_field_of_the_runs_own_manifest(target: Target, step: int) -> None:
    """It lists what is there, whatever the archive's own lists."""
    files = make_run_files()
    whole = json.loads(files[MANIFEST_FILE])
    for _, other in islice(iter_variants(whole), 0, None, step):
        if other != whole:
            spoiled = {**files, MANIFEST_FILE: encode_document(other)}
            *lines, last = spoiled[EVENTS_FILE].splitlines(keepends=True)
            spoiled[EVENTS_FILE] = b"".join((*lines, update_hashes(last, spoiled)))
            assert find_error_rules(write_files_as_archive(target, spoiled)), other


@pytest.mark.parametrize("name", [CHANGES_FILE, COMMANDS_FILE, STDOUT_FILE])
def test_an_artifact_that_was_emptied(target: Target, name: str) -> None:
    assert "contract.accord" in find_error_rules(
        write_files_as_archive(target, update_digests({**make_run_files(), name: b""}))
    )


def test_probes_that_were_taken_away(target: Target) -> None:
    summary = encode_document(replace(SUMMARY, boundary_objects=2))
    files = {**make_run_files(), SUMMARY_FILE: summary, BOUNDARY_FILE: 2 * (PLAIN + b"\n")}
    assert find_error_rules(write_files_as_archive(target, update_digests(files))) == set()
    files[BOUNDARY_FILE] = PLAIN + b"\n"
    assert find_error_rules(write_files_as_archive(target, update_digests(files))) == {
        "contract.accord"
    }
    del files[BOUNDARY_FILE]
    assert find_error_rules(write_files_as_archive(target, update_digests(files))) == {
        "contract.accord"
    }


def test_a_run_that_claims_that_nobody_watched_it(target: Target) -> None:
    found = dict.fromkeys(("kernel_layer", "kernel_events", "kernel_lost", "cgroup_correlation"))
    summary = replace(SUMMARY, **found, tool_calls=None, correlation=None)
    files = update_digests({**make_run_files(), SUMMARY_FILE: encode_document(summary)})
    assert find_error_rules(write_files_as_archive(target, files)) == {"contract.accord"}


# ---------------------------------------------------------------- chains


@pytest.mark.parametrize("chain", ["twice", "backwards", "of another file", "spaced", "empty"])
def test_a_chain_that_no_recorder_writes(target: Target, chain: str) -> None:
    files = make_run_files()
    links = files[CHAIN_FILE].splitlines(keepends=True)
    other = links[0].replace(b"events.ndjson", METADATA_FILE.encode())
    made = {
        "twice": [*links, *links],
        "backwards": [*links[::-1], *links],
        "of another file": [*links, other],
        "spaced": [link.replace(b",", b", ") for link in links],
        "empty": [],
    }[chain]
    assert find_error_rules(
        write_files_as_archive(target, update_manifest({**files, CHAIN_FILE: b"".join(made)}))
    )


def test_what_is_due_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many links there are."""
    tally = Tally(KERNEL_FILE)
    for _ in range(40):
        tally.feed(b"x" * (STEP - 1) + b"\n")
    tallies = []
    whole = Tally.link

    def link(tally: Tally) -> ChainLink:
        tallies.append(tally)
        return whole(tally)

    monkeypatch.setattr(Tally, "link", link)
    links = ChainChecker(VerifyReport("x", Limits(), False))
    links.feed(ndjson(*tally.links))
    links.finish()
    assert list(links.compare_links({KERNEL_FILE: tally}, is_whole=True)) == []
    assert len(tallies) == 1


def test_more_links_than_there_can_be() -> None:
    report = VerifyReport("x", Limits(decoded=STEP), False)
    links = ChainChecker(report)
    links.feed(ndjson(Tally(KERNEL_FILE).link()) * 1000)
    links.finish()
    assert {item.rule for item in report.findings} == {"integrity.chain"}
    assert report.total > 900


def test_a_link_that_is_too_long() -> None:
    report = VerifyReport("x", Limits(line=1000), False)
    links = ChainChecker(report)
    for _ in range(100):
        links.feed(b"x" * 1000)
    links.feed(b"\n")
    links.finish()
    assert [item.rule for item in report.findings] == ["limit.line"]


# ---------------------------------------------------------------- more than is held

POLICY_LINE = json.loads(make_run_files()[POLICY_FILE])
SDK_LINE = json.loads(make_run_files()[SDK_FILE].splitlines()[0])
MARKER_LINE = json.loads(make_run_files()[MARKERS_FILE].splitlines()[1])
LIMITS = Limits(held=1000)


@pytest.mark.parametrize(
    ("name", "line"),
    [(POLICY_FILE, POLICY_LINE), (SDK_FILE, SDK_LINE), (MARKERS_FILE, MARKER_LINE)],
)
def test_a_layer_that_is_held_has_an_end(target: Target, name: str, line: dict[str, Any]) -> None:
    for is_numbered in (True, False):
        lines = (encode({**line, "seq": number * is_numbered}) for number in range(2000))
        files = update_digests({**make_run_files(), name: b"".join(line + b"\n" for line in lines)})
        report = verify(write_files_as_archive(target, files), LIMITS)
        assert "limit.lines" in {item.rule for item in report.findings}
    assert "limit.lines" not in {item.rule for item in verify(target).findings}


def test_more_names_than_there_can_be(target: Target) -> None:
    """They cost what is read of the manifest, and are not reported one by one."""
    names = {f"artifacts/{number}": b"" for number in range(3000)}
    tar = build_tar(
        (ARCHIVE_MANIFEST, build_manifest({**make_stream_files(), **names})),
        *make_stream_files().items(),
    )
    target.write_bytes(compress_tar(tar))
    report = verify(target, Limits(entries=2000))
    assert "limit.entries" in {item.rule for item in report.findings}
    assert report.total < 100
    report = verify(target, Limits(entries=200))
    assert "limit.document" in {item.rule for item in report.findings}
    report = verify(target)
    assert (report.total > 3000, len(report.findings) <= 2 * MOST_OF_RULE) == (True, True)
