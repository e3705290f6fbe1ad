"""Which changes a git patch can take, and why it cannot take the others."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence

from stream.records.change import Reason
from stream.workspace.changes import Change, State
from stream.workspace.snapshot import LARGEST

_LONGEST = 4_000  #: bytes; git opens whole paths, and a system takes 4,096 at most
_INSIDE_GIT = rb"(?i)(?:^|/)\.git(?:/|\Z)"
# `git apply` refuses a whole patch for one path that means `.git` on some file system. What it
# refuses on a Mac only is in here as well.
_REFUSED = rb"(?i)(?:^|[/\\])(?:\.git|git~1)[ .]*(?:[/\\:]|\Z)"
_REFUSED_LINK = (
    rb"(?i)(?:^|[/\\])(?:\.gitmodules|gitmod~[0-9]+|(?:g(?:i(?:7(?:e(?:ba?)?)?)?)?)?~[0-9]+)"
    rb"[ .]*(?:[/\\:]|\Z)"
)
_IGNORED_ON_MACS = rb"\xe2\x80[\x8c-\x8f\xaa-\xae]|\xe2\x81[\xaa-\xaf]|\xef\xbb\xbf"


def reasons(changes: Sequence[Change], paths: Sequence[bytes]) -> list[Reason | None]:
    """One for each change; None: it is in the patch. `paths`: the names that the patch uses."""
    found = [_own(change, path) for change, path in zip(changes, paths, strict=True)]
    _find_clashes(changes, paths, found)
    _find_obstacles(changes, paths, found)
    return found


def git_mode(state: State) -> str:
    if state.kind == "symlink":
        return "120000"
    return "100755" if state.mode & stat.S_IXUSR else "100644"


def is_leaf(state: State | None) -> bool:
    return state is not None and state.kind != "dir"


def means_git(path: bytes) -> bool:
    """On some file system; what is written there can run when git does."""
    return re.search(_REFUSED, re.sub(_IGNORED_ON_MACS, b"", path)) is not None


def _own(change: Change, path: bytes) -> Reason | None:
    """What is to be said about a change without looking at the others."""
    states = [state for state in (change.before, change.after) if state]
    if re.search(_INSIDE_GIT, path):
        return "inside-git"
    if means_git(path) or (
        re.search(_REFUSED_LINK, path) and any(state.kind == "symlink" for state in states)
    ):
        return "refused-name"
    if b" /" in path:  # where only the first line of a diff has the name, its end is not found
        return "refused-name"
    if len(path) > _LONGEST:
        return "long-path"
    for state in states:
        if state.kind in ("fifo", "socket", "device"):
            return "special-file"
        if state.kind != "dir" and (not state.is_kept or state.size > LARGEST):
            return "too-large" if state.is_kept or state.digest else "unreadable"
    before, after = change.before, change.after
    if not (is_leaf(before) or is_leaf(after)):
        return "mode-bits" if before and after else "folder"
    if before and after and before.holds_as(after) and git_mode(before) == git_mode(after):
        return "mode-bits"
    return None


def _find_obstacles(
    changes: Sequence[Change], paths: Sequence[bytes], found: list[Reason | None]
) -> None:
    """Where something was that the patch cannot remove, it cannot put something else; and a
    folder comes with the files in it, and goes with the last of them."""
    staying: set[bytes] = set()
    kept: set[bytes] = set()
    emptied: set[bytes] = set()
    for change, path, reason in zip(changes, paths, found, strict=True):
        if is_leaf(change.before):
            (kept if reason else emptied).update(_above(path))
            # `git apply` looks through a link that it is about to remove, and gives up on all of
            # the patch where that link leads to itself.
            if reason or (change.before and change.before.goes_round):
                staying.add(path)
    for change, path in zip(changes, paths, strict=True):
        if change.before and not is_leaf(change.before) and path not in emptied:
            kept.update(_above(path))  # an empty folder
    filled: set[bytes] = set()
    for index, (change, path) in enumerate(zip(changes, paths, strict=True)):
        if found[index] is None and is_leaf(change.after):
            if path in kept or not staying.isdisjoint(_above(path)):
                found[index] = "in-the-way"
            else:
                filled.update(_above(path))
    for index, (change, path) in enumerate(zip(changes, paths, strict=True)):
        if found[index] == "folder" and (
            path in filled if change.after else path in emptied and path not in kept
        ):
            found[index] = None


def _find_clashes(
    changes: Sequence[Change], paths: Sequence[bytes], found: list[Reason | None]
) -> None:
    """Redaction can make one name of two, or a name that is none."""
    if all(change.path == path for change, path in zip(changes, paths, strict=True)):
        return
    taken: set[bytes] = set()
    above: set[bytes] = set()
    for index, path in enumerate(paths):
        if found[index] is not None:
            continue
        folders = set(_above(path))
        parts = path.split(b"/")
        if path in taken | above or folders & taken or {b"", b".", b".."} & set(parts):
            found[index] = "redacted"
        else:
            taken.add(path)
            above |= folders


def _above(path: bytes) -> Iterator[bytes]:
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)
