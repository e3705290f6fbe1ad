"""The real agent under the real kernel feed: each call is bound to what it really did."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.rig import ALLOWED, STREAM_JSON, Recorded, Rig, bash, text, write

KERNEL = ("--kernel", "ebpf", "--require", "kernel")
STRACE = ("--kernel", "strace", "--require", "kernel")


def windows(recorded: Recorded) -> dict[str, range]:
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
    """What was written beneath the workspace, by its path there."""
    root = f"{recorded.workspace}/"
    events = recorded.lines("layers/kernel.ndjson")
    detail = {one["seq"]: one for one in recorded.lines("layers/kernel-ext.ndjson") if "seq" in one}
    found = set()
    for event in (events[number] for number in window):
        is_write = event.get("access_mode") in ("write", "read_write")
        place = detail.get(event["seq"], {}).get("to_path") if event["event_type"] == 1002 else None
        value = place or event["value"] or ""
        if (is_write or place) and event.get("status") != "error" and value.startswith(root):
            found.add(value.removeprefix(root))
    return found


def test_each_call_is_bound_by_its_id_to_the_files_that_it_wrote(rig: Rig) -> None:
    script = [
        write("alpha.txt", "alpha\n"),
        bash("echo beta > beta.txt && mkdir deep && mv beta.txt deep/"),
        write("gamma.txt", "gamma\n"),
        text("Done."),
    ]
    recorded = rig.record("bound", script, *STREAM_JSON, ALLOWED, options=KERNEL)
    health = json.loads((recorded.folder / "observation-health.json").read_bytes())
    assert (health["kernel_layer"], health["ringbuf_drops"]) == ("complete", 0)
    assert health["cgroup_correlation"] == "clean"
    assert health["sdk_layer"] == "self_reported"
    found = windows(recorded)
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
    assert all(bound.values())
    assert report["status"] == "clean"
    verified = rig.place.stream("verify", recorded.folder)
    assert (verified.code, verified.out) == (0, b""), verified.err


def test_with_strace_the_windows_are_as_exact(rig: Rig) -> None:
    """All that it writes to its stdout was seen, and stands among what it did."""
    names = ("one", "two", "three")
    script = [*(bash(f"echo {name} >{name}.txt") for name in names), text("Done.")]
    recorded = rig.record("strace", script, *STREAM_JSON, ALLOWED, options=STRACE)
    health = json.loads((recorded.folder / "observation-health.json").read_bytes())
    assert (health["kernel_layer"], health["ringbuf_drops"]) == ("complete", 0)
    markers = recorded.lines("layers/markers.ndjson")
    assert {marker["clock"] for marker in markers} == {"kernel"}
    found = windows(recorded)
    assert list(found) == list(calls_of(recorded))
    wrote = [written_in(recorded, window) for window in found.values()]
    files = [{path for path in paths if path.endswith(".txt")} for paths in wrote]
    assert files == [{f"{name}.txt"} for name in names]
