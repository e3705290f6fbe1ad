"""What `stream observe` records of a command, and what it leaves alone."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stream.observe.settings import new_run_id
from stream.records.decision import CONSTRAINTS, ORDER
from stream.records.run import check_run_id
from tests.cli.command import PATIENCE, STREAM, Place, write_script
from tests.recorder.runs import Run, observe, only_run, read_records

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containment needs Linux")

SCENARIO = """# A report

## Request

Write the report.

### In JSON

No prose.

## Constraints

- `output.json_only`: for the machine
- scope.no_ci_changes
"""


def write_scenario(place: Place, text: str = SCENARIO, **parameters: Any) -> Path:
    folder = place.root / "task"
    folder.mkdir()
    (folder / "scenario.md").write_text(text)
    if parameters:
        (folder / "parameters.json").write_text(json.dumps(parameters))
    return folder


@pytest.fixture(scope="module")
def run(shared: Place) -> Run:
    (shared.workspace / "old.txt").write_text("old\n")
    agent = "echo text; echo complained >&2; echo new >new.txt; rm old.txt; git --version; exit 3"
    return observe(shared, "--environment", "ci", "--", "sh", "-c", agent)


def test_nine_events_in_their_order(run: Run) -> None:
    assert run.names == [forms[0] for forms in ORDER]
    times = [event["timestamp"] for event in run.events]
    assert times == sorted(times)


def test_spans_are_a_tree(run: Run) -> None:
    parents = [None, 0, 0, 2, 3, 3, 5, 6, 0]
    spans = [event["span_id"] for event in run.events]
    assert [event["parent_span_id"] for event in run.events] == [
        None if parent is None else spans[parent] for parent in parents
    ]


def test_output_and_exit_code_are_the_commands(run: Run) -> None:
    assert run.done.code == 3
    assert run.done.out == b"text\n" + subprocess.check_output(["git", "--version"])
    assert "complained\n" in run.done.err
    assert run.stdout == run.done.out
    assert run.stderr == b"complained\n"
    assert run.summary_of("agent_completed").startswith(
        "[agent_completed] exit_code=3 duration_ms="
    )


def test_the_folder_that_it_was_called_in_is_as_it_was(run: Run) -> None:
    here = run.folder.parent.parent
    assert sorted(path.name for path in here.iterdir()) == ["old.txt", "runs"]
    assert (here / "old.txt").read_text() == "old\n"
    assert sorted(path.name for path in (run.folder / "workspace").iterdir()) == ["new.txt"]


def test_changes(run: Run) -> None:
    assert {path: change["change"] for path, change in run.changes.items()} == {
        "new.txt": "added",
        "old.txt": "removed",
    }
    assert run.facts_of("fs_diff_captured", "diff")["changed_paths"] == ["new.txt", "old.txt"]


def test_commands(run: Run) -> None:
    (call,) = run.commands
    assert call["argv"] == ["git", "--version"]
    assert call["category"] == "vcs"
    assert call["cwd"] == str(run.folder / "workspace")
    assert not call["after_exit"]


def test_what_it_is_given_is_declared(run: Run) -> None:
    session = run.events[0]["session"]
    assert session["environment"] == "ci"
    assert (session["agent_id"], session["agent_version"]) == ("sh", "unknown")
    assert run.events[0]["request"]["user_request_raw"] == "unknown"


def test_nobody_else_may_look(run: Run) -> None:
    assert stat.S_IMODE(run.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((run.folder / "artifacts").stat().st_mode) == 0o700


@pytest.mark.parametrize("kernel", ["off", "auto"])
@pytest.mark.parametrize("umask", ["000", "022"])
def test_no_file_of_a_record_follows_the_umask(place: Place, kernel: str, umask: str) -> None:
    run = observe(
        place,
        *("--matrix", "--cap", "cap_fs_write_workspace_tree", "--kernel", kernel),
        *("--capture", "redacted", "--archive", "a.tgz", "--raw-kernel", "raw.ndjson")[
            : None if kernel == "auto" else 4
        ],
        *("--", "sh", "-c", "git --version; echo new >new"),
        argv0=("sh", "-c", f'umask {umask}; exec "$@"', "sh", STREAM),
    )
    files = [place.workspace / "a.tgz"]
    if kernel == "auto":
        files.append(place.workspace / "raw.ndjson")
    for folder, folders, names in os.walk(run.folder):
        folders[:] = [name for name in folders if name != "workspace"]  # as its source is
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700, folder
        files += [Path(folder, name) for name in names]
    assert (run.folder / "boundary.ndjson") in files
    assert (run.folder / "artifacts/fs_diff.patch") in files
    assert ((run.folder / "layers/kernel.ndjson") in files) == (kernel == "auto")
    modes = {str(path): stat.S_IMODE(path.stat().st_mode) for path in files}
    assert modes == dict.fromkeys(modes, 0o600)


def test_the_manifest_has_every_file(run: Run) -> None:
    manifest = json.loads((run.folder / "artifacts/manifest.json").read_bytes())
    named = {one["path"] for one in manifest["files"]}
    there = {f"artifacts/{path.name}" for path in (run.folder / "artifacts").iterdir()}
    assert named == there - {"artifacts/manifest.json"} | {"metadata.json"}


def test_nothing_but_the_run_is_left_in_its_folder(run: Run) -> None:
    names = {path.name for path in run.folder.iterdir()}
    assert names == {"artifacts", "events.jsonl", "metadata.json", "workspace"}


def test_it_prints_where_and_what_next(run: Run) -> None:
    assert f"a copy of {run.folder.parent.parent}" in run.done.err
    assert f"stream apply runs/{run.folder.name}" in run.done.err
    assert "2 paths changed" in run.done.err


def test_a_scenario(place: Place) -> None:
    task = write_scenario(place, scenario_id="report-1", workspace_mode="empty", language="python")
    run = observe(place, "--scenario", task, "--constraint", "style.no_emojis", "--", "true")
    request = run.events[1]["request"]
    assert request["user_request_raw"] == "Write the report.\n\n### In JSON\n\nNo prose."
    assert [one["id"] for one in request["constraints"]] == [
        "output.json_only",
        "scope.no_ci_changes",
        "style.no_emojis",
    ]
    assert request["constraints"][0]["type"] == CONSTRAINTS["output.json_only"].type
    assert request["context"] == {"language": "python"}
    assert run.events[0]["session"]["session_id"] == "report-1"
    assert run.summary_of("workspace_prepared").startswith(
        "[workspace_prepared] workspace_mode=empty"
    )


def test_the_command_line_goes_before_the_scenario(place: Place) -> None:
    task = write_scenario(place, workspace_mode="empty", capture_mode="hashed")
    (place.root / "ask").write_text("Something else\n")
    words = ["--workspace", "here", "--capture", "full", "--request", f"@{place.root / 'ask'}"]
    run = observe(place, "--scenario", task, *words, "--", "touch", "made")
    assert (place.workspace / "made").exists()
    assert run.events[1]["request"]["user_request_raw"] == "Something else\n"
    assert list(run.changes) == ["made"]
    assert not (run.folder / "workspace").exists()


def test_in_place_a_second_run_does_not_see_the_first(place: Place) -> None:
    observe(place, "--workspace", "here", "--", "true")
    done = place.stream("observe", "--workspace", "here", "--run-id", "second", "--", "true")
    assert "nothing was changed" in done.err


def test_a_folder_of_runs_within_a_folder_of_something_else(place: Place) -> None:
    (place.workspace / "runs").mkdir()
    (place.workspace / "runs" / "mine.txt").write_text("mine")
    place.stream("observe", "--run-id", "first", "--", "true")
    done = place.stream("observe", "--run-id", "second", "--", "ls", "runs")
    assert done.out == b"mine.txt\n"


@pytest.mark.parametrize("word", ["nope", "./nope", "no/such/nope"])
def test_no_such_command(place: Place, word: str) -> None:
    run = observe(place, "--", word, "x")
    assert run.done.code == 127
    assert len(run.events) == 9
    assert "not started: no such file or directory" in run.summary_of("agent_completed")
    assert "not started: no such file or directory" in run.done.err


CI = ("--constraint", "scope.no_ci_changes")


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_a_command_that_is_not_there_is_named(place: Place, quiet: tuple[str, ...]) -> None:
    """It is what went wrong, and names where it was looked for."""
    write_script(place.workspace / "lost", "#!/no/such/interpreter\n")
    (place.workspace / "folder").mkdir()
    hint = "commands are searched on PATH: to start the file that is here, use ./lost"
    here = str(place.workspace)
    for word, why in (
        ("nosuch", "there is no such program on PATH"),
        ("lost", hint),
        ("folder", "there is no such program on PATH"),
        ("sub/nosuch", f"neither in the workspace nor in {here}"),
        ("./lost", "the file exists, but its interpreter or loader does not"),
        ("/no/such", ""),
    ):
        done = place.stream("observe", *quiet, *CI, "--", word)
        reason = "no such file or directory"
        why = f"; {why}" if why else why
        assert f"stream: {word}: not started: {reason}{why}\n" in done.err
        assert done.code == 127
        assert "policy" not in done.err, "nothing ran that could have kept to one"
        assert bool(quiet) == (done.err.count("\n") == 1)


@pytest.mark.parametrize("mode", ["copy", "empty", "here"])
def test_a_command_next_to_the_workspace(place: Place, mode: str) -> None:
    """In a copy `..` is another folder: the command is the one that is meant here."""
    write_script(place.root / "agent.sh", '#!/bin/sh\necho "$0" "$1"\n')
    run = observe(place, "--workspace", mode, "--", "../agent.sh", "../agent.sh")
    assert run.done.out.decode() == f"{place.root / 'agent.sh'} ../agent.sh\n"
    hint = "stream: ../agent.sh: this path is relative to the workspace, and leads out of it\n"
    assert (hint in run.done.err) == (mode != "here")


@pytest.mark.parametrize(
    ("mode", "capture"),
    [("copy", "full"), ("copy", "redacted"), ("copy", "hashed"), ("empty", "full")],
)
def test_only_what_can_be_applied_is_offered(place: Place, mode: str, capture: str) -> None:
    words = ("--capture", capture, "--workspace", mode)
    run = observe(place, *words, "--", "touch", "made")
    folder = run.folder.relative_to(place.workspace)
    offered = f"stream apply {folder}\n" in run.done.err
    assert offered == (place.stream("apply", run.folder, "--dry-run").code == 0)
    assert (f"its changes are in {folder}/workspace\n" in run.done.err) != offered


def test_a_command_that_cannot_be_run(place: Place) -> None:
    (place.workspace / "agent").write_text("text")
    run = observe(place, "--", "./agent")
    assert run.done.code == 126
    assert "permission denied" in run.summary_of("agent_completed")


def test_a_script_without_a_first_line(place: Place) -> None:
    write_script(place.workspace / "agent", "echo ran\n")
    assert observe(place, "--", "./agent").done.code == 126


def test_words_are_the_commands_own(place: Place) -> None:
    code = "import os, sys; sys.stdout.buffer.write(os.fsencode('|'.join(sys.argv[1:])))"
    words = ["", "--help", "--", "--quiet", "a b", "new\nline", os.fsdecode(b"\xff\xfe"), "ü"]
    run = observe(place, "--quiet", "--", sys.executable, "-c", code, *words)
    assert run.done.out == os.fsencode("|".join(words))
    assert run.done.err == ""


def test_its_stdin_is_ours(place: Place) -> None:
    assert observe(place, "-q", "--", "cat", data=b"asked\0\xff").done.out == b"asked\0\xff"


def test_its_environment_is_ours(place: Place) -> None:
    code = "import os,json; print(json.dumps(dict(os.environ)))"
    run = observe(place, "--no-wrap", "--", sys.executable, "-c", code)
    env = json.loads(run.done.out)
    del env["STREAM_TREE"]
    assert env.pop("GIT_CEILING_DIRECTORIES") == str(run.folder)
    assert env.pop("PWD") == str(run.folder / "workspace")
    ours = {key: value for key, value in place.env.items() if key not in ("PWD", "LC_CTYPE")}
    env.pop("LC_CTYPE", None)
    assert env == ours


def test_no_wrappers(place: Place) -> None:
    run = observe(place, "--no-wrap", "--", "sh", "-c", 'git --version; echo "$PATH"')
    assert run.done.out.decode().splitlines()[1] == place.env["PATH"]
    assert run.names[6] == "commands_observation_unavailable"
    assert "wrappers disabled" in run.summary_of("commands_observation_unavailable")


def test_no_wrapped_program_was_called(place: Place) -> None:
    run = observe(place, "--", "true")
    summary = run.summary_of("commands_observation_unavailable")
    assert (
        "unknown: no wrapper was called, and without a kernel feed that is complete nobody saw"
        in summary
    )
    assert run.summary["commands"] == 0


def test_a_program_of_ones_own_is_wrapped(place: Place) -> None:
    write_script(place.root / "deploy", "#!/bin/sh\necho deployed\n")
    path = f"{place.root}:{place.env['PATH']}"
    run = observe(place, "--wrap", "deploy", "--", "sh", "-c", "deploy it", env={"PATH": path})
    assert run.done.out == b"deployed\n"
    assert [call["argv"] for call in run.commands] == [["deploy", "it"]]


def test_the_agent_itself_is_not_wrapped(place: Place) -> None:
    run = observe(place, "--", "git", "--version")
    assert run.commands == []


def test_tests_are_recognised(place: Place) -> None:
    run = observe(place, "--", "sh", "-c", "python3 -m unittest discover 2>/dev/null; true")
    assert run.event("commands_observed")["agent_action"]["action_type"] == "run_tests"
    assert run.facts_of("commands_observed", "command_log")["categories_seen"] == ["test"]


def test_events_to_stdout(place: Place) -> None:
    run = observe(place, "--events", "-", "--", "sh", "-c", "echo text; echo loud >&2")
    assert run.done.out == (run.folder / "events.jsonl").read_bytes()
    assert run.stdout == b"text\n"
    assert "loud\n" in run.done.err


def test_events_through_a_pipe(place: Place) -> None:
    process = place.start("observe", "--events", "-", "--", "sh", "-c", "exit 5")
    checked = place.stream("check", "-", "--profile", "agents", stdin=process.stdout)
    assert (checked.code, len(checked.out.splitlines())) == (0, 9)
    assert place.finish(process).code == 5


def test_a_reader_of_the_events_that_goes_away_costs_nothing(place: Place) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        run = observe(place, "--events", "-", "--", "sh", "-c", "exit 5", stdout=stdout)
    assert run.done.code == 5
    assert "not passed on: events to stdout: the reader went away: 9 records lost" in run.done.err


def test_a_reader_of_the_output_that_goes_away_costs_nothing(place: Place) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        run = observe(place, "--", "sh", "-c", "echo text; exit 5", stdout=stdout)
    assert run.done.code == 5
    assert run.stdout == b"text\n"
    assert "not passed on: stdout: 5 bytes of the command's output" in run.done.err


def test_with_the_matrix(place: Place) -> None:
    (place.workspace / "a.txt").write_text("a")
    words = ["--matrix", "--cap", "cap_fs_write_workspace_tree"]
    run = observe(place, *words, "--", "sh", "-c", "echo b >b.txt")
    boundary = run.folder / "boundary.ndjson"
    found = read_records(boundary)
    workspace = str(run.folder / "workspace")
    assert found
    assert {record["run"]["workspace_root"] for record in found} == {workspace}
    assert place.stream("validate", boundary).code == 0
    assert list(run.changes) == ["b.txt"]
    manifest = json.loads((run.folder / "artifacts/manifest.json").read_bytes())
    assert "boundary.ndjson" in {one["path"] for one in manifest["files"]}


def test_the_matrix_and_the_run_are_at_the_same_time(place: Place) -> None:
    """The agent ends when a probe has run, and the probe when the agent has begun."""
    one, other = place.make_fifo("one"), place.make_fifo("other")
    folder = place.write_probes(a=f"echo probe >{one}\nread -r line <{other}\n")
    agent = f"read -r line <{one}; echo agent >{other}"
    run = observe(place, "--matrix", "--probes", folder, "--", "sh", "-c", agent)
    assert run.done.code == 0


WRONG = [
    (["--constraint", "no.such", "--", "true"], "'no.such' is no constraint that can be checked"),
    (["--scenario", "missing", "--", "true"], "missing: no such file or directory"),
    (["--scenario", "empty.md", "--", "true"], "empty.md: no request"),
    (["--scenario", "odd.md", "--", "true"], "odd.md: the constraint made.up stands twice"),
    (["--scenario", "twice.md", "--", "true"], "twice.md: the heading 'Request' stands twice"),
    (["--scenario", "bytes.md", "--", "true"], "bytes.md: invalid UTF-8 at byte 10"),
    (["--parameters", "list.json", "--", "true"], "list.json: expected an object"),
    (["--parameters", "mode.json", "--", "true"], "mode.json: $.workspace_mode: expected one of"),
    (["--parameters", "bad.json", "--", "true"], "bad.json: malformed JSON at line 1 column 2"),
    (["--request", "", "--", "true"], "an empty word after --request"),
    (["--request", "@empty.txt", "--", "true"], "--request: it is empty"),
    (["--source", "missing", "--", "true"], "missing: no such file or directory"),
    (["--source", "empty.md", "--", "true"], "empty.md: not a directory"),
    (["--run-id", "../x", "--", "true"], "--run-id: '../x'"),
    (["--run-id", "a.b", "--", "true"], "--run-id: 'a.b': the name of a run has letters, digits"),
    (["--run-id", "a" * 121, "--", "true"], "and at most 120 of them"),
    (["--kernel", "auto", "--raw-kernel", "-", "--", "true"], "--raw-kernel -: stdout carries"),
    (["--archive", "/dev/fd/1", "--", "true"], "--archive /dev/fd/1: stdout carries"),
    (["--archive", "/dev/null", "--", "true"], "--archive /dev/null: it must be a file"),
    *(
        (["--kernel", "auto", "--raw-kernel", name, "--force", "--", "true"], sentence)
        for name, sentence in (
            ("/dev/fd/1", "--raw-kernel /dev/fd/1: stdout carries the agent's output"),
            ("/proc/self/fd/1", "--raw-kernel /proc/self/fd/1: stdout carries the agent's output"),
            ("/dev/null", "--raw-kernel /dev/null: it must be a file or a fifo"),
            (".", "--raw-kernel .: it must be a file or a fifo"),
        )
    ),
    (["--archive", "empty.md", "--", "true"], "empty.md: it is there already; --force replaces it"),
    (["--run-id", "taken", "--", "true"], "taken: this run exists already"),
    (["--runs", "empty.md", "--", "true"], "empty.md"),
    (["--wrap", "x", "--no-wrap", "--", "true"], "--wrap and --no-wrap do not go together"),
    (["--cap", "x", "--", "true"], "--cap needs --matrix"),
    (["--matrix", "--cap", "x", "--", "true"], "unknown capability: x"),
    (["--events", "file", "--", "true"], "--events takes only one value: -"),
    (["--timeout", "0", "--", "true"], "not in the range"),
    (["--grace", "-1", "--", "true"], "not in the range"),
    (["--workspace", "new", "--", "true"], "'new' is not one of"),
    (["--"], "Missing argument"),
    (["--", "", "-p"], "an empty word after --: is a variable unset?"),
    ([], "Missing argument"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_wrong_use(place: Place, words: list[str], sentence: str) -> None:
    """The refusal is printed before anything is made."""
    files = {
        "empty.md": b"# Title\n\n## Request\n\n## Constraints\n",
        "odd.md": b"## Request\n\nx\n\n## Constraints\n\n- made.up\n- made.up: x\n",
        "twice.md": b"## Request\n\nx\n\n## Request\n\ny\n",
        "bytes.md": b"## Request\xff",
        "list.json": b"[]",
        "mode.json": b'{"workspace_mode":"new"}',
        "bad.json": b"{x}",
        "empty.txt": b"\n",
    }
    for name, content in files.items():
        (place.workspace / name).write_bytes(content)
    (place.workspace / "runs" / "taken").mkdir(parents=True)
    done = place.stream("observe", *words)
    assert done.code == 2
    assert sentence in done.err
    assert [path.name for path in (place.workspace / "runs").iterdir()] == ["taken"]


def test_a_run_that_exists_is_left_alone(place: Place) -> None:
    run = observe(place, "--run-id", "one", "--", "true")
    before = (run.folder / "events.jsonl").read_bytes()
    assert place.stream("observe", "--run-id", "one", "--", "true").code == 2
    assert (run.folder / "events.jsonl").read_bytes() == before


def test_a_copy_that_is_not_apart(place: Place) -> None:
    """What leads out of it back into its source is printed, and is in the record."""
    (place.workspace / "data").mkdir()
    (place.workspace / "deep").mkdir()
    (place.workspace / "deep" / "back").symlink_to(place.workspace / "data")
    (place.workspace / "deep" / "inside").symlink_to("../data")
    (place.workspace / ".git").write_text(f"gitdir: {place.root}/elsewhere\n")
    run = observe(place, "-q", "--", "true")
    assert "links in the copy lead back into" in run.done.err
    assert "deep/back for one (1 in all)" in run.done.err
    assert "is a link to a repository elsewhere" in run.done.err
    facts = run.facts_of("workspace_prepared", "workspace")
    assert facts["leads_back"] == [".git", "deep/back"]


def test_a_run_id_that_is_made_fits_the_layers() -> None:
    check_run_id(new_run_id(), "--run-id")


def test_where_the_kernel_reports_that_the_run_lies(place: Place) -> None:
    """By its true name, whatever links lead there."""
    (place.root / "elsewhere \\").mkdir()
    (place.workspace / "runs").symlink_to(place.root / "elsewhere \\")
    run = observe(place, "--workspace", "empty", "--", "true")
    where = os.path.realpath(place.root) + "/elsewhere \\\\/" + run.folder.name
    assert run.facts_of("workspace_prepared", "workspace")["run_folder"] == where


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_on_both_event_loops(place: Place, backend: str) -> None:
    (place.workspace / "old").write_text("old")
    words = ["-m", "tests.recorder.backend", backend, str(place.workspace / "runs")]
    agent = ["sh", "-c", "echo text; git --version; rm old; (sleep 0.05; echo late >late) & exit 3"]
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = place.stream(*words, *agent, argv0=[sys.executable], env=env)
    assert done.code == 3, done.err
    run = only_run(place, done)
    assert run.stdout.startswith(b"text\ngit version")
    assert sorted(run.changes) == ["late", "old"]
    assert place.stream("check", run.folder).code == 0


@pytest.mark.parametrize("mode", ["copy", "empty", "here"])
def test_a_relative_command(place: Place, mode: str) -> None:
    """In the workspace, where it is there; else from here."""
    write_script(place.workspace / "agent", '#!/bin/sh\necho "$0"\n')
    run = observe(place, "--workspace", mode, "--", "./agent")
    shown = str(place.workspace / "agent") if mode == "empty" else "./agent"
    assert run.done.out.decode() == f"{shown}\n"


def test_a_relative_command_next_to_the_source(place: Place) -> None:
    write_script(place.workspace / "agent", '#!/bin/sh\necho "$0"\n')
    (place.workspace / "project").mkdir()
    run = observe(place, "--source", "project", "--", "./agent")
    assert run.done.out.decode() == f"{place.workspace / 'agent'}\n"


def test_a_run_that_breaks_its_own_contract_reports_it(place: Place) -> None:
    """No scenario may state what an agent thinks, and its id stands in the first summary."""
    task = write_scenario(place, scenario_id="the agent believed it")
    run = observe(place, "-q", "--scenario", task, "--", "true", check=False)
    assert run.done.code == 0
    assert "the run breaks its own contract: action_summary.reasoning: " in run.done.err
    assert place.stream("check", run.folder).code == 1


def test_who_does_not_read_the_events_holds_up_nothing(place: Place) -> None:
    """Nothing is read from stdout, which holds less than two events: all probes run, and the run
    is recorded to its end. Whoever reads then is given every event."""
    cells = 50
    folder = place.write_probes(**{f"p{n:03}": ":\n" for n in range(cells)})
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    words = ["--matrix", "--probes", str(folder), "--events", "-", "--run-id", "one"]
    process = place.start("observe", *words, "--", "true", stdout=write)
    os.close(write)
    record = place.workspace / "runs" / "one" / "events.jsonl"
    deadline = time.monotonic() + PATIENCE
    while not record.exists() or b"[run_finished]" not in record.read_bytes():
        assert time.monotonic() < deadline, "the run waits for who reads its events"
    with os.fdopen(read, "rb") as events:
        assert events.read() == record.read_bytes()
    done = place.finish(process)
    assert done.code == 0
    run = only_run(place, done)
    assert len(read_records(run.folder / "boundary.ndjson")) == cells
    assert len(run.events) == 9


def test_what_does_not_hold_is_reported_with_its_evidence(place: Place) -> None:
    words = ["--constraint", "scope.no_ci_changes", "output.json_only"]
    agent = "mkdir .ci; touch .ci/run; echo hello"
    run = observe(place, *words, "--", "sh", "-c", agent)
    assert "stream: output.json_only: fail: " in run.done.err
    assert "stream: scope.no_ci_changes: fail: " in run.done.err
    assert ".ci/run" in run.done.err
    assert "alignment fail, quality unknown, policy fail" in run.done.err


def run_git(folder: Path, *words: str) -> str:
    own = ["-c", "user.email=a@b", "-c", "user.name=n"]
    return subprocess.check_output(["git", *own, *words], cwd=folder, text=True)


@pytest.mark.parametrize("mode", ["empty", "copy"])
def test_git_does_not_find_the_repository_around_the_runs(place: Place, mode: str) -> None:
    run_git(place.workspace, "init", "-q")
    (place.workspace / "sub").mkdir()
    kept = place.workspace / "sub" / "kept"
    kept.write_text("old")
    run_git(place.workspace, "add", "-A")
    run_git(place.workspace, "commit", "-qm", "one")
    kept.write_text("not committed")
    agent = "git reset -q --hard; git rev-parse --show-toplevel"
    words = ["observe", "--workspace", mode, "--", "sh", "-c", agent]
    done = place.stream(*words, cwd=kept.parent, env={"GIT_CEILING_DIRECTORIES": "/nowhere"})
    assert (done.code, done.out) == (128, b"")
    assert kept.read_text() == "not committed"
    warned = "is a part of the repository" in done.err
    assert warned == (mode == "copy")


def test_a_repository_that_is_copied_is_found(place: Place) -> None:
    run_git(place.workspace, "init", "-q")
    run = observe(place, "--", "git", "rev-parse", "--show-toplevel")
    assert run.done.out.decode().strip() == str(run.folder / "workspace")


def test_what_could_not_be_copied_is_reported(place: Place) -> None:
    os.mkfifo(place.workspace / "pipe")
    run = observe(place, "-q", "--", "true")
    assert "not in the copy, or not for sure: pipe (fifo), 1 in all" in run.done.err
