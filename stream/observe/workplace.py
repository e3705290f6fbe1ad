"""Which mounts lie in a folder: each hides what was in its place.

The folder that an agent works in: made ready before, compared after."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anyio import to_thread
from msgspec import Struct, field

from stream.errors import OutputError, StreamError
from stream.files.append import RecordedFile, recorded_file
from stream.files.trees import remove_tree
from stream.observe.settings import RunSettings, file_artifact
from stream.records.decision import Artifact
from stream.records.kernel import path_text
from stream.records.run import CHANGES_FILE, DIFF_FILE
from stream.workspace.changes import ChangeSet, find_changes
from stream.workspace.patch import Summary, find_git, write_patch
from stream.workspace.snapshot import (
    Cancelled,
    Skipped,
    Snapshot,
    Store,
    empty_snapshot,
    take_copy,
    take_snapshot,
)

_ESCAPED = re.compile(rb"\\([0-7]{3})")


def mounts_below(folder: Path) -> dict[bytes, bytes]:
    """The path of each from the folder, by the number that it has until it goes. The folder
    itself is none of them."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return {}
    above = os.path.join(os.fsencode(os.path.realpath(folder)), b"")  # noqa: PTH118
    points = {}
    for number, _, _, _, point, *_ in map(bytes.split, lines):
        path = _ESCAPED.sub(lambda escape: bytes([int(escape[1], 8)]), point)
        if path.startswith(above):
            points[number] = path.removeprefix(above)
    return points


MOST_PATHS = 100  #: that an event names
EXCHANGED = (
    "the workspace was exchanged for another folder while the agent ran: the changes are those of"
    " the folder that has its name now"
)
HIDDEN = (
    "of the workspace {} was mounted over while the agent ran, and still is: the changes are those"
    " of what is mounted there"
)


class Prepared(Struct):
    summary: str
    facts: dict[str, Any]


class WorkspaceChanges(Struct):
    """What is known of the changes."""

    summary: str
    artifacts: list[Artifact] = field(default_factory=list)
    kept: dict[str, RecordedFile] = field(default_factory=dict)  #: the files that were written
    found: Summary | None = None  #: None: they could not be written down
    trouble: str = ""

    @property
    def is_complete(self) -> bool:
        return self.found is not None and not self.trouble


def _text(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def _named(found: Sequence[Skipped]) -> list[dict[str, str]]:
    """The first of them."""
    return [{"path": _text(one.path), "reason": one.reason} for one in found[:MOST_PATHS]]


class WorkspaceCapture:
    """`is_interrupted`: nobody waits any more for an agent that has not started."""

    def __init__(
        self,
        recording: RunSettings,
        is_interrupted: Callable[[], bool],
        on_progress: Callable[[int], None],
        on_warning: Callable[[str], None],
    ) -> None:
        self._recording = recording
        self._is_interrupted = is_interrupted
        self._on_progress = on_progress
        self._on_warning = on_warning
        self._git = find_git()
        self._store = Store(recording.folder)
        self._mounts: dict[bytes, bytes] = {}  #: that were there before
        self._before: Snapshot | None = None  #: None: the agent will not be started

    def close(self) -> None:
        self._store.__exit__(None, None, None)

    async def prepare(self) -> Prepared:
        """Raises StreamError."""
        if self._recording.workspace_mode == "empty":
            return self._prepare()
        return await to_thread.run_sync(self._prepare)

    def _prepare(self) -> Prepared:
        recording = self._recording
        mode = recording.workspace_mode
        facts: dict[str, Any] = {
            "root": str(recording.workspace),
            "run_folder": path_text(os.fsencode(recording.folder.resolve())),
            "mode": mode,
            "source": None if recording.source is None else str(recording.source),
        }
        try:
            if mode == "empty":
                recording.workspace.mkdir(mode=0o700, exist_ok=True)
                before = empty_snapshot(recording.workspace)
            elif mode == "here":
                before = take_snapshot(
                    recording.workspace, self._store, recording.leave_out, self._is_cancelled
                )
            else:
                before = self._copy()
        except Cancelled:
            return Prepared(f"workspace_mode={mode} interrupted", facts)
        except OSError as error:
            raise OutputError(f"{recording.workspace}: {error.strerror}") from None
        self._before = before
        self._mounts = mounts_below(recording.workspace)
        skipped = before.skipped
        count = 0 if mode == "empty" else before.count()
        facts |= {
            "entries": count,
            "bytes": self._store.end,
            "skipped": len(skipped),
            "skipped_paths": _named(skipped),
            "leads_back": self._warn(before),
        }
        text = f"workspace_mode={mode} entries={count} skipped={len(skipped)}"
        return Prepared(text, facts)

    def _warn(self, before: Snapshot) -> list[str]:
        """Where what is done in a copy is done to its source."""
        back = [_text(path) for path in before.leading_back]
        source = self._recording.source
        if source is not None and (source / ".git").is_file():
            back.insert(0, ".git")
            self._on_warning(
                f"{source / '.git'} is a link to a repository elsewhere: what the agent does with"
                " git in the copy, it does there"
            )
        elif source is not None and not (source / ".git").exists():
            above = next((place for place in source.parents if (place / ".git").exists()), None)
            if above is not None:
                self._on_warning(
                    f"{source} is a part of the repository {above}, which is not in the copy: git"
                    " finds none there"
                )
        missing = [one for one in before.skipped if one.reason != "left out"]
        if missing:
            self._on_warning(
                f"not in the copy, or not for sure: {_text(missing[0].path)}"
                f" ({missing[0].reason}), {len(missing)} in all"
            )
        links = len(before.leading_back)
        if links:
            self._on_warning(
                f"links in the copy lead back into {source}, {back[-1]} for one ({links} in all):"
                " what the agent writes through them, it writes there"
            )
        return back[:MOST_PATHS]

    def _copy(self) -> Snapshot:
        recording = self._recording
        assert recording.source is not None
        try:
            return take_copy(
                recording.source,
                recording.workspace,
                self._store,
                recording.leave_out,
                self._is_cancelled,
            )
        except StreamError:
            remove_tree(recording.workspace)
            raise

    def _is_cancelled(self) -> bool:
        self._on_progress(self._store.end)
        return self._is_interrupted()

    async def compare(self, exited: int | None) -> WorkspaceChanges:
        """`exited`: wall-clock ns of the agent's end, where something outlived it. Once begun, it
        is finished."""
        return await to_thread.run_sync(self._compare, exited)

    def _compare(self, exited: int | None) -> WorkspaceChanges:
        recording = self._recording
        try:
            changes = self._changes()
            found = write_patch(
                changes,
                self._store,
                recording.folder / DIFF_FILE,
                recording.folder / CHANGES_FILE,
                git=self._git,
                exited=exited,
                redact=recording.disclosure.contents(),
                shown=MOST_PATHS,
            )
            listing = recorded_file(recording.folder / CHANGES_FILE)
        except (StreamError, OSError) as error:
            return WorkspaceChanges(
                f"method=git_diff not captured: {error}", trouble=f"{DIFF_FILE}: {error}"
            )
        if found.total:
            summary = (
                f"changed_paths={found.total} added={found.added} removed={found.removed}"
                f" changed={found.changed} inside_git={found.inside_git}"
            )
        else:
            summary = "changed_paths=0: nothing was changed"
        trouble = "some of the workspace could not be read" if found.is_incomplete else ""
        hidden = mounts_below(recording.workspace).items() - self._mounts.items()
        if changes.is_of_another:
            trouble = EXCHANGED
        elif hidden:
            trouble = HIDDEN.format(_text(min(path for _, path in hidden)))
        artifacts = [
            file_artifact(
                "diff",
                DIFF_FILE,
                found.patch,
                "What git can carry of the changes, for `git apply`.",
                method="git_diff",
                changed_paths=found.paths,
                changed_count=found.total,
                inside_git=found.inside_git,
                not_in_patch=found.not_in_patch,
                has_after_exit=found.has_after_exit,
                unknown=_named(changes.unknown),
                unknown_count=len(changes.unknown),
                complete=not trouble,
            ),
            file_artifact("changes", CHANGES_FILE, listing, "Every changed path, with its hashes."),
        ]
        kept = {DIFF_FILE: found.patch, CHANGES_FILE: listing}
        return WorkspaceChanges(f"method=git_diff {summary}", artifacts, kept, found, trouble)

    def _changes(self) -> ChangeSet:
        """Raises InputError."""
        if self._before is None:  # what is there of the workspace is no agent's work
            return ChangeSet([], [])
        return find_changes(self._before, self._recording.workspace, self._store)
