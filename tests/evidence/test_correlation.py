"""Whose kernel event it is: by windows, by the process tree, and what is not certain."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.evidence.attribution import OTHERS, EventDetails
from stream.evidence.claude_formats import DECISION
from stream.evidence.command_lines import (
    MOST,
    command_digest_of,
    commands_asked_of_shell,
    comparable_command,
)
from stream.evidence.derive import OUTSIDE, Correlation, correlate_layers
from stream.evidence.markers import uncertainty_code
from stream.records.artifacts import CorrelationReport, Marker, PolicyEvent, SdkEvent
from stream.records.control import Gap
from stream.records.kernel import (
    EXEC,
    EXEC_FAILED,
    EXIT,
    FORK,
    OPEN,
    RENAME,
    SYMLINK,
    UNLINK,
    KernelDetail,
    KernelEvent,
    RawCapture,
    path_text,
)
from stream.transformers.tool_events import DENIAL
from tests.evidence.steps import attribution_events, lost_between

DATA = Path(__file__).parent.parent / "data/assay"
AGENT = 1
HOME = "/runs/r/.wrappers"
HOOK = f"{HOME}/hook"
TR = "/usr/bin/tr"


class Run:
    """A run that is written down as it would happen."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, EventDetails | None]] = []
        self.markers = [
            Marker(
                run_id="r",
                seq=0,
                name="run_started",
                at=0,
                clock="kernel",
                home=HOME,
                helpers=[TR],
            )
        ]
        self.reporter: int | None = AGENT  #: who writes the reports
        self.sdk: list[SdkEvent] = []
        self.policy: list[PolicyEvent] = []
        self.gaps: list[tuple[int, int]] = []
        self.unused: dict[str, int] = {}  #: what was reported and not used

    def reports(
        self, name: Any, call: str | None, tool: str = "T", command: str | None = None
    ) -> None:
        self.adds_event(name, call, tool)
        self.marks(name, call, command)

    def adds_event(self, name: Any, call: str | None, tool: str | None = "T") -> None:
        event = SdkEvent(
            run_id="r",
            seq=len(self.sdk),
            event_type=name,
            source="test",
            tool_call_id=call,
            tool=tool,
        )
        self.sdk.append(event)

    def marks(self, name: Any, call: str | None, command: str | None = None) -> None:
        marker = Marker(
            run_id="r",
            seq=len(self.markers),
            name=name,
            at=len(self.steps),
            clock="kernel",
            tool_call_id=call,
            command=command,
            pid=self.reporter,
        )
        self.markers.append(marker)

    def start(self, call: str | None, command: str | None = None, tool: str = "T") -> None:
        self.reports("tool_call_started", call, tool, command)

    def end(self, call: str | None, tool: str = "T") -> None:
        self.reports("tool_call_completed", call, tool)

    def decides(
        self, call: str | None, decision: str = "allow", tool: str = "T", kind: str = DECISION
    ) -> None:
        event = PolicyEvent(
            run_id="r",
            seq=len(self.policy),
            source_event_type=kind,
            source="test",
            tool_call_id=call,
            tool=tool,
            decision=decision,
        )
        self.policy.append(event)

    def opens(self, times: int = 1, pid: int = AGENT) -> None:
        self.steps += [(pid, OPEN, None)] * times

    def forks(self, child: int, parent: int = AGENT) -> None:
        self.steps.append((parent, FORK, EventDetails(child=child)))

    def execs(self, pid: int, *argv: str, path: str | None = None) -> None:
        """Execute the file that argv names, unless a path is given."""
        details = EventDetails(
            path=argv[0] if path is None else path, asked=commands_asked_of_shell(argv)
        )
        self.steps.append((pid, EXEC, details))

    def touches(self, path: str, kind: int = OPEN, pid: int = AGENT, **more: Any) -> None:
        self.steps.append((pid, kind, EventDetails(path=path, **more)))

    def exits(self, pid: int) -> None:
        self.steps.append((pid, EXIT, None))

    def allows_all(self) -> None:
        for call in dict.fromkeys(event.tool_call_id for event in self.sdk):
            if call is not None:
                self.decides(call)

    def correlate(
        self,
        *,
        has_kernel: bool = True,
        is_decided: bool = True,
        capture: RawCapture | None = None,
    ) -> Correlation:
        """Correlate the run; without a decision of the test, every call was allowed."""
        if is_decided and not self.policy:
            self.allows_all()
        end = Marker(
            run_id="r",
            seq=len(self.markers),
            name="run_finished",
            at=len(self.steps),
            clock="kernel",
            unused=self.unused,
        )
        return correlate_layers(
            "r",
            markers=[*self.markers, end],
            sdk=self.sdk,
            policy=self.policy,
            events=((*step, 1) for step in self.steps),
            gaps=self.gaps,
            has_kernel=has_kernel,
            capture=capture,
        )


@pytest.fixture
def run() -> Run:
    return Run()


def count_bound(found: Correlation) -> dict[str, int]:
    return {one.tool_call_id: one.kernel_event_count for one in found.report.bindings}


def list_ambiguities(found: Correlation) -> list[str]:
    return found.report.ambiguities


# --- windows ------------------------------------------------------------------------------------


def test_an_event_counts_for_the_call_in_whose_window_it_lies(run: Run) -> None:
    run.opens(2)
    run.start("a")
    run.opens(3)
    run.end("a")
    run.opens(4)
    run.start("b")
    run.opens(5)
    run.end("b")
    found = run.correlate()
    assert count_bound(found) == {"a": 3, "b": 5}
    assert found.calls == {"a": {"openat": 3}, "b": {"openat": 5}}
    assert found.unbound == {"openat": 6}
    assert list_ambiguities(found) == []
    assert found.report.status == "clean"


def test_a_window_is_half_open(run: Run) -> None:
    run.start("a")
    run.opens()
    run.end("a")
    run.start("b")
    run.opens()
    run.end("b")
    found = run.correlate()
    assert count_bound(found) == {"a": 1, "b": 1}
    assert list_ambiguities(found) == []
    window = found.report.bindings[1].window
    assert (window.start, window.end) == ("tool_call_started:b", "tool_call_completed:b")


def test_the_report_has_the_form_of_the_reference(run: Run) -> None:
    run.start("tc_runner_policy_001")
    run.opens(2)
    run.end("tc_runner_policy_001")
    run.decides("tc_runner_policy_001")
    golden = DATA / "golden/correlation-report-openai-agents-kernel-policy-v0.json"
    theirs = msgspec.json.decode(golden.read_bytes(), type=CorrelationReport)
    ours = run.correlate().report
    assert ours.status == theirs.status == "clean"
    ours.run_id = theirs.run_id
    ours.bindings[0].window = theirs.bindings[0].window
    assert msgspec.json.format(msgspec.json.encode(ours)) + b"\n" == golden.read_bytes()


def test_bindings_stand_in_the_order_of_their_first_markers(run: Run) -> None:
    for name in ("z", "a", "m"):
        run.start(name)
        run.opens()
        run.end(name)
    run.decides("only-decided")
    assert list(count_bound(run.correlate())) == ["z", "a", "m", "only-decided"]


# --- the process tree ---------------------------------------------------------------------------


def test_where_windows_overlap_the_process_tree_decides(run: Run) -> None:
    run.start("a", "make all")
    run.forks(10)  # while only a is open
    run.start("b", "ls -l")
    run.opens(2, pid=10)
    run.forks(20)
    run.execs(20, "bash", "-c", "true && eval 'ls -l' < /dev/null && pwd -P")
    run.forks(21, parent=20)
    run.opens(5, pid=21)
    run.opens(7)  # the agent's own
    run.end("a")
    run.end("b")
    found = run.correlate()
    assert found.calls["a"] == {"openat": 2, "event_1012": 1}
    assert found.calls["b"] == {"openat": 5, "exec": 1, "event_1012": 1}
    assert found.undecided == {"openat": 7, "event_1012": 1}
    assert list_ambiguities(found) == ["kernel_events_in_overlapping_windows:a,b"]
    assert found.report.status == "partial"


def test_what_outlives_its_call_is_not_counted_for_the_next(run: Run) -> None:
    run.start("a", "sleep 5 &")
    run.forks(10)
    run.end("a")
    run.opens(pid=10)
    run.start("b")
    run.opens(2, pid=10)
    run.opens(3)
    run.end("b")
    found = run.correlate()
    assert count_bound(found) == {"a": 1, "b": 3}
    assert found.unbound == {"openat": 1}
    assert found.undecided == {"openat": 2}
    assert list_ambiguities(found) == ["kernel_events_after_call:a"]


def test_a_process_that_was_forked_too_early_belongs_to_whose_command_it_runs(run: Run) -> None:
    run.start("a", "echo a")
    run.forks(10)
    run.start("b", "echo b")
    run.execs(10, "bash", "-c", "eval 'echo b'")
    run.opens(4, pid=10)
    run.end("a")
    run.end("b")
    assert count_bound(run.correlate()) == {"a": 1, "b": 5}


def test_a_call_cannot_be_given_to_another_by_a_name_that_its_process_takes(run: Run) -> None:
    run.start("a", "make")
    run.forks(10)
    run.execs(10, "bash", "-c", "eval make < /dev/null")
    run.start("b", "ls")
    run.forks(11, parent=10)
    run.execs(11, "ls")
    run.opens(pid=11)
    run.end("a")
    run.end("b")
    found = run.correlate()
    assert count_bound(found) == {"a": 5, "b": 0}


def test_what_was_started_in_an_overlap_stays_of_either_call(run: Run) -> None:
    """Also when only one of them is left, and when neither is."""
    run.start("a")
    run.start("b")
    run.forks(10)
    run.execs(10, "worker")
    run.forks(11, parent=10)
    run.end("a")
    run.opens(2, pid=10)
    run.opens(3, pid=11)
    run.opens(4)
    run.end("b")
    run.opens(pid=11)
    found = run.correlate()
    assert found.calls == {"a": {}, "b": {"openat": 4}}
    assert found.undecided == {"event_1012": 2, "exec": 1, "openat": 5}
    overlap = "kernel_events_in_overlapping_windows:a,b"
    assert list_ambiguities(found) == ["kernel_events_after_call:a,b", overlap]


def test_what_runs_in_an_overlap_is_known_by_its_command_however_late(run: Run) -> None:
    run.start("a", "make")
    run.start("b", "ls")
    run.forks(10)
    run.execs(10, "env", "bash")
    run.forks(11, parent=10)
    run.end("a")
    run.execs(11, "bash", "-c", "ls")
    run.opens(2, pid=11)
    run.end("b")
    found = run.correlate()
    assert found.calls == {"a": {}, "b": {"exec": 1, "openat": 2}}


def test_what_a_copy_of_the_agent_does_is_the_agents(run: Run) -> None:
    run.forks(10)
    run.start("a")
    run.opens(2, pid=10)
    run.end("a")
    assert count_bound(run.correlate()) == {"a": 2}


def test_what_was_started_before_a_call_is_not_the_calls(run: Run) -> None:
    """It may be at work for anybody: as an agent is whose words go through who started it."""
    run.forks(10)
    run.execs(10, "agent")
    run.start("a", "ls")
    run.opens(2, pid=10)
    run.forks(11, parent=10)
    run.execs(11, "bash", "-c", "ls")
    run.opens(3, pid=11)
    run.end("a")
    found = run.correlate()
    assert found.calls == {"a": {}}
    assert found.undecided == {"event_1012": 1, "exec": 1, "openat": 5}
    assert list_ambiguities(found) == [f"{OTHERS}:a"]
    assert found.report.status == "partial"


def test_reporting_is_no_work(run: Run) -> None:
    run.start("a")
    run.touches(f"{HOME}/sdk-events.ndjson")
    run.end("a")
    found = run.correlate()
    assert found.calls == {"a": {}}
    assert found.recorder_file_uses == set()
    assert list_ambiguities(found) == ["sdk_tool_call_without_kernel_events:a"]


def start_hook(run: Run, log: str = "hooks.ndjson") -> None:
    """As Claude Code does, and all that the hook does."""
    run.forks(10)
    run.execs(10, "/bin/sh", "-c", HOOK)
    run.forks(11, parent=10)
    run.execs(11, "/bin/sh", HOOK, path=HOOK)
    run.touches(HOOK, pid=11, is_reading=True)
    run.forks(12, parent=11)
    run.execs(12, "tr", "x", "y", path=TR)
    run.exits(12)
    run.touches(f"{HOME}/{log}", pid=11)


def end_hook(run: Run) -> None:
    run.exits(11)
    run.exits(10)


def test_what_the_recorders_hooks_do_is_no_calls(run: Run) -> None:
    """Neither in its window, nor what they still do after it."""
    run.start("a")
    run.opens()
    start_hook(run)
    run.end("a")
    end_hook(run)
    found = run.correlate()
    assert found.calls == {"a": {"event_1012": 1, "openat": 1}}
    assert found.unbound == {"event_1012": 2, "event_1013": 3, "exec": 3, "openat": 2}
    assert (list_ambiguities(found), found.report.status) == ([], "clean")
    assert found.recorder_file_uses == set()


@pytest.mark.parametrize("spawners", [0, 1])
def test_a_call_that_a_hook_reports_belongs_to_who_started_the_hook(
    run: Run, spawners: int
) -> None:
    run.execs(AGENT, "claude")
    for at in range(2):
        parent = AGENT
        for spawner in range(spawners):  # a copy of the agent, which executes nothing
            run.forks(20 + spawner, parent=parent)
            parent = 20 + spawner
        run.forks(10, parent=parent)
        run.execs(10, "/bin/sh", "-c", HOOK)
        run.execs(10, "/bin/sh", HOOK, path=HOOK)
        run.reporter = 10
        (run.end if at else run.start)("a")
        run.exits(10)
        if not at:
            run.opens(3)
    found = run.correlate()
    assert found.calls["a"]["openat"] == 3
    assert (list_ambiguities(found), found.report.status) == ([], "clean")


@pytest.mark.parametrize("hook", [HOOK, "/usr/bin/tee"])
def test_what_the_agent_does_while_its_first_hook_begins_is_the_agents(run: Run, hook: str) -> None:
    """Of another program, which will report as well, that is not known yet."""
    run.execs(AGENT, "claude")
    for pid, report in ((10, run.start), (12, run.end)):
        run.forks(pid)
        run.opens(3)
        run.execs(pid, "/bin/sh", hook, path=hook)
        run.reporter = pid
        report("a")
        run.exits(pid)
        run.opens()
    found = run.correlate()
    is_ours = hook == HOOK
    assert (OTHERS in list_ambiguities(found)) != is_ours
    assert (found.report.status == "clean") == is_ours


@pytest.mark.parametrize(
    "command",
    [
        f"rm x # {HOOK}",
        f"/bin/rm${{IFS}}x;{HOOK}",
        f"/bin/rm x; '{HOOK}'",
        f"'{HOOK}",
        f"x; eval {HOOK}",
        "/runs/other/.wrappers/hook",
        "/tmp/runs/r/.wrappers/hook",
    ],
)
def test_nothing_hides_behind_the_name_of_a_hook(run: Run, command: str) -> None:
    run.start("a")
    run.forks(10)
    run.execs(10, "/bin/sh", "-c", command)
    run.opens(3, pid=10)
    run.end("a")
    assert count_bound(run.correlate()) == {"a": 5}


@pytest.mark.parametrize("path", ["/bin/bash", f"/tmp{HOOK}", f"{HOOK}/../x", f"{HOOK}s"])
@pytest.mark.parametrize("argv", [[HOOK], ["/bin/sh", HOOK], ["tr"]])
def test_what_a_program_calls_itself_hides_nothing(run: Run, path: str, argv: list[str]) -> None:
    run.start("a")
    run.forks(10)
    run.execs(10, *argv, path=path)
    run.touches(HOOK, pid=10, is_reading=True)
    run.opens(3, pid=10)
    run.exits(10)
    run.end("a")
    assert count_bound(run.correlate()) == {"a": 7}


def test_another_program_does_not_become_a_shell_by_its_arguments(run: Run) -> None:
    run.start("a")
    run.forks(10)
    run.execs(10, "/bin/sh", "-c", HOOK, path="/tmp/evil")
    run.exits(10)
    run.end("a")
    assert count_bound(run.correlate()) == {"a": 3}


def test_what_a_hook_does_beyond_its_work_is_the_agents(run: Run) -> None:
    """Whatever was put into its place, or loaded into it."""
    run.start("a")
    start_hook(run)
    run.opens(3, pid=11)
    run.touches("/etc/shadow", UNLINK, pid=11)
    run.forks(13, parent=11)
    run.execs(13, "tr", path="/tmp/tr")
    run.opens(2, pid=13)
    run.end("a")
    end_hook(run)
    found = run.correlate()
    assert found.calls["a"] == {"event_1001": 1, "event_1012": 1, "exec": 1, "openat": 5}


@pytest.mark.parametrize(
    ("path", "kind", "more"),
    [
        (HOOK, OPEN, {}),
        (HOOK, UNLINK, {}),
        (f"{HOME}/bin/git", UNLINK, {}),
        ("/tmp/evil", RENAME, {"to_path": HOOK}),
        ("/tmp/evil", RENAME, {"to_path": "/runs"}),
        ("/runs/r", RENAME, {"to_path": "/tmp/r"}),
        ("/tmp/link/r", RENAME, {"to_path": "/tmp/x"}),
        ("/tmp/link/.wrappers/hook", UNLINK, {}),
        ("/tmp/link", SYMLINK, {"to_path": "../runs/r/.wrappers"}),
    ],
)
def test_who_touches_the_recorders_programs_gets_all_that_they_do(
    run: Run, path: str, kind: int, more: dict[str, Any]
) -> None:
    run.start("a")
    run.touches(path, kind, **more)
    run.forks(10)
    run.execs(10, "/bin/sh", HOOK, path=HOOK)
    run.touches(HOOK, pid=10, is_reading=True)
    run.exits(10)
    run.end("a")
    found = run.correlate()
    assert count_bound(found) == {"a": 5}
    assert (EXEC, HOOK, 0, None) in found.recorder_file_uses


def test_a_hook_that_a_call_runs_is_that_calls(run: Run) -> None:
    run.start("a", "make")
    run.forks(10)
    run.execs(10, "bash", "-c", "eval make < /dev/null")
    run.forks(11, parent=10)
    run.execs(11, "/bin/sh", HOOK, path=HOOK)
    run.touches(f"{HOME}/hooks.ndjson", pid=11)
    run.opens(3, pid=11)
    run.exits(11)
    run.end("a")
    assert count_bound(run.correlate()) == {"a": 9}


def test_a_wrapper_is_the_recorders_until_it_is_its_program(run: Run) -> None:
    run.start("a", "git status")
    run.forks(10)
    run.execs(10, "bash", "-c", "eval 'git status' < /dev/null")
    run.forks(11, parent=10)
    run.touches(f"{HOME}/bin/ls", EXEC_FAILED, pid=11)  # as a shell looks for its programs
    run.execs(11, "bash", "-p", f"{HOME}/bin/git", path=f"{HOME}/bin/git")
    run.touches(f"{HOME}/wrapper", pid=11, is_reading=True)
    run.touches(f"{HOME}/commands", pid=11)
    run.opens(pid=11)  # what its shell looks at
    run.execs(11, "git", "status", path="/usr/bin/git")
    run.touches(f"{HOME}/wrapper", pid=11, is_reading=True)
    run.touches(f"{HOME}/commands", pid=11)
    run.exits(11)
    run.end("a")
    found = run.correlate()
    assert found.calls["a"] == {
        "exec": 2,
        "openat": 3,
        "event_1011": 1,
        "event_1012": 2,
        "event_1013": 1,
    }
    assert found.unbound == {"exec": 1, "openat": 2}
    assert {path for _, path, *_ in found.recorder_file_uses} == {
        f"{HOME}/wrapper",
        f"{HOME}/commands",
    }


# --- who reports -------------------------------------------------------------------------------

TEE = 50


def relay_agent(run: Run) -> None:
    """The agent's words go through another program, which takes its time."""
    run.execs(7, "sh", "-c", "agent | tee")
    run.forks(AGENT, parent=7)
    run.forks(TEE, parent=7)
    run.execs(AGENT, "agent")
    run.reporter = TEE


def test_what_others_do_in_a_window_is_not_its_calls(run: Run) -> None:
    relay_agent(run)
    run.start("a")
    run.opens(3)
    run.opens(2, pid=TEE)
    run.forks(51, parent=TEE)
    run.opens(pid=51)
    run.end("a")
    found = run.correlate()
    assert found.calls == {"a": {"event_1012": 1, "openat": 3}}
    assert found.undecided == {"openat": 3}
    assert f"{OTHERS}:a" in list_ambiguities(found)
    assert found.report.status == "partial"


def test_what_others_do_while_somebody_else_reports_is_named(run: Run) -> None:
    """Words that come late have windows in which nothing happens, or something else."""
    relay_agent(run)
    run.opens(3)
    run.exits(AGENT)
    run.start("a")
    run.opens(pid=TEE)
    run.end("a")
    found = run.correlate()
    assert list_ambiguities(found) == [OTHERS]
    assert found.report.status == "partial"


def test_what_many_are_yet_to_report_fills_no_memory(run: Run) -> None:
    """Of who starts them one by one, and is at work in between."""
    many = range(1000, 2500)
    for pid in many:
        run.forks(pid)
        run.opens()
    for pid in many:
        run.reporter = pid
        run.start(str(pid))
        run.opens(pid=pid)
        run.end(str(pid))
        run.exits(pid)
    run.allows_all()
    tracemalloc.start()
    try:
        found = run.correlate()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert OTHERS in list_ambiguities(found)
    assert found.unbound == {"event_1012": 1500, "event_1013": 1500, "openat": 1500}
    assert peak < 5000 * len(many)


def test_who_starts_the_agent_is_no_other(run: Run) -> None:
    run.execs(7, "sh", "-c", "prepare; agent; tidy up")
    run.opens(3, pid=7)
    run.forks(8, parent=7)
    run.opens(3, pid=8)
    run.exits(8)
    run.forks(AGENT, parent=7)
    run.execs(AGENT, "agent")
    run.start("a")
    run.opens()
    run.end("a")
    run.exits(AGENT)
    run.forks(9, parent=7)
    run.opens(2, pid=9)
    run.exits(7)
    found = run.correlate()
    assert (list_ambiguities(found), found.report.status) == ([], "clean")


def test_a_command_that_others_run_is_not_the_calls(run: Run) -> None:
    relay_agent(run)
    run.start("a", "make")
    run.forks(10)
    run.execs(10, "bash", "-c", "make")
    run.opens(pid=10)
    run.end("a")
    assert count_bound(run.correlate()) == {"a": 0}


def test_a_call_that_two_processes_report_belongs_to_nobody(run: Run) -> None:
    run.start("a")
    run.opens(2)
    run.reporter = 2
    run.end("a")
    found = run.correlate()
    assert count_bound(found) == {"a": 0}
    assert found.undecided == {"openat": 2}
    assert "sdk_tool_call_told_by_several_processes:a" in list_ambiguities(found)


@pytest.mark.parametrize("which", ["start", "end"])
def test_a_call_that_nobody_was_seen_to_report_is_not_certain(run: Run, which: str) -> None:
    run.reporter = None if which == "start" else AGENT
    run.start("a")
    run.opens(2)
    run.reporter = None if which == "end" else AGENT
    run.end("a")
    found = run.correlate()
    assert count_bound(found) == {"a": 2}
    assert list_ambiguities(found) == ["sdk_tool_call_told_by_unknown_process:a"]
    assert found.report.status == "partial"


def test_each_reporter_has_windows_of_its_own(run: Run) -> None:
    """Two agents, one next to the other."""
    run.start("a")
    run.reporter = 2
    run.start("b")
    run.opens(1)
    run.opens(2, pid=2)
    run.end("b")
    run.reporter = AGENT
    run.end("a")
    found = run.correlate()
    assert count_bound(found) == {"a": 1, "b": 2}
    assert list_ambiguities(found) == []


# --- and again the process tree -----------------------------------------------------------------


def test_a_number_that_is_used_again_is_another_process(run: Run) -> None:
    run.start("a")
    run.forks(10)
    run.exits(10)
    run.end("a")
    run.start("b")
    run.opens(pid=10)  # by somebody whose fork was not seen
    run.forks(10)
    run.opens(pid=10)
    run.end("b")
    found = run.correlate()
    assert count_bound(found) == {"a": 2, "b": 2}
    assert list_ambiguities(found) == [f"{OTHERS}:b"]


def test_a_number_whose_end_was_not_seen_is_another_process(run: Run) -> None:
    run.start("a")
    run.forks(10)
    run.end("a")
    run.forks(10)
    run.start("b")
    run.opens(pid=10)
    run.end("b")
    assert count_bound(run.correlate()) == {"a": 1, "b": 1}


def test_a_process_is_known_by_the_first_program_behind_it(run: Run) -> None:
    run.start("a", "echo a")
    run.forks(10)
    run.forks(11, parent=10)  # a spawner that forks twice
    run.start("b", "echo b")
    run.execs(11, "bash", "-c", "eval 'echo b'")
    run.opens(pid=11)
    run.end("a")
    run.end("b")
    assert count_bound(run.correlate()) == {"a": 2, "b": 2}


# Taken from what Claude Code 2.1.327 really starts.
EVAL = "true && eval {} < /dev/null && pwd -P >| /tmp/claude-a563-cwd"
PRELUDE = (
    "source x 2>/dev/null || true && {{ \\builtin unalias -- 'which'; }} && eval {} < /dev/null"
)


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("ls", EVAL.format("ls")),
        ("cat /etc/hostname", EVAL.format("'cat /etc/hostname'")),
        (
            'echo it\'s "two" $HOME | cat',
            EVAL.format("'echo it'\"'\"'s \"two\" $HOME | cat'"),
        ),
        (
            "printf 'x\\n' && echo \"a\\b\" ; (cat <<'EOT'\nhi\nEOT\n)",
            (
                "eval 'printf '\"'\"'x\\n'\"'\"' && echo \"a\\b\" ; "
                "(cat <<'\"'\"'EOT'\"'\"'\nhi\nEOT\n)' && pwd -P"
            ),
        ),
        ("it's", "eval 'it'\\''s'"),
        ('say "x"', 'eval "say \\"x\\""'),
        ("a b", "eval a\\ b"),
        ("make all", "make all"),
    ],
)
def test_a_command_is_known_however_the_shell_got_it(command: str, word: str) -> None:
    quoted = path_text(word.encode())
    assert command in commands_asked_of_shell(["/bin/bash", "-c", quoted])
    assert command in commands_asked_of_shell(["/bin/bash", "-l", "-ec", quoted, "name"])
    assert commands_asked_of_shell(["/bin/bash", quoted]) == []


def test_the_most_specific_place_comes_first() -> None:
    assert commands_asked_of_shell(["bash", "-c", PRELUDE.format("'ls -la'")])[1:] == ["ls -la"]
    assert commands_asked_of_shell(["sh", "-c", "eval a && eval 'x; eval b' < /dev/null"])[1:] == [
        "x; eval b",
        "a",
    ]
    assert commands_asked_of_shell(["sh", "-c", "evaluate x; medieval y"])[1:] == []
    assert (
        commands_asked_of_shell(["sh", "-c"])
        == commands_asked_of_shell([])
        == commands_asked_of_shell(None)
        == []
    )


def test_two_calls_with_one_command_are_not_distinguished_by_it(run: Run) -> None:
    for call in "ab":
        run.start(call, "ls")
    run.forks(10)
    run.execs(10, "sh", "-c", "ls")
    run.end("a")
    run.end("b")
    assert count_bound(run.correlate()) == {"a": 0, "b": 0}


def test_a_command_that_was_cut_off_is_known_by_its_beginning() -> None:
    command = "echo " + "x" * 10_000
    cut = f"true && eval '{command}"
    assert [
        comparable_command(one) for one in commands_asked_of_shell(["bash", "-c", cut[:4000]])[1:]
    ] == [comparable_command(command)]
    assert commands_asked_of_shell(["bash", "-c", cut[:MOST]])[1:] == []
    assert command_digest_of(command) == command_digest_of(command[:4000])
    assert comparable_command(" \n") == ""


# --- what is not certain ------------------------------------------------------------------------


def test_nothing_observed_is_not_clean(run: Run) -> None:
    found = run.correlate()
    assert found.report.status == "partial"
    assert list_ambiguities(found) == ["nothing_observed"]


def test_events_without_any_call_are_not_clean(run: Run) -> None:
    run.opens()
    found = run.correlate()
    assert (found.report.status, list_ambiguities(found)) == ("partial", [OUTSIDE])


def test_without_a_kernel_layer_it_fails(run: Run) -> None:
    run.start("a")
    run.end("a")
    run.decides("a")
    found = run.correlate(has_kernel=False)
    assert found.report.status == "failed"
    assert list_ambiguities(found) == ["kernel_layer_absent", "policy_events_without_kernel_events"]
    assert count_bound(found) == {"a": 0}


def add_call(run: Run, name: str = "a") -> None:
    run.start(name)
    run.opens()
    run.end(name)


LOST = "kernel_events_lost_in_window:a"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda run: run.decides("a"), []),
        (lambda run: run.decides("a", "deny", kind=DENIAL), []),
        (
            lambda run: run.decides("b", "deny", kind=DENIAL),
            [
                "policy_decision_without_sdk_tool_call:b",
                "sdk_tool_call_without_policy_binding:a",
            ],
        ),
        (
            lambda run: run.decides("b"),
            [
                "policy_decision_without_sdk_tool_call:b",
                "sdk_tool_call_without_policy_binding:a",
            ],
        ),
        (
            lambda run: (run.decides("a"), run.decides("a", "deny")),
            ["policy_decision_conflict:a"],
        ),
        (
            lambda run: (run.decides("a"), run.decides("a")),
            ["policy_decision_duplicate:a"],
        ),
        (lambda run: (run.decides("a"), run.decides("a", kind=DENIAL)), []),
        (lambda run: run.decides("a", ""), ["policy_decision_unknown:a"]),
        (
            lambda run: run.touches(f"{HOME}/sdk-events.ndjson", UNLINK),
            ["told_and_not_used:log,replaced"],
        ),
        (
            lambda run: run.touches("/tmp/x", RENAME, to_path=f"{HOME}/hooks.ndjson"),
            ["told_and_not_used:hooks,replaced"],
        ),
        (
            lambda run: run.touches("/runs/r", RENAME, to_path="/runs/s"),
            ["told_and_not_used:hooks,replaced", "told_and_not_used:log,replaced"],
        ),
        (
            lambda run: run.unused.update({"policy:torn": 2, "stdout:overlong": 1}),
            ["told_and_not_used:policy,torn", "told_and_not_used:stdout,overlong"],
        ),
        (lambda run: run.decides("a", tool="U"), ["tool_name_mismatch:a"]),
        (
            lambda run: run.decides(None),
            ["policy_event_without_tool_call_id", "sdk_tool_call_without_policy_binding:a"],
        ),
        (lambda run: run.start("a"), ["sdk_tool_call_duplicate:a"]),
        (lambda run: run.end("a"), ["sdk_tool_call_duplicate:a"]),
        (
            lambda run: run.start("b"),
            [
                "sdk_tool_call_started_without_completed:b",
                "sdk_tool_call_without_kernel_events:b",
            ],
        ),
        (
            lambda run: run.end("b"),
            [
                "sdk_tool_call_completed_without_started:b",
                "sdk_tool_call_without_window:b",
            ],
        ),
        (
            lambda run: (run.end("b"), run.start("b")),
            [
                "sdk_tool_call_started_without_completed:b",
                "sdk_tool_call_without_kernel_events:b",
            ],
        ),
        (lambda run: run.start(None), ["sdk_event_without_tool_call_id"]),
        (lambda run: run.adds_event("run_finished", None, None), []),
        (lambda run: run.gaps.append((0, 0)), [LOST, "kernel_layer_incomplete:events"]),
        (lambda run: run.gaps.append((1, 9)), [LOST, "kernel_layer_incomplete:events"]),
        (lambda run: run.gaps.append((2, 9)), ["kernel_layer_incomplete:events"]),
    ],
)
def test_each_doubt_has_a_name(run: Run, change: Any, expected: list[str]) -> None:
    add_call(run)
    change(run)
    found = run.correlate()
    assert list_ambiguities(found) == expected
    assert found.report.status == ("partial" if expected else "clean")


LOG_REPLACED = "told_and_not_used:log,replaced"
REPLACED = [LOG_REPLACED.replace("log", "hooks"), LOG_REPLACED]


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ({"path": "/runs/r", "to_path": "/runs/s"}, REPLACED),
        ({"path": "/tmp/x", "to_path": "/runs"}, REPLACED),
        ({"path": HOME, "to_path": "/tmp/x"}, REPLACED),
        ({"path": "/tmp/link/r", "to_path": "/tmp/x"}, REPLACED),
        ({"path": "/tmp/link/r/.wrappers/sdk-events.ndjson"}, [LOG_REPLACED]),
        ({"path": "/home/a", "to_path": "/home/runs"}, []),  # called like one that is above
        ({"path": "/runs/s", "to_path": "/runs/t"}, []),
        ({"path": "/run", "to_path": "/tmp/x"}, []),
        ({"path": "/runs/other/.wrappers/sdk-events.ndjson"}, []),  # of a run inside of this one
        ({"path": "/runs/other/.wrappers", "to_path": "/tmp/x"}, []),
        ({"path": "/home/a", "to_path": "/home/runs", "is_plain": False}, REPLACED),
        ({"path": "/home/a", "to_path": "runs"}, REPLACED),
        ({"path": "/proc/self/fd/3/runs", "to_path": "/tmp/x"}, REPLACED),
        ({"path": "/home/link/../runs", "to_path": "/tmp/x"}, REPLACED),
        ({"path": "/x/.wrappers/sdk-events.ndjson", "is_whole": False}, [LOG_REPLACED]),
    ],
)
@pytest.mark.parametrize("has_hooks", [True, False])
def test_only_this_runs_channels_are_replaced_and_only_those_in_use(
    run: Run, details: dict[str, Any], expected: list[str], *, has_hooks: bool
) -> None:
    if not has_hooks:
        run.markers[0].helpers = []
        expected = expected[-1:]
    add_call(run)
    run.touches(kind=RENAME, **details)
    assert [name for name in list_ambiguities(run.correlate()) if "replaced" in name] == expected


@pytest.mark.parametrize(
    ("counters", "missing"),
    [
        ({"seen": 2, "dropped": 1}, ["events"]),
        ({"seen": 1}, []),
        ({"seen": 2}, ["books"]),
        ({"feed": "strace", "unparsed": 1}, ["unparsed"]),
        ({"seen": 1, "misses": 1, "lost_forks": 1}, ["lost_forks", "misses"]),
        ({"seen": 1, "unknown_loss": "it was killed"}, ["unknown_loss"]),
        ({"seen": 1, "uring": "hole"}, ["io_uring"]),
        ({"seen": 1, "uring": "seen"}, []),
    ],
)
def test_what_is_missing_without_a_place_is_missing_from_any_call(
    run: Run, counters: dict[str, Any], missing: list[str]
) -> None:
    add_call(run)
    capture = RawCapture(**{"feed": "ebpf", "got": 1, "uring": "unused", **counters})
    found = run.correlate(capture=capture)
    assert list_ambiguities(found) == [f"kernel_layer_incomplete:{one}" for one in missing]
    assert found.report.status == ("partial" if missing else "clean")


def test_calls_that_nobody_decided_are_each_named_where_others_were_decided(run: Run) -> None:
    for call in "abc":
        add_call(run, call)
    run.decides("b")
    found = run.correlate(is_decided=False)
    assert found.report.status == "partial"
    assert list_ambiguities(found) == [
        f"sdk_tool_call_without_policy_binding:{call}" for call in "ac"
    ]


def test_without_any_decision_there_is_no_policy_layer_that_calls_could_miss(run: Run) -> None:
    add_call(run, "a")
    found = run.correlate(is_decided=False)
    assert (found.report.status, list_ambiguities(found)) == ("clean", [])
    assert [one.policy_decision for one in found.report.bindings] == [None]


def test_a_binding_counts_what_its_window_holds(run: Run) -> None:
    """Also where that is the whole run, as the contract has it of a decision alone."""
    run.opens(2)
    run.decides("decided")
    run.adds_event("tool_call_started", "sent")  # as by OpenTelemetry: nobody knows when
    run.start("a")
    run.opens(3)
    run.end("a")
    run.end("ghost")
    run.opens(4)
    found = run.correlate()
    windows = {
        one.tool_call_id: (one.window.start, one.window.end, one.kernel_event_count)
        for one in found.report.bindings
    }
    assert windows == {
        "decided": ("run_started", "run_finished", 9),
        "sent": ("run_started", "run_finished", 9),
        "a": ("tool_call_started:a", "tool_call_completed:a", 3),
        "ghost": ("run_started", "tool_call_completed:ghost", 5),
    }
    assert found.calls == {"decided": {}, "sent": {}, "a": {"openat": 3}, "ghost": {}}
    assert found.unbound == {"openat": 6}
    assert "sdk_tool_call_without_window:sent" in list_ambiguities(found)
    assert found.report.status == "partial"


def test_a_call_that_never_ended_has_the_rest_of_the_run(run: Run) -> None:
    run.start("a")
    run.opens(3)
    found = run.correlate()
    assert count_bound(found) == {"a": 3}
    assert found.report.bindings[0].window.end == "run_finished"


def test_a_conflict_of_decisions_is_no_decision(run: Run) -> None:
    add_call(run)
    run.decides("a")
    assert run.correlate().report.bindings[0].policy_decision == "allow"
    run.decides("a", "deny")
    assert run.correlate().report.bindings[0].policy_decision is None


def test_gaps_reach_over_windows(run: Run) -> None:
    for name in "abcd":
        run.start(name)
        run.opens(10)
        run.end(name)
    run.gaps = [(33, 34), (12, 25)]
    lost = [name for name in list_ambiguities(run.correlate()) if "lost" in name]
    assert lost == [uncertainty_code("kernel_events_lost_in_window", name) for name in "bcd"]
    run.gaps = [(3, 35), (4, 5)]
    assert len([name for name in list_ambiguities(run.correlate()) if "lost" in name]) == 4


def test_many_overlapping_calls_have_short_names(run: Run) -> None:
    for number in range(40):
        run.start(f"{number:02}")
        run.opens()
    overlaps = [name for name in list_ambiguities(run.correlate()) if "overlap" in name]
    assert len(overlaps) == 16  # of two calls, of three, … and of more than sixteen
    longest = ",".join(f"{number:02}" for number in range(16)) + ",\\+"
    assert f"kernel_events_in_overlapping_windows:{longest}" in overlaps


# --- properties -------------------------------------------------------------------------------

ids = st.sampled_from(["a", "b", "c", "a,b", "x:y", "n\nl", "\\", "\\x2c", "", "é\u202e", "a\\,"])
pids = st.integers(1, 6)
moves = st.one_of(
    st.tuples(st.just("start"), ids, st.sampled_from([None, "ls", "make all", "'"])),
    st.tuples(st.just("end"), ids),
    st.tuples(st.just("decides"), ids, st.sampled_from(["allow", "deny"])),
    st.tuples(st.just("opens"), st.integers(1, 3), pids),
    st.tuples(st.just("forks"), pids, pids),
    st.tuples(st.just("execs"), pids, st.just("-c"), st.sampled_from(["ls", "eval 'make all'"])),
    st.tuples(st.just("exits"), pids),
)


@given(st.lists(moves, max_size=60))
def test_every_event_is_counted_exactly_once(script: list[tuple[Any, ...]]) -> None:
    run = Run()
    for name, *words in script:
        getattr(run, name)(*words)
    found = run.correlate()
    together: Counter[str] = Counter()
    for tally in (*found.calls.values(), found.unbound, found.undecided):
        together.update(tally)
    expected = Counter(
        {OPEN: "openat", EXEC: "exec"}.get(kind, f"event_{kind}") for _, kind, _ in run.steps
    )
    assert together == expected
    for binding in found.report.bindings:
        if binding.window.start == "run_started":
            continue  # the whole run's, which nobody's alone is
        assert binding.kernel_event_count == sum(found.calls[binding.tool_call_id].values())
    assert list_ambiguities(found) == sorted(set(list_ambiguities(found)))
    assert all(name.isprintable() for name in list_ambiguities(found))
    assert (found.report.status == "clean") == (
        bool(found.report.bindings) and not list_ambiguities(found)
    )
    again = msgspec.json.decode(msgspec.json.encode(found.report), type=CorrelationReport)
    assert again == found.report


@given(st.lists(st.text(), min_size=1), st.lists(st.text(), min_size=1))
def test_a_code_names_its_ids_and_no_others(one: list[str], other: list[str]) -> None:
    assert uncertainty_code("c", *one).isprintable()
    assert (uncertainty_code("c", *one) == uncertainty_code("c", *other)) == (one == other)


def test_ids_that_look_like_codes_are_distinguished() -> None:
    assert uncertainty_code("c", "a,b") == "c:a\\x2cb"
    assert uncertainty_code("c", "a", "b") == "c:a,b"
    assert uncertainty_code("c", "a\\x2cb") == "c:a\\\\x2cb"
    assert uncertainty_code("c", "a\nb:c") == "c:a\\nb:c"


# --- from the layers ----------------------------------------------------------------------------


def kernel_line(seq: int, pid: int, kind: int) -> bytes:
    names = {OPEN: "openat", EXEC: "exec"}
    event = KernelEvent(
        run_id="r",
        seq=seq,
        pid=pid,
        event_type=kind,
        kind=names.get(kind, f"event_{kind}"),
        value=None,
    )
    return msgspec.json.encode(event)


def detail_line(seq: int, pid: int, call: str, **more: Any) -> bytes:
    return msgspec.json.encode(KernelDetail(run_id="r", seq=seq, pid=pid, call=call, **more))


GAP_LINE = msgspec.json.encode(Gap(source="kernel", lost=3, reason="the ring was full"))


def test_steps_come_from_both_files_of_the_kernel_layer() -> None:
    kernel = [
        kernel_line(0, 1, OPEN),
        kernel_line(1, 1, FORK),
        kernel_line(2, 2, EXEC),
        kernel_line(3, 2, EXIT),
    ]
    details = [
        detail_line(0, 1, "openat"),
        GAP_LINE,
        detail_line(1, 1, "fork", child=2),
        detail_line(2, 2, "exec", argv=["sh", "-c", "ls"]),
        GAP_LINE,
    ]
    assert list(attribution_events(kernel, details)) == [
        (1, OPEN, None, 1),
        (1, FORK, EventDetails(child=2), 1),
        (2, EXEC, EventDetails(asked=["ls"], words=[b"-c", b"ls"]), 1),
        (2, EXIT, None, 1),
    ]
    assert list(attribution_events(kernel, []))[2] == (2, EXEC, EventDetails(), 1)
    assert lost_between(details, 4) == [(1, 1), (3, 4)]
    assert lost_between([GAP_LINE, GAP_LINE], 9) == [(0, 9)]
    assert lost_between([], 9) == []


BEGINS_LINE = msgspec.json.encode(Gap(source="kernel", lost=0, reason="full", begins=True))


def test_a_loss_lies_between_where_it_may_begin_and_where_it_was_noticed() -> None:
    one, two, three = (detail_line(seq, 1, "openat") for seq in (3, 5, 7))
    assert lost_between([one, BEGINS_LINE, two, GAP_LINE, three], 9) == [(4, 7)]
    assert lost_between([BEGINS_LINE, one, GAP_LINE, BEGINS_LINE, two, GAP_LINE], 9) == [
        (0, 5),
        (4, 9),
    ]
    assert lost_between([one, BEGINS_LINE, two], 9) == [(4, 9)], "it was cut off"
    assert lost_between([one, GAP_LINE, BEGINS_LINE], 9) == [(4, 9)]
