"""The real agent under the real kernel feed: each call is bound to what it really did."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.e2e.rig import ALLOWED, STREAM_JSON, Recorded, Rig, bash_turn, text_turn, write_turn

KERNEL = ("--kernel", "ebpf", "--require", "kernel")
STRACE = ("--kernel", "strace", "--require", "kernel")


def find_windows(recorded: Recorded) -> dict[str, range]:
    """By tool call: the numbers of the kernel events in its window."""
    begun: dict[str, int] = {}
    found = {}
    for marker in recorded.lines("layers/markers.ndjson"):
        call = marker.get("tool_call_id", "")
        if marker["name"] == "tool_call_started":
            begun[call] = marker["at"]
        elif marker["name"] == "tool_call_completed":
            found[call] = range(begun[call], marker["at"])
    return found


def calls_of(recorded: Recorded) -> dict[str, Any]:
    """Tool calls as the agent declared them: id -> input."""
    found = {}
    for line in map(json.loads, recorded.stdout.splitlines()):
        if line["type"] == "assistant":
            for block in line["message"]["content"]:
                if block["type"] == "tool_use":
                    found[block["id"]] = block["input"]
    return found


def written_in(recorded: Recorded, window: range) -> set[str]:
    events = recorded.lines("layers/kernel.ndjson")
    return written_of(recorded, [events[number] for number in window])


def written_of(recorded: Recorded, events: list[Any]) -> set[str]:
    """What was written beneath the workspace, by its path there."""
    root = f"{recorded.workspace}/"
    detail = {one["seq"]: one for one in recorded.lines("layers/kernel-ext.ndjson") if "seq" in one}
    found = set()
    for event in events:
        is_write = event.get("access_mode") in ("write", "read_write")
        place = detail.get(event["seq"], {}).get("to_path") if event["event_type"] == 1002 else None
        value = place or event["value"] or ""
        if (is_write or place) and event.get("status") != "error" and value.startswith(root):
            found.add(value.removeprefix(root))
    return found


def test_each_call_is_bound_by_its_id_to_the_files_that_it_wrote(rig: Rig) -> None:
    script = [
        write_turn("alpha.txt", "alpha\n"),
        bash_turn("echo beta > beta.txt && mkdir deep && mv beta.txt deep/"),
        write_turn("gamma.txt", "gamma\n"),
        text_turn("Done."),
    ]
    recorded = rig.record("bound", script, *STREAM_JSON, ALLOWED, options=KERNEL)
    health = json.loads((recorded.folder / "observation-health.json").read_bytes())
    assert (health["kernel_layer"], health["ringbuf_drops"]) == ("complete", 0)
    assert health["cgroup_correlation"] == "clean"
    assert health["sdk_layer"] == "self_reported"
    found = find_windows(recorded)
    calls = list(calls_of(recorded))
    assert list(found) == calls
    wrote = [written_in(recorded, found[call]) for call in calls]
    assert "alpha.txt" in wrote[0]
    assert "deep/beta.txt" in wrote[1] or "beta.txt" in wrote[1]
    assert "gamma.txt" in wrote[2]
    for number, name in enumerate(("alpha.txt", "beta.txt", "gamma.txt")):
        others = [names for index, names in enumerate(wrote) if index != number]
        assert not any(name in names for names in others)
    report = json.loads((recorded.folder / "correlation-report.json").read_bytes())
    bound = {one["tool_call_id"]: one["kernel_event_count"] for one in report["bindings"]}
    assert list(bound) == calls
    assert bound == {call: len(window) for call, window in found.items()}
    assert sum(bound.values()) < len(recorded.lines("layers/kernel.ndjson"))
    assert report["status"] == "clean"
    verified = rig.place.stream("verify", recorded.folder)
    assert (verified.code, verified.out) == (0, b""), verified.err


def test_with_strace_the_windows_are_as_exact(rig: Rig) -> None:
    """All that it writes to its stdout was seen, and stands among what it did."""
    names = ("one", "two", "three")
    script = [*(bash_turn(f"echo {name} >{name}.txt") for name in names), text_turn("Done.")]
    recorded = rig.record("strace", script, *STREAM_JSON, ALLOWED, options=STRACE)
    health = json.loads((recorded.folder / "observation-health.json").read_bytes())
    assert (health["kernel_layer"], health["ringbuf_drops"]) == ("complete", 0)
    markers = recorded.lines("layers/markers.ndjson")
    assert {marker["clock"] for marker in markers} == {"kernel"}
    found = find_windows(recorded)
    assert list(found) == list(calls_of(recorded))
    wrote = [written_in(recorded, window) for window in found.values()]
    files = [{path for path in paths if path.endswith(".txt")} for paths in wrote]
    assert files == [{f"{name}.txt"} for name in names]


# --- counted again ------------------------------------------------------------------------------

OVERLAP = "kernel_events_in_overlapping_windows:"


def tool_block(tool: str, **given: Any) -> dict[str, Any]:
    return {"tool": tool, "input": given}


def count_calls(recorded: Recorded) -> dict[str, list[Any]]:
    """By tool call: the events that are its own. Counted from the layers in another way than the
    product's, and for what the agent here does."""
    found, commands = find_windows(recorded), commands_of(recorded)
    detail = {one["seq"]: one for one in recorded.lines("layers/kernel-ext.ndjson") if "seq" in one}
    markers = recorded.lines("layers/markers.ndjson")
    (agent,) = {one["pid"] for one in markers if one["name"].startswith("tool_call")}
    whose: dict[int, str | None] = {}
    own: dict[str, list[Any]] = {call: [] for call in found}
    for seq, event in enumerate(recorded.lines("layers/kernel.ndjson")):
        pid, more = event["pid"], detail.get(seq, {})
        open_now = [call for call, window in found.items() if seq in window]
        words = " ".join(more.get("argv", []))
        if event["kind"] == "exec":
            asked = [call for call in open_now if f"eval '{commands.get(call)}'" in words]
            whose[pid] = asked[0] if asked else whose.get(pid)
        alone = open_now[0] if len(open_now) == 1 else None
        if more.get("call") == "fork":
            whose[more["child"]] = alone if pid == agent else whose.get(pid)
        call = alone if pid == agent else whose.get(pid)
        if call in open_now:
            own[str(call)].append(event)
    return own


def commands_of(recorded: Recorded) -> dict[str, str]:
    calls = calls_of(recorded).items()
    return {call: given["command"] for call, given in calls if "command" in given}


def texts_made_by(recorded: Recorded, events: list[Any]) -> set[str]:
    """Texts that were created or moved to their place, by their names. What it keeps for itself
    lies elsewhere."""
    names = (name.partition(".tmp.")[0] for name in written_of(recorded, events))
    return {name for name in names if name.endswith(".txt")}


def test_each_call_is_bound_to_its_own_events_and_to_no_others(rig: Rig) -> None:
    """Calls of one message, whose windows overlap, and calls that follow each other."""
    script = [
        {
            "content": [
                tool_block("Bash", command="echo b >b.txt", description="Make it"),
                tool_block("Bash", command="echo c >c.txt; cp c.txt d.txt", description="Make two"),
            ]
        },
        write_turn("a.txt", "one\n"),
        {"content": [tool_block("Edit", file_path="a.txt", old_string="one", new_string="two")]},
        {"content": [tool_block("Read", file_path="a.txt")]},
        bash_turn("mkdir deep; mv b.txt deep/moved.txt"),
        write_turn("e.txt", "e\n"),
        text_turn("Done."),
    ]
    recorded = rig.record("own", script, *STREAM_JSON, ALLOWED, options=KERNEL)
    found, own = find_windows(recorded), count_calls(recorded)
    assert list(own) == list(calls_of(recorded))
    assert [texts_made_by(recorded, events) for events in own.values()] == [
        {"b.txt"},
        {"c.txt", "d.txt"},
        {"a.txt"},
        {"a.txt"},
        set(),
        {"deep/moved.txt"},
        {"e.txt"},
    ]
    report = json.loads((recorded.folder / "correlation-report.json").read_bytes())
    companion = json.loads((recorded.folder / "companion.json").read_bytes())
    bound = {one["tool_call_id"]: one["kernel_event_count"] for one in report["bindings"]}
    assert bound == {call: len(events) for call, events in own.items()}
    assert companion["calls"] == {
        call: Counter(event["kind"] for event in events) for call, events in own.items()
    }
    total = len(recorded.lines("layers/kernel.ndjson"))
    outside = total - len({seq for window in found.values() for seq in window})
    assert outside == sum(companion["unbound"].values()) > 0
    first, second, *others = own
    assert set(found[first]) & set(found[second])
    for call in others:  # which come one after another: each has all that its window holds
        assert bound[call] == len(found[call])
    assert [name for name in report["ambiguities"] if not name.startswith(OVERLAP)] == []
    verified = rig.place.stream("verify", recorded.folder)
    assert (verified.code, verified.out) == (0, b""), verified.err
