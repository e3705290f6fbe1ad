"""Every field of every artifact and of every line: what is changed is found, with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stream.errors import InputError
from stream.records.artifacts import (
    ARCHIVE_MANIFEST,
    CORRELATION_FILE,
    DETAIL_FILE,
    EVIDENCE_FILES,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    RUNNER_FILE,
    SDK_FILE,
    SURFACE_FILE,
)
from stream.records.run import METADATA_FILE, STDERR_FILE, SUMMARY_FILE
from stream.verify.report import RULES, WARNINGS
from stream.verify.session import verify
from tests.archive.samples import (
    SUMMARY,
    Files,
    Rewritten,
    build_tar,
    compress_tar,
    encode_document,
    find_error_rules,
    make_run_files,
    make_small_files,
    read_tar,
    read_tar_items,
    tar_entry,
    update_digests,
    write_files,
    write_files_as_archive,
    write_run_folder,
)
from tests.sweeping import every, thorough

OTHERS: tuple[Any, ...] = (None, 10**6, "other")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_small_files(tmp_path_factory.mktemp("small"))


def iter_variants(value: Any) -> Iterator[Any]:
    """The same with one thing in it changed, dropped or added."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: item for name, item in value.items() if name != key}
            for other in (*iter_variants(inner), *(o for o in OTHERS if o != inner)):
                yield {**value, key: other}
        yield {**value, "more": 1}
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield value[:index] + value[index + 1 :]
            for other in iter_variants(inner):
                yield [*value[:index], other, *value[index + 1 :]]
        yield [*value, "more"]
    else:
        yield from (other for other in OTHERS if other != value or type(other) is not type(value))


def iter_changed(name: str, data: bytes) -> Iterator[bytes]:
    if name.endswith(".json"):
        for value in iter_variants(json.loads(data)):
            yield json.dumps(value, separators=(",", ":")).encode()
    else:
        lines = data.splitlines()
        for index, line in enumerate(lines):
            for value in iter_variants(json.loads(line)):
                text = json.dumps(value, separators=(",", ":")).encode()
                yield b"".join(one + b"\n" for one in (*lines[:index], text, *lines[index + 1 :]))


@every(21)
def test_every_field_of_every_artifact_is_held_by_its_digest(
    files: Files, tmp_path: Path, step: int
) -> None:
    """Where the manifest is left as it was. Where it is not: see test_rewritten_evidence."""
    items = read_tar_items(read_tar(write_files_as_archive(tmp_path / "good.tar.gz", files)))
    count = 0
    with Rewritten(tmp_path / "x.tar.gz") as target:
        for place, (name, data) in enumerate(items):
            before = b"".join(tar_entry(*item) for item in items[:place])
            after = build_tar(*items[place + 1 :])
            others = () if name.startswith("artifacts/") else iter_changed(name, data)
            for other in islice(others, 0, None, step):
                if other != data:
                    tar = before + tar_entry(name, other) + after
                    assert find_error_rules(target.put(compress_tar(tar))), (name, other)
                    count += 1
    assert count > 1500 // step


CONTRACT = (
    *("run_id", "schema", "seq", "kind", "event_type", "pid"),
    *("layer", "lines", "bytes", "sha256", "platform", "type"),
)


def test_a_field_that_is_missing_or_of_another_kind(files: Files, tmp_path: Path) -> None:
    """Where the manifest is made anew: the schemas stand by themselves."""
    target = tmp_path / "x.tar.gz"
    for name, data in files.items():
        if name.startswith("artifacts/"):
            continue
        is_document = name.endswith(".json")
        lines = [data] if is_document else data.splitlines()
        value = json.loads(lines[0])
        for key in [key for key in value if key in CONTRACT]:
            without = {name: item for name, item in value.items() if name != key}
            for spoiled in (without, {**value, key: {}}, {**value, key: ["x"]}):
                text = json.dumps(spoiled, separators=(",", ":")).encode()
                whole = text if is_document else b"\n".join((text, *lines[1:], b""))
                write_files_as_archive(target, {**files, name: whole})
                assert find_error_rules(target), (name, spoiled)


SPOILED = [
    (KERNEL_FILE, b'"seq":1', b'"seq":2', "contract.seq", "$.seq"),
    (KERNEL_FILE, b'"seq":0,', b'"seq":0,"seq":0,', "contract.duplicate_key", None),
    (KERNEL_FILE, b'"kind":"openat"', b'"kind":"connect"', "contract.kernel_event", "$.event_type"),
    (KERNEL_FILE, b'"status":"success"', b'"status":"error"', "contract.kernel_event", "$.status"),
    (
        *(KERNEL_FILE, b'"access_mode":"write"', b'"access_mode":"read"'),
        *("contract.kernel_event", "$.access_mode"),
    ),
    (
        *(KERNEL_FILE, b'["create","truncate"]', b'["create"]'),
        *("contract.kernel_event", "$.operation_flags"),
    ),
    (KERNEL_FILE, b'"flags":577', b'"flags":65', "contract.kernel_event", "$.operation_flags"),
    (KERNEL_FILE, b'"return_value":3', b'"return_value":-2', "contract.kernel_event", "$.status"),
    (KERNEL_FILE, b'"run_1"', b'"run_2"', "contract.run_id", "$.run_id"),
    (KERNEL_FILE, b"}\n", b"}\n\n", "contract.line", None),
    (KERNEL_FILE, b"}\n", b"} {}\n", "contract.line", None),
    (DETAIL_FILE, b'"seq":2', b'"seq":3', "contract.detail", "$.seq"),
    (DETAIL_FILE, b'"run_1"', b'"run_2"', "contract.run_id", "$.run_id"),
    (SDK_FILE, b'"seq":1', b'"seq":7', "contract.seq", "$.seq"),
    (SDK_FILE, b"tool_call_started", b"tool_call_begun", "contract.line", "$.event_type"),
    (MARKERS_FILE, b'"at":3', b'"at":4', "contract.marker", "$.at"),
    (MARKERS_FILE, b'"sdk_seq":1', b'"sdk_seq":2', "contract.marker", "$.sdk_seq"),
    (RUNNER_FILE, b"run_finished", b"run_started", "contract.line", None),
    (SURFACE_FILE, b'"/work/a","/work/b"', b'"/work/b","/work/a"', "contract.surface", None),
    (SURFACE_FILE, b'"/work/a","/work/b"', b'"/work/b","/work/b"', "contract.surface", None),
    (SURFACE_FILE, b'"run_1"', b'"run_2"', "contract.run_id", "$.run_id"),
    (CORRELATION_FILE, b'"clean"', b'"perfect"', "contract.document", "$.status"),
    (CORRELATION_FILE, b"{", b'{"status":"clean",', "contract.duplicate_key", "$"),
    (HEALTH_FILE, b'"ringbuf_drops":0', b'"ringbuf_drops":5', "contract.health", None),
    (HEALTH_FILE, b'"linux"', b'"darwin"', "contract.health", "$.kernel_layer"),
]


@pytest.mark.parametrize(("name", "old", "new", "rule", "path"), SPOILED)
def test_each_spoiled_file_has_its_finding(
    files: Files, tmp_path: Path, name: str, old: bytes, new: bytes, rule: str, path: str | None
) -> None:
    assert old in files[name]
    spoiled = files[name].replace(old, new, 1)
    target = write_files_as_archive(tmp_path / "x.tar.gz", {**files, name: spoiled})
    findings = [item for item in verify(target).findings if item.rule == rule]
    assert findings
    assert findings[0].source == f"{target}/{name}"
    if path is not None:
        assert findings[0].path == path


def test_a_clean_correlation_of_nothing_is_a_warning(files: Files, tmp_path: Path) -> None:
    correlation = json.loads(files[CORRELATION_FILE])
    spoiled = json.dumps({**correlation, "bindings": []}, separators=(",", ":")).encode()
    report = verify(
        write_files_as_archive(tmp_path / "x.tar.gz", {**files, CORRELATION_FILE: spoiled})
    )
    assert ("contract.unbound", "warning") in [(it.rule, it.severity) for it in report.findings]


CLASSES = ("integrity", "contract", "limit", "security", "packing")


def test_every_rule_has_a_sentence_and_a_class() -> None:
    for name, sentence in RULES.items():
        assert name.partition(".")[0] in ("integrity", "contract", "limit", "security", "packing")
        assert sentence.endswith(".")
    assert {*RULES} >= WARNINGS


# ---------------------------------------------------------------- any bytes at all


@thorough(300)
@given(st.data())
def test_nothing_makes_it_fall_over(tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    files = make_small_files(tmp_path_factory.mktemp("small"))
    name = data.draw(st.sampled_from(sorted(files)))
    whole = files[name]
    cut = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(cut, min(len(whole), cut + 20)))
    more = data.draw(st.binary(max_size=8) | st.sampled_from([b"[", b"\xff", b"\\ud800", b"1e999"]))
    files[name] = whole[:cut] + more + whole[end:]
    verify(write_files_as_archive(folder / "x.tar.gz", files))


@settings(max_examples=100)
@given(st.binary(max_size=3000))
def test_any_tar_at_all(tmp_path_factory: Any, data: bytes) -> None:
    target = tmp_path_factory.getbasetemp() / "any.tar.gz"
    target.write_bytes(compress_tar(data))
    with suppress(InputError):  # no tar
        assert verify(target).errors


# ---------------------------------------------------------------- run folders


def test_a_whole_run(tmp_path: Path) -> None:
    report = verify(write_run_folder(tmp_path / "run"))
    assert report.findings == []


def test_a_workspace_is_not_looked_into(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    (folder / "workspace").mkdir()
    (folder / "workspace" / "x").symlink_to("/")
    assert verify(folder).findings == []


def test_a_run_without_kernel_evidence(tmp_path: Path) -> None:
    files = {name: data for name, data in make_run_files().items() if name not in EVIDENCE_FILES}
    findings = dict.fromkeys(
        (*("kernel_layer", "kernel_events", "kernel_lost"), *("tool_calls", "correlation"))
    )
    files[SUMMARY_FILE] = encode_document(replace(SUMMARY, **findings, cgroup_correlation=None))
    folder = write_files(tmp_path / "run", update_digests(files))
    report = verify(folder)
    assert (report.errors, [item.rule for item in report.findings]) == (0, ["contract.evidence"])


@pytest.mark.parametrize("name", [HEALTH_FILE, SURFACE_FILE, KERNEL_FILE, "metadata.json"])
def test_a_run_that_lacks_something(tmp_path: Path, name: str) -> None:
    folder = write_run_folder(tmp_path / "run")
    (folder / name).unlink()
    assert "integrity.incomplete" in find_error_rules(folder)


@pytest.mark.parametrize("name", [KERNEL_FILE, DETAIL_FILE, STDERR_FILE, "layers"])
def test_a_link_is_found_where_it_is(tmp_path: Path, name: str) -> None:
    """And all other files are verified, and listed as present."""
    folder = write_run_folder(tmp_path / "run")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    surface = folder / SURFACE_FILE
    surface.write_bytes(surface.read_bytes().replace(b"run_1", b"run_2"))
    findings = {item.rule: item.message for item in verify(folder).findings}
    assert findings["security.type"].endswith(f"{name}: a link, not a regular file")
    assert "contract.run_id" in findings
    if name != "layers":
        assert "integrity.incomplete" not in findings


def test_a_changed_artifact(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    (folder / "artifacts" / "claude_stdout.txt").write_text("other")
    findings = {item.message for item in verify(folder).findings if item.rule == "contract.listed"}
    assert "artifacts/claude_stdout.txt is not what was hashed" in findings
    (folder / "artifacts" / "claude_stdout.txt").unlink()
    assert "contract.listed" in find_error_rules(folder)


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        (b'"run_1"', b'"run_2"', "contract.run_id"),
        (b'"black_box"', b'"glass_box"', "contract.check.observability_mode"),
        (b'"run_finished"', b'"run_continued"', "contract.check.event.name"),
        (
            b'"schema_version":"0.2"',
            b'"schema_version":"0.2","schema_version":"0.2"',
            "contract.check.line.duplicate_key",
        ),
    ],
)
def test_events_are_held_to_their_rules(tmp_path: Path, old: bytes, new: bytes, rule: str) -> None:
    folder = write_run_folder(tmp_path / "run")
    path = folder / "events.jsonl"
    path.write_bytes(path.read_bytes().replace(old, new))
    assert any(found.startswith(rule) for found in find_error_rules(folder)), find_error_rules(
        folder
    )


def test_the_profile_of_the_run_counts(tmp_path: Path) -> None:
    files = {
        name: data.replace(b'"claude-code"', b'"codex"') for name, data in make_run_files().items()
    }
    assert find_error_rules(write_files(tmp_path / "one", update_digests(files))) == set()
    files[METADATA_FILE] = files[METADATA_FILE].replace(b'"agents"', b'"poc"')
    assert find_error_rules(write_files(tmp_path / "other", update_digests(files))) == {
        "contract.agent"
    }


def test_a_listing_of_the_run_itself(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    out = folder / STDERR_FILE
    digest = "sha256:" + "0" * 64
    listing = {
        "schema": "stream.manifest.v1",
        "run_id": "run_1",
        "events": {"bytes": 5, "sha256": "0" * 64},
        "files": [{"path": STDERR_FILE, "bytes": out.stat().st_size, "sha256": digest}],
    }
    (folder / "artifacts" / "manifest.json").write_text(json.dumps(listing))
    findings = [item.message for item in verify(folder).findings if item.rule == "contract.listed"]
    assert "artifacts/claude_stderr.txt is not what was hashed" in findings
    assert "the first 5 bytes are not what the run lists" in findings
    assert "artifacts/claude_stdout.txt is not listed" in findings
    assert ARCHIVE_MANIFEST not in findings
