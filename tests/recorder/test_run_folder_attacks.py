"""An agent that reaches into the folder of its own run: its exit code stays its own,
nothing outside is written to, and the record reports that it is not whole."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile

import pytest

from stream.sources.wrappers import MOST_BEGUN, MOST_HELD, MOST_IN_ALL, WrapperCallReader
from tests.cli.command import Place
from tests.recorder.runs import LOG, LOGGED, Run, observe, only_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containment needs Linux")

OUTPUT = "artifacts/claude_stdout.txt"
NOT_OURS = "was removed, replaced or written to by somebody else"


def record_attack(place: Place, agent: str) -> Run:
    script = f"echo text; {agent}; exit 3"
    words = ("--workspace", "empty", "--constraint", "output.json_only")
    run = only_run(place, place.stream("observe", *words, "--", "sh", "-c", script))
    assert run.done.code == 3
    assert run.done.out.startswith(b"text\n")
    return run


@pytest.mark.parametrize(
    ("agent", "trouble"),
    [
        ("rm ../events.jsonl", f"events.jsonl {NOT_OURS}"),
        ("rm ../events.jsonl; mkfifo ../events.jsonl", f"events.jsonl {NOT_OURS}"),
        ("echo '{}' >>../events.jsonl", f"events.jsonl {NOT_OURS}"),
        ("rm -rf ../*", f"events.jsonl {NOT_OURS}"),
        ("rm -rf ../artifacts", "no such file or directory"),
        (f"rm ../{OUTPUT}; mkfifo ../{OUTPUT}", f"{OUTPUT} {NOT_OURS}"),
        (f"echo '[1,2,3,4,5]' >../{OUTPUT}", f"{OUTPUT} {NOT_OURS}"),
        (f"{LOGGED}; echo junk >>../{LOG}", f"{LOG} {NOT_OURS}"),
        (f"{LOGGED}; rm ../{LOG}; mkfifo ../{LOG}", f"{LOG} {NOT_OURS}"),
        (f"mkdir ../{LOG}; git --version", f"1 call of {LOG}: file exists"),
        ("mkfifo ../artifacts/fs_changes.jsonl", "fs_changes.jsonl: file exists"),
        ("mkdir ../artifacts/summary.json", "summary.json: file exists"),
    ],
)
def test_what_is_taken_away_or_replaced(place: Place, agent: str, trouble: str) -> None:
    run = record_attack(place, agent)
    lines = [line for line in run.done.err.splitlines() if trouble in line]
    assert lines
    assert all(line.startswith("stream: the record is incomplete: ") for line in lines)


def test_an_answer_that_was_not_printed_is_not_evaluated(place: Place) -> None:
    run = record_attack(place, f"echo '[1,2,3,4,5]' >../{OUTPUT}")
    (check,) = run.event("evaluation_performed")["evaluation"]["alignment"]["checks"]
    assert check["status"] == "unknown"
    assert NOT_OURS in check["evidence"]


def test_where_changes_go_is_not_the_agents_to_say(place: Place) -> None:
    """It names another folder in the description of its run."""
    victim = place.root / "victim"
    victim.mkdir()
    agent = f"""sed -i 's|"source": .*|"source": "{victim}",|' ../metadata.json; touch new"""
    run = only_run(place, place.stream("observe", "--", "sh", "-c", agent))
    assert str(victim) in (run.folder / "metadata.json").read_text()
    done = place.stream("apply", run.folder)
    assert done.code == 2
    assert "metadata.json: is not what the run recorded" in done.err
    assert not list(victim.iterdir())


def test_what_is_taken_over_cannot_be_changed_afterwards(place: Place) -> None:
    run = only_run(place, place.stream("observe", "--", "touch", "new"))
    listing = run.folder / "artifacts" / "fs_changes.jsonl"
    listing.write_bytes(listing.read_bytes().replace(b'"0644"', b'"0755"'))
    done = place.stream("apply", run.folder)
    assert done.code == 2
    assert "fs_changes.jsonl: is not what the run recorded" in done.err


@pytest.mark.parametrize("name", ["fs_diff.patch", "fs_changes.jsonl", "command_logs.jsonl"])
def test_no_link_is_written_through(place: Place, name: str) -> None:
    victim = place.root / "victim"
    victim.write_text("mine")
    run = record_attack(place, f"ln -s {victim} ../artifacts/{name}; git --version; touch made")
    assert victim.read_text() == "mine"
    assert "file exists" in run.done.err


@pytest.mark.parametrize(
    ("plant", "names"),
    [
        (f"echo '{{}}' >../{LOG}", [LOG]),
        ("echo x >../artifacts/extra.txt", ["artifacts/extra.txt"]),
        ("echo x >../boundary.ndjson; echo x >../.seen", [".seen", "boundary.ndjson"]),
        ("mkdir ../layers; echo x >../layers/kernel.ndjson", ["layers"]),
        (r'touch "../artifacts/$(printf "\377")"', [r"artifacts/\xff"]),
        ("mkfifo ../artifacts/pipe", ["artifacts/pipe"]),
        ("ln -s /etc/passwd ../artifacts/link", ["artifacts/link"]),
    ],
)
def test_what_somebody_else_put_there_is_no_evidence(
    place: Place, plant: str, names: list[str]
) -> None:
    run = record_attack(place, plant)
    sentence = f"not the recorder's, and no part of the record: {', '.join(names)}"
    assert (run.summary["incomplete"], run.summary["foreign_files"]) == ([sentence], names)
    assert f"the record is incomplete: {sentence}" in run.done.err
    listed = json.loads((run.folder / "artifacts/manifest.json").read_bytes())["files"]
    assert not {one["path"] for one in listed} & {*names}
    checked = place.stream("check", run.folder)
    assert checked.code == 1
    assert "run.incomplete" in {finding["rule"] for finding in checked.records}
    archive = place.root / "run.tar.gz"
    assert place.stream("archive", run.folder, "-o", archive).code == 0
    with tarfile.open(archive) as tar:
        assert not {*tar.getnames()} & {*names}
    assert place.stream("verify", archive).code == 0


def test_of_many_that_somebody_put_there_some_are_named(place: Place) -> None:
    run = record_attack(place, "for i in 1 2 3 4 5 6 7 8 9; do touch ../$i; done")
    assert run.summary["incomplete"][0].endswith("1, 2, 3, 4, 5 and 4 more")


@pytest.mark.parametrize("mode", ["empty", "copy", "here"])
def test_another_folder_in_the_place_of_the_workspace_is_reported(place: Place, mode: str) -> None:
    (place.workspace / "file").touch()
    keep = 'mv other/runs "$W"; ' if mode == "here" else ""
    agent = f'cd ..; mv "$W" other; mkdir "$W"; touch "$W/new"; {keep}rm -rf other'
    words = ("--workspace", mode, "--run-id", "one", "--", "sh", "-c")
    folder = place.workspace.name if mode == "here" else "workspace"
    done = place.stream("observe", *words, f"W={folder}; {agent}")
    run = Run(place.workspace / "runs" / "one", done)
    (trouble, *_) = [one for one in run.summary["incomplete"] if "exchanged" in one]
    assert trouble in done.err
    assert "new" in run.changes
    assert run.facts_of("fs_diff_captured", "diff")["complete"] is False


@pytest.mark.parametrize(
    ("mount", "hidden"),
    [("mount -t tmpfs none 'a folder'", "a folder"), ("mount --bind other file", "file")],
)
def test_a_mount_over_a_part_of_the_workspace_is_reported(
    place: Place, needs_root: None, mount: str, hidden: str
) -> None:
    (place.workspace / "a folder").mkdir()
    (place.workspace / "file").touch()
    agent = f"echo other >other; echo written >file; {mount} || exit 77"
    words = ("--run-id", "one", "--", "sh", "-c", agent)
    workspace = place.workspace / "runs/one/workspace"
    try:
        run = Run(place.workspace / "runs" / "one", place.stream("observe", *words))
    finally:
        subprocess.run(["umount", workspace / hidden], capture_output=True, check=False)
    if run.done.code == 77:
        pytest.skip("nothing can be mounted here")
    assert run.done.code == 0, run.done.err
    (trouble,) = run.summary["incomplete"]
    assert f"of the workspace {hidden} was mounted over" in trouble
    assert run.facts_of("fs_diff_captured", "diff")["complete"] is False


@pytest.mark.parametrize("name", [OUTPUT, "metadata.json", "events.jsonl"])
def test_an_edit_in_place_is_reported_at_the_end(place: Place, name: str) -> None:
    """Of the same length, and with the time that the file had."""
    write = f"printf X | dd of=../{name} bs=1 conv=notrunc 2>&-"
    edit = f"touch -r ../{name} was; {write}; touch -r was ../{name}"
    run = record_attack(place, f"until [ -s ../{OUTPUT} ]; do :; done; {edit}")
    assert f"{name} {NOT_OURS}" in run.summary["incomplete"]


@pytest.mark.parametrize(
    "line",
    [r"1 1 \377\0371\037/\037", "1 1 git\\037%05000d\\037/\\037", r"99999999999 1 x", r"1 1 \037"],
)
def test_lines_that_no_wrapper_wrote(place: Place, line: str) -> None:
    run = record_attack(place, f"printf '{line}\\n' 1 >../.wrappers/commands; git --version")
    assert run.commands[-1]["name"] == "git"
    assert len(run.events) == 9


def test_who_floods_the_log_does_not_fill_our_memory() -> None:
    reader = WrapperCallReader()
    for pid in range(2 * MOST_BEGUN):
        assert not list(reader.feed(b"%d 0 x\n" % pid))
    assert reader.lost == MOST_BEGUN
    piece = b"x" * (MOST_HELD - 1)
    for pid in range(20):
        assert not list(reader.feed(b"%d 0 %s\n" % (pid, piece)))
    held = sum(map(len, reader._begun.values()))
    assert MOST_IN_ALL - MOST_HELD < held <= MOST_IN_ALL
    before = reader.lost
    assert not list(reader.feed(b"7777 0 %s\n7777 0 xx\n" % piece))
    assert reader.lost > before
    assert [one.name for one in reader.feed(b"99999 1 git\x1f1\x1f/\x1f\n")] == ["git"]


def test_the_log_of_an_honest_agent_is_whole(place: Place) -> None:
    run = observe(place, "--", "sh", "-c", "git --version; git --version")
    assert len(run.commands) == 2
    assert run.summary["incomplete"] == []
