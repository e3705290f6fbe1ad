"""What runs next to an agent's run: the probes, and who reads its events."""

from __future__ import annotations

import subprocess

import pytest

from tests.cli.command import STREAM
from tests.e2e.rig import ALLOWED, Recorded, Rig, text_turn, write_turn
from tests.sweeping import first_of

SCRIPT = [write_turn("a.txt", "a\n"), text_turn("Done.")]
PROBES = ("--matrix", "--cap", "cap_fs_write_workspace_tree")


@pytest.mark.parametrize("mode", first_of("copy", "empty", "here"))
def test_the_probes_of_the_same_workspace(rig: Rig, mode: str) -> None:
    source = rig.place.root / f"source-{mode}"
    source.mkdir()
    (source / "kept.txt").write_text("kept\n")
    options = (*PROBES, "--workspace", mode, "--source", source)
    recorded = rig.record(f"matrix-{mode}", SCRIPT, ALLOWED, options=options)
    assert recorded.done.code == 0
    assert set(recorded.changes) == {"a.txt"}
    work = source if mode == "here" else recorded.workspace
    assert {path.name for path in work.iterdir()} == {"a.txt", "kept.txt"} - (
        {"kept.txt"} if mode == "empty" else set()
    )
    records = recorded.lines("boundary.ndjson")
    assert records
    for record in records:
        assert record["run"]["workspace_root"] == str(work)
        assert record["capability_context"]["primary"]["id"] == PROBES[2]
    assert f"{len(records)} probe records in boundary.ndjson" in recorded.done.err
    validated = rig.place.stream("validate", recorded.folder / "boundary.ndjson")
    assert (validated.code, validated.out) == (0, b""), validated.err


def test_the_record_names_what_the_probes_found(rig: Rig) -> None:
    recorded = rig.record("listed", SCRIPT, ALLOWED, options=PROBES)
    [artifact] = [
        item
        for item in recorded.events[8]["agent_action"]["artifacts"]
        if item["type"] == "manifest"
    ]
    manifest = (recorded.folder / artifact["content_ref"]).read_text()
    assert '"boundary.ndjson"' in manifest


@pytest.fixture(scope="module")
def piped(rig: Rig) -> tuple[Recorded, subprocess.Popen[bytes]]:
    """observe --events - | check -"""
    session = rig.start("piped", SCRIPT, ALLOWED, options=("--events", "-"))
    reader = rig.place.start("check", "-", argv0=(STREAM,), stdin=session.process.stdout)
    assert session.process.stdout is not None
    session.process.stdout.close()
    session.process.stdout = None  # the reader's by now
    return session.finish(), reader


def test_events_in_a_pipe(rig: Rig, piped: tuple[Recorded, subprocess.Popen[bytes]]) -> None:
    recorded, reader = piped
    checked = rig.place.finish(reader)
    assert checked.code == 0, checked.err
    assert checked.out == (recorded.folder / "events.jsonl").read_bytes()
    assert "9 events of 1 run; 0 findings" in checked.err
    assert recorded.stdout == "Done.\n"
