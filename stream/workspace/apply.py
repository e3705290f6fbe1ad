"""Take the changes of a finished run over to the folder that its workspace was copied from: all of
them or, where anything there is not as the run found it, none."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from stream.errors import InputError, OutputError, os_reason
from stream.files.inside import FILE, FOLDER, kind_of_entry, opened_folder
from stream.files.trees import end_file, fill_holes, list_folder, pieces_of, write_piece
from stream.records.run import CHANGES_FILE, FileState, FsChange, RunMetadata
from stream.workspace.listing import exact_path
from stream.workspace.patch import is_git_path

_TEMPORARY = b".stream-apply-"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PERMISSIONS = 0o777
_Made = dict[tuple[int, int], FsChange]  #: by device and inode in the workspace


class Conflict(Struct):
    """Names a path at which a change cannot be made, and why."""

    path: bytes
    reason: str


class ApplyPlan(Struct):
    """Holds the changes of a run that can be made, and those that cannot."""

    workspace: Path
    target: Path
    todo: list[FsChange]
    done: int  #: changes that the target has already
    inside_git: int  #: changes that are never taken over, by names that can mean .git
    conflicts: list[Conflict]


def plan_changes(
    run: Path, metadata: RunMetadata, changes: Iterable[FsChange], to: Path | None = None
) -> ApplyPlan | None:
    """Compare the changes of a run with the folder that they are for, and change nothing.

    Return None if the agent worked in the folder itself. Raise InputError for a run whose changes
    cannot be applied."""
    if metadata.workspace_mode == "here":
        return None
    target = to or (Path(metadata.source) if metadata.source else None)
    if target is None:
        raise InputError(f"{run}: its workspace was copied from nowhere: --to says where to")
    workspace = run / metadata.workspace
    if metadata.capture_mode != "full":
        raise InputError(
            f"{run}: was captured {metadata.capture_mode}, so that what it recorded cannot be"
            f" compared; what the agent left is in {workspace}"
        )
    listed = []
    for number, change in enumerate(changes, 1):
        if _leads_out_of_folder(path_of_change(change)):
            raise InputError(f"{run / CHANGES_FILE}:{number}: `$.path`: leads out of the workspace")
        listed.append(change)
    plan = ApplyPlan(workspace, target, [], 0, 0, [])
    with _opened_folders(plan) as (ours, theirs):
        _compare_with_target(listed, ours, theirs, plan)
    return plan


def apply_plan(plan: ApplyPlan) -> None:
    """Make the changes of a plan. Raise OutputError, which says how far it came."""
    order = sorted(plan.todo, key=path_of_change)
    made: _Made = {}
    steps: list[tuple[FsChange, Callable[[int, int, FsChange], None]]] = [
        *((change, _remove_entry) for change in reversed(order) if _is_entry_to_go(change)),
        *((change, partial(_make_entry, made)) for change in order if change.after),
        # Deepest first: what a folder will not allow has been done in it by then.
        *((change, _set_folder_mode) for change in reversed(order) if _is_folder(change.after)),
    ]
    with _opened_folders(plan) as (ours, theirs):
        for number, (change, step) in enumerate(steps):
            try:
                step(ours, theirs, change)
            except OSError as error:
                raise OutputError(
                    f"{plan.target / os.fsdecode(path_of_change(change))}: {os_reason(error)}; "
                    f"{number} of {len(steps)} steps were done"
                ) from None


def path_of_change(change: FsChange) -> bytes:
    """Return the exact path of a change."""
    return exact_path(change.path, change.path_base64)


# ---------------------------------------------------------------- comparing


def _leads_out_of_folder(path: bytes) -> bool:
    return b"\0" in path or not {b"", b".", b".."}.isdisjoint(path.split(b"/"))


def _compare_with_target(
    changes: Sequence[FsChange], ours: int, theirs: int, plan: ApplyPlan
) -> None:
    """Sort the changes of a run into those that the target has, can take, and conflicts with."""
    taken = [
        (change, path) for change in changes if not is_git_path(path := path_of_change(change))
    ]
    plan.inside_git = len(changes) - len(taken)
    going = {path for change, path in taken if _is_entry_to_go(change)}
    coming = {path for change, path in taken if _is_folder(change.after)}
    for change, path in taken:
        try:
            reason = _obstacle_to_change(change, path, ours, theirs)
            if reason is None and _is_folder(change.before) and path in going:
                reason = _find_foreign_entry(theirs, path, going)
            if reason is None and change.after and path.rpartition(b"/")[0] not in coming:
                with _opened_parent(theirs, path):
                    pass
        except OSError as error:
            reason = f"cannot be looked at: {os_reason(error)}"
        if reason == "":
            plan.done += 1
        elif reason:
            plan.conflicts.append(Conflict(path, reason))
        else:
            plan.todo.append(change)


def _obstacle_to_change(change: FsChange, path: bytes, ours: int, theirs: int) -> str | None:
    """Return what keeps a change from being made. None: nothing; empty: it is made already."""
    for state in (change.before, change.after):
        if state and state.kind in ("fifo", "socket", "device"):
            return f"is a {state.kind}"
        if state and state.kind == "file" and state.sha256 is None:
            return "could not be read in the run"
    if not _is_path_in_state(ours, path, change.after):
        return "is not in the workspace as the run left it"
    if _is_path_in_state(theirs, path, change.after):
        return ""
    if not _is_path_in_state(theirs, path, change.before):
        return "is not as it was when the run began"
    return None


def _find_foreign_entry(theirs: int, path: bytes, going: set[bytes]) -> str | None:
    """Say which entry, unknown to the run, a folder holds that is to be removed from the target."""
    with _opened_parent(theirs, path + b"/.") as (folder, _):
        inner, deeper = list_folder(folder)
    foreign = [name for name, _ in inner + deeper if path + b"/" + name not in going]
    if not foreign:
        return None
    return f"is to be removed, and holds {os.fsdecode(foreign[0])}"


def _is_path_in_state(root: int, path: bytes, state: FileState | None) -> bool:
    """Tell whether a path of the workspace or the target is as the run recorded it."""
    try:
        with _opened_parent(root, path) as (parent, name):
            return _is_entry_in_state(parent, name, state)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return state is None


def _is_entry_in_state(parent: int, name: bytes, state: FileState | None) -> bool:
    """Tell whether an entry of a folder has the kind, mode and content that the run recorded."""
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if state is None or kind_of_entry(status.st_mode) != state.kind:
        return False
    if state.kind == "symlink":
        assert isinstance(state.target, str)
        return os.readlink(name, dir_fd=parent) == exact_path(state.target, state.target_base64)
    if (status.st_mode ^ int(state.mode, 8)) & _PERMISSIONS:
        return False
    if state.kind == "dir":
        return True
    if status.st_size != state.bytes:
        return False
    fd = os.open(name, FILE, dir_fd=parent)
    try:
        return _digest_content(fd, None) == state.sha256
    finally:
        os.close(fd)


def _digest_content(fd: int, copy: int | None) -> str:
    """Return the digest of an open file's content, and copy it with its holes if asked to."""
    hashed = sha256()
    for piece in pieces_of(fd, os.fstat(fd)):
        if copy is not None:
            write_piece(copy, piece)
        for chunk in fill_holes((piece,)):
            hashed.update(chunk)
    if copy is not None:
        end_file(copy)
    return hashed.hexdigest()


def _is_folder(state: FileState | None) -> bool:
    return state is not None and state.kind == "dir"


def _is_entry_to_go(change: FsChange) -> bool:
    """Tell whether the old entry must be removed first. A file is replaced in one step."""
    if not change.before:
        return False
    return not change.after or (_is_folder(change.before) != _is_folder(change.after))


# ---------------------------------------------------------------- doing


def _remove_entry(_: int, theirs: int, change: FsChange) -> None:
    with _opened_parent(theirs, path_of_change(change), for_writing=True) as (parent, name):
        (os.rmdir if _is_folder(change.before) else os.unlink)(name, dir_fd=parent)


def _make_entry(made: _Made, ours: int, theirs: int, change: FsChange) -> None:
    """Make the file, link or folder of a change in the target, in one step."""
    path, after = path_of_change(change), change.after
    assert after
    with _opened_parent(theirs, path, for_writing=True) as (parent, name):
        if after.kind == "dir":
            if not _is_folder(change.before):
                os.mkdir(name, 0o700, dir_fd=parent)
            return
        temporary = _TEMPORARY + os.urandom(8).hex().encode()
        try:
            if after.kind == "symlink":
                assert isinstance(after.target, str)
                os.symlink(exact_path(after.target, after.target_base64), temporary, dir_fd=parent)
            elif not _link_entry(made, ours, theirs, change, parent, temporary):
                _copy_content(ours, path, parent, temporary, after)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise


def _link_entry(
    made: _Made, ours: int, theirs: int, change: FsChange, parent: int, temporary: bytes
) -> bool:
    """Give a file that was made before another name, where it has both in the workspace."""
    with _opened_parent(ours, path_of_change(change)) as (folder, name):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    first = made.setdefault((status.st_dev, status.st_ino), change)
    if first is change or first.after != change.after:
        return False
    try:
        with _opened_parent(theirs, path_of_change(first)) as (folder, name):
            os.link(name, temporary, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
    except OSError:  # it becomes a file of its own
        return False
    return True


def _copy_content(ours: int, path: bytes, parent: int, temporary: bytes, after: FileState) -> None:
    """Copy a file from the workspace to the target, where it is still as the run left it."""
    with _opened_parent(ours, path) as (folder, name):
        source = os.open(name, FILE, dir_fd=folder)
    try:
        fd = os.open(temporary, _NEW, 0o600, dir_fd=parent)
        try:
            if _digest_content(source, fd) != after.sha256:
                raise OSError(errno.EBUSY, "was changed in the workspace meanwhile")
            os.fchmod(fd, int(after.mode, 8) & _PERMISSIONS)
        finally:
            os.close(fd)
    finally:
        os.close(source)


def _set_folder_mode(_: int, theirs: int, change: FsChange) -> None:
    """Give a folder of the target the mode that it has after the run."""
    assert change.after
    with _opened_parent(theirs, path_of_change(change)) as (parent, name):
        fd = os.open(name, FOLDER, dir_fd=parent)
        try:
            os.fchmod(fd, int(change.after.mode, 8) & _PERMISSIONS)
        finally:
            os.close(fd)


@contextmanager
def _opened_folders(plan: ApplyPlan) -> Iterator[list[int]]:
    """Open the workspace and the target."""
    with ExitStack() as stack:
        folders = []
        for root in (plan.workspace, plan.target):
            try:
                folders.append(stack.enter_context(opened_folder(root)))
            except OSError as error:
                raise InputError(f"{root}: {os_reason(error)}") from None
        yield folders


@contextmanager
def _opened_parent(
    root: int, path: bytes, *, for_writing: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Open the folder that a path lies in: (folder, name in it). No link on the way is
    followed."""
    *folders, name = path.split(b"/")
    with opened_folder(root, folders) as fd:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        is_closed = for_writing and mode & 0o300 != 0o300
        if is_closed:  # as the agent must have done before us
            os.fchmod(fd, mode | 0o300)
        try:
            yield fd, name
        finally:
            if is_closed:
                os.fchmod(fd, mode)
