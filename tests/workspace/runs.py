"""Finished runs, made with the parts that make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stream.records.run import ARTIFACTS, CHANGES_FILE, DIFF_FILE, METADATA_FILE, RunMetadata
from stream.verify.run_folder import RunFolder
from stream.workspace.apply import ApplyPlan, plan_changes
from stream.workspace.changes import find_changes
from stream.workspace.listing import write_changes
from stream.workspace.patch import find_git
from stream.workspace.snapshot import Store, copy_folder
from tests.workspace.trees import Tree, write_tree


def make_plan(run: Path) -> ApplyPlan | None:
    folder = RunFolder(run)
    return plan_changes(run, folder.recorded_metadata(), folder.recorded_changes())


def make_run(run: Path, source: Path, after: Tree, /, **more: Any) -> Path:
    """A run whose agent made the tree out of the source."""
    (run / ARTIFACTS).mkdir(parents=True)
    metadata = RunMetadata(
        run_id="r",
        session_id="s",
        profile="agents",
        started="2026-01-01T00:00:00Z",
        stream_version="0",
        system="Linux",
        agent_id="a",
        agent_version="1",
        argv=["a"],
        environment="local",
        capture_mode="full",
        workspace_mode="copy",
        workspace="workspace",
        source=str(source),
        constraints=[],
    )
    metadata = msgspec.structs.replace(metadata, **more)
    (run / METADATA_FILE).write_bytes(msgspec.json.encode(metadata))
    (run / "events.jsonl").write_text(
        '{"event_type":"run_started"}\n{"event_type":"run_finished"}\n'
    )
    with Store(run) as store:
        snapshot = copy_folder(source, run / "workspace", store)
        write_tree(run / "workspace", after)
        changes = find_changes(snapshot, run / "workspace", store)
        write_changes(changes, store, run / DIFF_FILE, run / CHANGES_FILE, git=find_git(), exited=0)
    return run
