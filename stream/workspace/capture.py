"""The workspace of a run: made ready and looked at before the agent works in it, compared after.

What was changed is written into the run folder, as a patch and as a list of every changed path."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from anyio import to_thread
from msgspec import Struct, field

from stream.errors import OutputError, StreamError
from stream.files.append import RecordedFile, recorded_file
from stream.files.trees import remove_tree
from stream.records.kernel import path_text
from stream.records.run import CHANGES_FILE, DIFF_FILE
from stream.workspace.changes import ChangeSet, find_changes
from stream.workspace.listing import Redact, Summary, write_changes
from stream.workspace.patch import find_git
from stream.workspace.snapshot import (
    Skipped,
    Snapshot,
    SnapshotCancelled,
    Store,
    copy_folder,
    empty_snapshot,
    take_snapshot,
)

MOST_PATHS = 100  #: that an event names
_ESCAPED = re.compile(rb"\\([0-7]{3})")


class PreparedWorkspace(Struct):
    """The workspace before the agent worked in it, as an event states it."""

    summary: str
    facts: dict[str, Any]


class WorkspaceChanges(Struct):
    """The changes of a workspace, as far as they are known."""

    summary: str
    kept: dict[str, RecordedFile] = field(default_factory=dict)  #: the files that were written
    found: Summary | None = None  #: None: they could not be written down
    unknown: int = 0  #: paths of which nothing can be said
    first_unknown: list[dict[str, str]] = field(default_factory=list)
    trouble: str = ""

    @property
    def is_complete(self) -> bool:
        """Tell whether every change is known."""
        return self.found is not None and not self.trouble


class WorkspaceCapture:
    """The folder that an agent works in, before and after. `is_interrupted`: nobody waits any
    more for an agent that has not started."""

    def __init__(
        self,
        workspace: Path,
        run_folder: Path,
        *,
        mode: str,  #: `empty`, `here`, or else a copy of the source
        source: Path | None,
        leave_out: Iterable[Path],
        redactor: Callable[[], Redact | None],  #: called once there are changes
        is_interrupted: Callable[[], bool],
        on_progress: Callable[[int], None],
        on_warning: Callable[[str], None],
    ) -> None:
        self._workspace = workspace
        self._folder = run_folder
        self._mode = mode
        self._source = source
        self._leave_out = tuple(leave_out)
        self._redactor = redactor
        self._is_interrupted = is_interrupted
        self._on_progress = on_progress
        self._on_warning = on_warning
        self._git = find_git()
        self._store = Store(run_folder)
        self._mounts: dict[bytes, bytes] = {}  #: that were there before
        self._before: Snapshot | None = None  #: None: the agent will not be started

    def close(self) -> None:
        """Forget the contents of the workspace."""
        self._store.close()

    async def prepare(self) -> PreparedWorkspace:
        """Make the workspace, and take its snapshot. Raise StreamError."""
        if self._mode == "empty":
            return self._prepare_workspace()
        return await to_thread.run_sync(self._prepare_workspace)

    async def compare(self, exited: int | None) -> WorkspaceChanges:
        """Find what was changed, and write it down. `exited`: wall-clock ns of the agent's end,
        where something outlived it. Once begun, it is finished."""
        return await to_thread.run_sync(self._compare_workspace, exited)

    def _prepare_workspace(self) -> PreparedWorkspace:
        """Make the workspace with its snapshot, and describe both for the event of the run."""
        facts: dict[str, Any] = {
            "root": str(self._workspace),
            "run_folder": path_text(os.fsencode(self._folder.resolve())),
            "mode": self._mode,
            "source": None if self._source is None else str(self._source),
        }
        try:
            before = self._before = self._take_snapshot()
        except SnapshotCancelled:
            return PreparedWorkspace(f"workspace_mode={self._mode} interrupted", facts)
        except OSError as error:
            raise OutputError(f"{self._workspace}: {error.strerror}") from None
        self._mounts = mounts_below(self._workspace)
        skipped = before.skipped
        count = 0 if self._mode == "empty" else before.count_entries()
        facts |= {
            "entries": count,
            "bytes": self._store.end,
            "skipped": len(skipped),
            "skipped_paths": _first_skipped(skipped),
            "leads_back": self._warn_of_links_back(before),
        }
        text = f"workspace_mode={self._mode} entries={count} skipped={len(skipped)}"
        return PreparedWorkspace(text, facts)

    def _take_snapshot(self) -> Snapshot:
        """Take the snapshot of the workspace: of an empty folder, of the source, or of a copy."""
        workspace, store, leave_out = self._workspace, self._store, self._leave_out
        if self._mode == "empty":
            workspace.mkdir(mode=0o700, exist_ok=True)
            return empty_snapshot(workspace)
        if self._mode == "here":
            return take_snapshot(workspace, store, leave_out, self._is_cancelled)
        assert self._source is not None
        try:
            return copy_folder(self._source, workspace, store, leave_out, self._is_cancelled)
        except StreamError:
            remove_tree(workspace)
            raise

    def _warn_of_links_back(self, before: Snapshot) -> list[str]:
        """Say where what is done in a copy is done to its source."""
        back = [_path_as_text(path) for path in before.leading_back]
        source = self._source
        if source is not None and (source / ".git").is_file():
            back.insert(0, ".git")
            self._on_warning(
                f"{source / '.git'} is a link to a repository elsewhere: what the agent does with"
                " git in the copy, it does there"
            )
        elif source is not None and not (source / ".git").exists():
            # As git does: an empty .git, as sandboxes put into shared folders, is no repository.
            marks = ((folder, folder / ".git") for folder in source.parents)
            above = next(
                (folder for folder, git in marks if git.is_file() or (git / "HEAD").exists()), None
            )
            if above is not None:
                self._on_warning(
                    f"{source} is a part of the repository {above}, which is not in the copy: git"
                    " finds none there"
                )
        missing = [one for one in before.skipped if one.reason != "left out"]
        if missing:
            self._on_warning(
                f"not in the copy, or not for sure: {_path_as_text(missing[0].path)}"
                f" ({missing[0].reason}), {len(missing)} in all"
            )
        links = len(before.leading_back)
        if links:
            self._on_warning(
                f"links in the copy lead back into {source}, {back[-1]} for one ({links} in all):"
                " what the agent writes through them, it writes there"
            )
        return back[:MOST_PATHS]

    def _is_cancelled(self) -> bool:
        self._on_progress(self._store.end)
        return self._is_interrupted()

    def _compare_workspace(self, exited: int | None) -> WorkspaceChanges:
        """Write the patch and the listing of what the agent changed, and describe them."""
        listing = self._folder / CHANGES_FILE
        try:
            changes = self._find_changes()
            found = write_changes(
                changes,
                self._store,
                self._folder / DIFF_FILE,
                listing,
                git=self._git,
                exited=exited,
                redact=self._redactor(),
                listed=MOST_PATHS,
            )
            kept = {DIFF_FILE: found.patch, CHANGES_FILE: recorded_file(listing)}
        except (StreamError, OSError) as error:
            return WorkspaceChanges(
                f"method=git_diff not captured: {error}", trouble=f"{DIFF_FILE}: {error}"
            )
        summary = "changed_paths=0: nothing was changed"
        if found.total:
            summary = (
                f"changed_paths={found.total} added={found.added} removed={found.removed}"
                f" changed={found.changed} inside_git={found.inside_git}"
            )
        return WorkspaceChanges(
            f"method=git_diff {summary}",
            kept,
            found,
            len(changes.unknown),
            _first_skipped(changes.unknown),
            self._why_incomplete(changes, found),
        )

    def _find_changes(self) -> ChangeSet:
        """Compare the workspace with its snapshot. Raise InputError."""
        if self._before is None:  # what is there of the workspace is no agent's work
            return ChangeSet([], [])
        return find_changes(self._before, self._workspace, self._store)

    def _why_incomplete(self, changes: ChangeSet, found: Summary) -> str:
        """Say why the changes may not be all that there were."""
        if changes.is_of_another:
            return (
                "the workspace was exchanged for another folder while the agent ran: the changes"
                " are those of the folder that has its name now"
            )
        if hidden := mounts_below(self._workspace).items() - self._mounts.items():
            first = _path_as_text(min(path for _, path in hidden))
            return (
                f"of the workspace {first} was mounted over while the agent ran, and still is: the"
                " changes are those of what is mounted there"
            )
        return "some of the workspace could not be read" if found.is_incomplete else ""


def mounts_below(folder: Path) -> dict[bytes, bytes]:
    """Return the mounts in a folder, each of which hides what was in its place: paths relative to
    it, by the number that a mount has until it goes. The folder itself is none of them."""
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


def _path_as_text(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def _first_skipped(found: Sequence[Skipped]) -> list[dict[str, str]]:
    return [{"path": _path_as_text(one.path), "reason": one.reason} for one in found[:MOST_PATHS]]
