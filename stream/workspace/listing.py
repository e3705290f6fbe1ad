"""The changes of a run written down: the patch, and a listing of every path with the reason why git
cannot carry it, if it cannot."""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import UNSET, Struct, UnsetType, field

from stream.errors import OutputError, reporting
from stream.files.append import RecordedFile, create_private_file, recorded_file
from stream.records.run import FS_CHANGE, FileState, FsChange, Reason, encode_change
from stream.workspace.changes import TICK, Change, ChangeSet, State
from stream.workspace.patch import PatchMaker, is_git_path
from stream.workspace.snapshot import LARGEST, Store

_LONGEST = 4_000  #: bytes; git opens whole paths, and a system takes 4,096 at most
_INSIDE_GIT = rb"(?i)(?:^|/)\.git(?:/|\Z)"
_REFUSED_LINK = (
    rb"(?i)(?:^|[/\\])(?:\.gitmodules|gitmod~[0-9]+|(?:g(?:i(?:7(?:e(?:ba?)?)?)?)?)?~[0-9]+)"
    rb"[ .]*(?:[/\\:]|\Z)"
)

Redact = Callable[[bytes], bytes]


def reasons_not_in_patch(changes: Sequence[Change], paths: Sequence[bytes]) -> list[Reason | None]:
    """Return for each change why it is not in the patch; None where it is. `paths`: the names that
    the patch uses."""
    found = [_reason_of(change, path) for change, path in zip(changes, paths, strict=True)]
    _find_clashes(changes, paths, found)
    _find_obstacles(changes, paths, found)
    return found


def git_mode(state: State) -> str:
    """Return the mode that git gives a file or a link."""
    if state.kind == "symlink":
        return "120000"
    return "100755" if state.mode & stat.S_IXUSR else "100644"


def is_leaf(state: State | None) -> bool:
    """Tell whether there is something that is no folder."""
    return state is not None and state.kind != "dir"


def _reason_of(change: Change, path: bytes) -> Reason | None:
    """Return why a change cannot be in the patch, whatever the others are."""
    states = [state for state in (change.before, change.after) if state]
    if re.search(_INSIDE_GIT, path):
        return "inside-git"
    if is_git_path(path) or (
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
    if before and after and before.has_same_content(after) and git_mode(before) == git_mode(after):
        return "mode-bits"
    return None


def _find_obstacles(
    changes: Sequence[Change], paths: Sequence[bytes], found: list[Reason | None]
) -> None:
    """Find what is in the way of a change: where something was that the patch cannot remove, it
    cannot put something else; and a folder comes with the files in it, and goes with the last."""
    staying: set[bytes] = set()
    kept: set[bytes] = set()
    emptied: set[bytes] = set()
    for change, path, reason in zip(changes, paths, found, strict=True):
        if is_leaf(change.before):
            (kept if reason else emptied).update(_parent_folders(path))
            # `git apply` looks through a link that it is about to remove, and gives up on all of
            # the patch where that link leads to itself.
            if reason or (change.before and change.before.goes_round):
                staying.add(path)
    for change, path in zip(changes, paths, strict=True):
        if change.before and not is_leaf(change.before) and path not in emptied:
            kept.update(_parent_folders(path))  # an empty folder
    filled: set[bytes] = set()
    for index, (change, path) in enumerate(zip(changes, paths, strict=True)):
        if found[index] is None and is_leaf(change.after):
            if path in kept or not staying.isdisjoint(_parent_folders(path)):
                found[index] = "in-the-way"
            else:
                filled.update(_parent_folders(path))
    for index, (change, path) in enumerate(zip(changes, paths, strict=True)):
        if found[index] == "folder" and (
            path in filled if change.after else path in emptied and path not in kept
        ):
            found[index] = None


def _find_clashes(
    changes: Sequence[Change], paths: Sequence[bytes], found: list[Reason | None]
) -> None:
    """Find what cannot be in the patch by its redacted name: redaction can make one name of two,
    or a name that is none."""
    if all(change.path == path for change, path in zip(changes, paths, strict=True)):
        return
    taken: set[bytes] = set()
    above: set[bytes] = set()
    for index, path in enumerate(paths):
        if found[index] is not None:
            continue
        folders = set(_parent_folders(path))
        parts = path.split(b"/")
        if path in taken | above or folders & taken or {b"", b".", b".."} & set(parts):
            found[index] = "redacted"
        else:
            taken.add(path)
            above |= folders


def _parent_folders(path: bytes) -> Iterator[bytes]:
    """Yield the folders around a path of the workspace, the innermost first."""
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)


class Summary(Struct, kw_only=True):
    """The figures of what was written. Folders that come and go with the files in them are in the
    listing, and not counted."""

    total: int
    added: int
    removed: int
    changed: int
    in_patch: int
    inside_git: int
    not_in_patch: dict[str, int]  #: by reason
    paths: list[str]  #: the first of those that are counted
    has_after_exit: bool
    is_incomplete: bool  #: something could not be read
    patch: RecordedFile


def write_changes(
    changes: ChangeSet,
    store: Store,
    patch: Path,
    listing: Path,
    *,
    git: str,
    exited: int | None,
    redact: Redact | None = None,
    listed: int = 100,
) -> Summary:
    """Write the patch and the listing. Raise OutputError; then neither of them is there.

    `git`: from find_git. `exited`: wall-clock ns when the agent itself was last seen alive; None
    where nothing outlived it.
    """
    writer = _ListingWriter(changes, store, redact, exited)
    maker = PatchMaker(git, patch)
    try:
        with reporting(listing, OutputError), create_private_file(listing) as lines:
            lines.writelines(writer.listing_lines(maker))
        with reporting(patch, OutputError):
            maker.write_patch()
            written = recorded_file(patch)
    except BaseException:
        for path in (patch, listing):
            path.unlink(missing_ok=True)
        raise
    finally:
        maker.close()
    return writer.listing_summary(listed, written)


class _ListingWriter(Struct):
    """Writes the listing line by line, and keeps count."""

    changes: ChangeSet
    store: Store
    redact: Redact | None
    exited: int | None
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    counted: list[bytes] = field(default_factory=list)

    def listing_lines(self, maker: PatchMaker) -> Iterator[bytes]:
        """Yield the listing; what the patch is made of goes to its maker meanwhile."""
        changes = self.changes.items
        paths = [self.redact(one.path) if self.redact else one.path for one in changes]
        for change, path, reason in zip(
            changes, paths, reasons_not_in_patch(changes, paths), strict=True
        ):
            record = self._record_change(change, path, reason, maker)
            self._count_change(change, path, record)
            yield encode_change(record) + b"\n"

    def listing_summary(self, listed: int, patch: RecordedFile) -> Summary:
        """Return the figures of the listing, with the first changed paths."""
        return Summary(
            total=len(self.counted),
            added=self.counts["added"],
            removed=self.counts["removed"],
            changed=self.counts["changed"],
            in_patch=self.counts["in_patch"],
            inside_git=self.reasons["inside-git"],
            not_in_patch=dict(sorted(self.reasons.items())),
            paths=[text_of_path(path)[0] for path in self.counted[:listed]],
            has_after_exit=self.counts["after_exit"] > 0,
            is_incomplete=bool(self.changes.unknown or self.reasons["unreadable"]),
            patch=patch,
        )

    def _count_change(self, change: Change, path: bytes, record: FsChange) -> None:
        """Count a change of the workspace, by its kind and by why it is not in the patch."""
        self.counts["after_exit"] += record.after_exit is True
        if record.not_in_patch:
            self.reasons[record.not_in_patch] += 1
        elif is_leaf(change.before) or is_leaf(change.after):
            self.counts["in_patch"] += 1
        else:
            return
        self.counts[record.change] += 1
        self.counted.append(path)

    def _record_change(
        self, change: Change, path: bytes, reason: Reason | None, maker: PatchMaker
    ) -> FsChange:
        """Make the record of a changed path, and give its contents to the patch."""
        before, after = self._redacted_content(change.before), self._redacted_content(change.after)
        if before and after and before.has_same_content(after) and reason is None:
            reason = "redacted"
        for content in (before, after):
            if content:
                content.read_content(maker if reason is None else None)
        if reason is None and (before or after):
            maker.add_path(path, *(side.git_mode if side else None for side in (before, after)))
        text, base64 = text_of_path(path)
        return FsChange(
            schema=FS_CHANGE,
            path=text,
            path_base64=base64,
            change=change.what,
            before=self._describe_state(change.before, before),
            after=self._describe_state(change.after, after),
            in_patch=reason is None,
            not_in_patch=reason,
            after_exit=self._is_after_exit(change.after),
        )

    def _is_after_exit(self, after: State | None) -> bool | None:
        """Tell whether a path was changed after the agent's command had ended. None: unknown."""
        if self.exited is None:
            return False
        if after is None or self.exited - TICK < after.ctime <= self.exited:
            return None
        return after.ctime > self.exited

    def _redacted_content(self, state: State | None) -> _Content | None:
        """Return a content from the store as it may be shown: redacted, if asked to."""
        if not state or not state.is_kept or not is_leaf(state):
            return None
        if self.redact and state.size > LARGEST:
            return None
        if not self.redact:
            return _Content(
                git_mode(state), state.size, self.store.read_content(state.store_offset, state.size)
            )
        data = self.redact(b"".join(self.store.read_content(state.store_offset, state.size)))
        return _Content(git_mode(state), len(data), [data], data)

    def _describe_state(self, state: State | None, content: _Content | None) -> FileState | None:
        """Describe a path before or after the run for the listing."""
        if not state:
            return None
        described = FileState(
            kind=state.kind, mode=f"{stat.S_IMODE(state.mode):04o}", bytes=None, sha256=None
        )
        if content:
            described.bytes, described.sha256 = content.size, content.sha256
            if state.kind == "symlink":
                described.target, described.target_base64 = text_of_path(content.begin)
        elif state.kind == "file" and not self.redact:
            described.bytes = state.size
            described.sha256 = state.digest.hex() if state.digest else None
        return described


class _Content(Struct):
    """The content of a state as it is written down; `data` where it is not what the store has."""

    git_mode: str
    size: int
    chunks: Iterable[bytes]
    data: bytes | None = None
    sha256: str = ""
    begin: bytes = b""

    def has_same_content(self, other: _Content) -> bool:
        """Tell whether a redaction has made two contents the same."""
        mine, others = (self.data, self.git_mode), (other.data, other.git_mode)
        return self.data is not None and mine == others

    def read_content(self, maker: PatchMaker | None) -> None:
        """Read the content once, for the digest and for the patch."""
        chunks = self._digested_chunks()
        if maker:
            maker.put_content(self.size, chunks)
        else:
            for _ in chunks:
                pass

    def _digested_chunks(self) -> Iterator[bytes]:
        """Yield the content of a path in chunks, and note its digest and its beginning."""
        from hashlib import sha256

        hashed = sha256()
        for chunk in self.chunks:
            self.begin = self.begin or chunk
            hashed.update(chunk)
            yield chunk
        self.sha256 = hashed.hexdigest()


def text_of_path(name: bytes) -> tuple[str, str | UnsetType]:
    """Return a path as (text for people, its exact bytes in base64 where the text is not them)."""
    try:
        return name.decode(), UNSET
    except UnicodeDecodeError:
        from base64 import b64encode

        return name.decode(errors="replace"), b64encode(name).decode()


def exact_path(text: str, base64: str | UnsetType) -> bytes:
    """Return the bytes of a path in the listing. Raise ValueError where the base64 is none."""
    if base64 is UNSET:
        return text.encode()
    from base64 import b64decode

    return b64decode(base64, validate=True)
