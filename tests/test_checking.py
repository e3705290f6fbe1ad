"""check, given a run folder: what next to the events is not as they record it."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from stream.errors import InputError
from stream.records.control import Finding
from stream.records.run import Profile
from stream.transformers.event_rules import event_rules
from stream.verify.check import CheckResult, run_check
from tests.collecting import Collected
from tests.folders import FILES, Folder, digest
from tests.transformers.runs import encode_run
from tests.transformers.samples import line, record
from tests.transformers.test_invariants import BROKEN_HERE

BROKEN = line(record(operation={"target": ""})) + b"\n"


def check_folder(target: Path, profile: Profile | None = None) -> tuple[CheckResult, list[Finding]]:
    collected = Collected()
    answer = anyio.run(run_check, str(target), profile, None, collected)
    return answer, [item for item in collected.items if isinstance(item, Finding)]


def find_findings(target: Path) -> list[Finding]:
    return check_folder(target)[1]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run")


def test_a_good_folder_has_no_finding(folder: Folder) -> None:
    answer, findings = check_folder(folder.write())
    assert findings == []
    assert (answer.events, answer.runs, answer.findings, answer.errors) == (9, 1, 0, 0)
    assert str(answer.counts) == "9 in = 9 out + 0 rejected + 0 filtered"


Change = Callable[[Folder], object]


def change_after_writing(change: Change) -> Change:
    """Done to a folder that is written already: what somebody did to the evidence."""

    def work(folder: Folder) -> None:
        folder.write()
        change(folder)

    return work


def change_before_writing(change: Change) -> Change:
    """What the recorder did wrong."""

    def work(folder: Folder) -> None:
        change(folder)
        folder.write()

    return work


def _edit_json(name: str, **changes: Any) -> Change:
    def work(folder: Folder) -> None:
        path = folder.root / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return work


def _refer_to(ref: str, kind: str = "process", **changes: Any) -> Change:
    def work(folder: Folder) -> None:
        folder.write()
        folder.item(kind).update({"content_ref": ref, **changes})
        folder.write_events()
        folder.write_manifest()

    return work


def _refer_to_link(folder: Folder) -> None:
    outside = folder.root.parent / "outside"
    outside.write_text("x")
    (folder.root / "out").symlink_to(outside)
    _refer_to("out")(folder)


def _refer_to_fifo(folder: Folder) -> None:
    os.mkfifo(folder.root / "fifo")
    _refer_to("fifo")(folder)


def _unlisted_link(folder: Folder) -> None:
    (folder.artifacts / "more").symlink_to("/")


def _later_event(folder: Folder) -> None:
    """An event that keeps every rule, and is not the one that was written."""
    events = folder.root / "events.jsonl"
    events.write_bytes(events.read_bytes().replace(b'"environment":"', b'"environment": "', 1))


def _other_manifest(folder: Folder) -> None:
    folder.write_manifest(run_id="another")


def _manifest_files(**changes: Any) -> Change:
    def work(folder: Folder) -> None:
        path = folder.artifacts / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["files"][1].update(changes)
        path.write_text(json.dumps(manifest))

    return change_after_writing(work)


def _more_in_manifest(path: str) -> Change:
    def work(folder: Folder) -> None:
        target = folder.artifacts / "manifest.json"
        manifest = json.loads(target.read_text())
        manifest["files"].append({"path": path, "bytes": 0, "sha256": "0" * 64})
        target.write_text(json.dumps(manifest))

    return change_after_writing(work)


def _broken_diff(folder: Folder) -> None:
    path = folder.root / FILES["diff"]
    path.write_bytes(path.read_bytes().replace(b"@@ -1", b"@@ -x"))


def _run_id(folder: Folder) -> None:
    folder.metadata["run_id"] = "another"


def _write_file(name: str, data: bytes) -> Change:
    return lambda folder: (folder.root / name).write_bytes(data)


#: (rule, what is done)
CASES: list[tuple[str, Change]] = [
    (
        "folder.metadata",
        change_after_writing(lambda folder: (folder.root / "metadata.json").unlink()),
    ),
    ("folder.run_id", change_before_writing(_run_id)),
    ("folder.run_id", change_after_writing(_other_manifest)),
    (
        "folder.constraints",
        change_before_writing(lambda f: f.metadata["constraints"].append("mine.own")),
    ),
    ("folder.evidence", change_after_writing(_write_file("capability-surface.json", b"{}"))),
    (
        "folder.record",
        change_before_writing(lambda f: (f.root / "boundary.ndjson").write_bytes(BROKEN)),
    ),
    (
        "folder.record",
        change_before_writing(
            _write_file("boundary.ndjson", b'{"schema_version":"unheard_of_v1"}\n')
        ),
    ),
    ("artifact.inside", _refer_to("/etc/hostname")),
    ("artifact.inside", _refer_to("artifacts/../../run/metadata.json")),
    ("artifact.inside", _refer_to_link),
    ("artifact.present", _refer_to("artifacts/absent.txt")),
    ("artifact.present", _refer_to("artifacts/claude_stdout.txt/x")),
    ("artifact.present", _refer_to("workspace")),
    ("artifact.present", _refer_to(".")),
    ("artifact.present", _refer_to("x" * 5000)),
    ("artifact.present", _refer_to("a\0b")),
    ("artifact.present", _refer_to("")),
    ("artifact.present", _refer_to_fifo),
    ("artifact.digest", _refer_to(FILES["stdout_log"], hash=f"sha256:{'0' * 64}")),
    ("artifact.checkable", _refer_to(FILES["stdout_log"], hash="unknown")),
    ("artifact.checkable", _refer_to(FILES["stdout_log"], hash=f"sha256:{'0' * 63}X")),
    (
        "manifest.document",
        change_after_writing(lambda folder: (folder.artifacts / "manifest.json").unlink()),
    ),
    ("manifest.document", change_after_writing(_write_file("artifacts/manifest.json", b"{"))),
    (
        "manifest.document",
        change_after_writing(_write_file("artifacts/manifest.json", b"[" * 100_000)),
    ),
    (
        "manifest.document",
        change_after_writing(_write_file("artifacts/manifest.json", b'{"schema":"x"}')),
    ),
    ("manifest.document", change_after_writing(_edit_json("artifacts/manifest.json", files=5))),
    ("manifest.inside", _more_in_manifest("../run/metadata.json")),
    ("manifest.present", _more_in_manifest("artifacts/absent")),
    ("manifest.digest", _manifest_files(bytes=1)),
    ("manifest.digest", _manifest_files(sha256="0" * 64)),
    ("manifest.events", change_after_writing(_later_event)),
    ("manifest.unlisted", change_after_writing(_write_file("artifacts/more.txt", b"x"))),
    ("manifest.unlisted", change_after_writing(_unlisted_link)),
    ("diff.parses", change_before_writing(_broken_diff)),
    ("diff.parses", change_before_writing(_write_file(FILES["diff"], b"this is no patch\n"))),
    ("diff.applies", change_after_writing(_write_file("workspace/kept.txt", b"mine\n"))),
    ("diff.applies", change_after_writing(lambda folder: (folder.workspace / "new file").unlink())),
]
ELSEWHERE = {"folder.contract", "diff.checkable"}  #: below


@pytest.mark.parametrize(("rule", "change"), CASES, ids=[rule for rule, _ in CASES])
def test_a_rule_that_alone_is_broken_is_found_alone(
    rule: str, change: Change, folder: Folder
) -> None:
    change(folder)
    answer, (finding,) = check_folder(folder.root)
    assert (finding.rule, finding.severity) == (rule, event_rules()[rule].severity)
    assert (answer.findings, answer.errors) == (1, finding.severity == "error")
    assert "\n" not in finding.message
    assert str(finding.source).startswith(str(folder.root))


def test_every_rule_is_broken_somewhere() -> None:
    assert {rule for rule, _ in CASES} | ELSEWHERE | BROKEN_HERE == set(event_rules())
    assert not {rule for rule, _ in CASES} & BROKEN_HERE


def test_metadata_of_another_recorder_are_only_a_warning(folder: Folder) -> None:
    del folder.metadata["schema"]
    (finding,) = find_findings(folder.write())
    assert (finding.rule, finding.severity) == ("folder.contract", "warning")


@pytest.mark.parametrize("data", [b"{", b"[]", b'"\xff"', b'{"schema":"x"}', b'{"schema":5}'])
def test_metadata_that_cannot_be_used(data: bytes, folder: Folder) -> None:
    folder.write()
    (folder.root / "metadata.json").write_bytes(data)
    assert [one.rule for one in find_findings(folder.root)] in (
        ["folder.metadata", "manifest.digest"],
        ["folder.metadata"],
    )


def test_without_git_the_diff_is_not_checked(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write()
    monkeypatch.setenv("PATH", "/nonexistent")
    (finding,) = find_findings(folder.root)
    assert (finding.rule, finding.severity) == ("diff.checkable", "warning")


# ------------------------------------------------------------- runs that were cut off


def test_a_run_that_was_cut_off_is_one_finding(folder: Folder) -> None:
    """However far it came, and whatever of its artifacts, its metadata, its manifest is there."""
    folder.write()
    data = (folder.root / "events.jsonl").read_bytes()
    shutil.rmtree(folder.artifacts)
    end = data.rindex(b"\n", 0, -1) + 1
    for size in (0, 1, 500, *range(700, end, 2500), end, end + 9, len(data) - 2):
        (folder.root / "events.jsonl").write_bytes(data[:size])
        assert [one.rule for one in find_findings(folder.root)] == ["run.incomplete"], size
    (folder.root / "metadata.json").unlink()
    assert [one.rule for one in find_findings(folder.root)] == ["run.incomplete"]
    (folder.root / "events.jsonl").unlink()
    assert [one.rule for one in find_findings(folder.root)] == ["run.incomplete"]
    shutil.rmtree(folder.workspace)
    (finding,) = find_findings(folder.root)
    assert finding.rule == "run.incomplete"
    assert finding.source == str(folder.root / "events.jsonl")


def test_what_was_lost_is_one_finding(folder: Folder) -> None:
    """The disk was full: the log is short, and there is no manifest."""
    folder.write()
    folder.item("stdout_log")["metadata"]["lost_bytes"] = 512
    folder.write_events()
    (folder.root / FILES["stdout_log"]).write_bytes(b"{")
    (folder.artifacts / "manifest.json").unlink()
    (finding,) = find_findings(folder.root)
    assert finding.rule == "run.incomplete"
    assert "512 bytes of artifacts/claude_stdout.txt" in finding.message


# --------------------------------------------------------------------- the diff


def test_neither_user_nor_workspace_configures_git(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attributes that convert, and filters that leave a trace, of the user and of the
    workspace: nothing of it is heeded, and nothing of it is started."""
    folder.write()
    trace = tmp_path / "trace"
    home = tmp_path / "home"
    home.mkdir()
    config = f'[filter "evil"]\nclean = touch {trace}\nsmudge = touch {trace}\nrequired = true\n'
    config += f"[core]\nautocrlf = true\nfsmonitor = touch {trace}\nattributesFile = {home}/a\n"
    (home / ".gitconfig").write_text(config)
    (home / "a").write_text("* text eol=crlf filter=evil\n")
    (folder.workspace / ".gitattributes").write_text("* text=auto eol=lf ident filter=evil\n")
    own = folder.workspace / ".git"
    for name in ("objects", "refs"):
        (own / name).mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "config").write_text(config)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    assert find_findings(folder.root) == []
    assert not trace.exists()


def test_a_workspace_in_place_is_not_looked_into(folder: Folder) -> None:
    folder.metadata["workspace_mode"] = "here"
    folder.write()
    (folder.workspace / "kept.txt").write_text("mine")
    assert find_findings(folder.root) == []


def test_a_workspace_elsewhere_is_not_looked_into(folder: Folder, tmp_path: Path) -> None:
    folder.metadata["workspace"] = str(tmp_path)
    assert find_findings(folder.write()) == []


def test_nothing_changed_is_an_empty_diff(folder: Folder) -> None:
    (folder.root / FILES["diff"]).write_bytes(b"")
    assert find_findings(folder.write()) == []


def test_the_artifacts_of_a_folder_stay_as_they_are(folder: Folder) -> None:
    folder.write()
    paths = sorted(path for path in folder.root.rglob("*") if path.is_file())
    states = [(path, digest(path), path.stat().st_mtime_ns) for path in paths]
    assert find_findings(folder.root) == []
    paths = sorted(path for path in folder.root.rglob("*") if path.is_file())
    assert [(path, digest(path), path.stat().st_mtime_ns) for path in paths] == states


# --------------------------------------------------------------------- profiles


def test_the_profile_is_that_of_the_run(folder: Folder) -> None:
    for one in folder.run:
        one["session"]["agent_id"] = "codex"
    folder.metadata["profile"] = "agents"
    folder.write()
    assert find_findings(folder.root) == []
    assert [one.rule for one in check_folder(folder.root, "poc")[1]] == ["session.agent_id"] * 9
    assert {one.rule for one in find_findings(folder.root / "events.jsonl")} == {"session.agent_id"}


# -------------------------------------------------------------- unusable input


def _folder_with(make: Callable[[Path], None], path: Path) -> None:
    path.mkdir()
    make(path / "events.jsonl")


def _refer_to_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "no such file or directory"),
        (lambda path: path.symlink_to("/dev/null"), "neither a run folder nor"),
        (lambda path: path.symlink_to(path), "too many levels of symbolic links"),
        (_refer_to_socket, "neither a run folder nor"),
        (lambda path: (path / "x").mkdir(parents=True), "no run folder"),
        (lambda path: (path / "events.jsonl").mkdir(parents=True), "a folder, not a regular file"),
        (lambda path: _folder_with(os.mkfifo, path), "a fifo, not a regular"),
        (
            lambda path: (path.mkdir(), (path / "events.jsonl").symlink_to("/etc/hostname")),
            "a link, not a regular",
        ),
    ],
    ids=range(8),
)
def test_what_is_no_run(
    make: Callable[[Path], object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("r"))
    with pytest.raises(InputError) as caught:
        check_folder(Path("r"))
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("r")


def test_a_file_of_events(tmp_path: Path, folder: Folder) -> None:
    path = tmp_path / "e"
    path.write_bytes(b"\n".join([*encode_run(folder.run), b"junk", b""]))
    answer, (finding,) = check_folder(path)
    assert (finding.rule, finding.line) == ("line.json_object", 10)
    assert answer.counts.rejected == 1
