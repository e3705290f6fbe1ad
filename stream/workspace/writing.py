"""Writes down the changes of a run: a patch that git can apply, and a listing of every path."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from stream.errors import OutputError, os_reason
from stream.files import create
from stream.records.change import FS_CHANGE, FileState, FsChange, Reason, encode_change, shown_name
from stream.workspace.changes import TICK, Change, Changes, State
from stream.workspace.fitness import git_mode, is_leaf, reasons
from stream.workspace.holes import CHUNK
from stream.workspace.patching import Shadow
from stream.workspace.snapshot import LARGEST
from stream.workspace.store import Cancelled, IsCancelled, Store, never

Redact = Callable[[bytes], bytes]


class Summary(Struct, kw_only=True):
    """Folders that come and go with the files in them are in the listing, and not counted."""

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
    patch_bytes: int
    patch_sha256: str


def write_patch(
    changes: Changes,
    store: Store,
    patch: Path,
    listing: Path,
    *,
    git: str,
    exited: int | None,
    redact: Redact | None = None,
    shown: int = 100,
    is_cancelled: IsCancelled = never,
) -> Summary:
    """`git`: from find_git. `exited`: wall-clock ns when the agent itself was last seen
    alive; None where nothing outlived it.

    Raises OutputError; then neither of the two files is there.
    """
    writer = _Writer(changes, store, redact, exited, is_cancelled)
    shadow = Shadow(git, patch, is_cancelled)
    try:
        try:
            with create(listing) as lines:
                for line in writer.lines(shadow):
                    lines.write(line)
        except OSError as error:
            raise OutputError(f"{listing}: {os_reason(error)}") from None
        try:
            shadow.write()
            size, digest = _measured(patch)
        except OSError as error:
            raise OutputError(f"{patch}: {os_reason(error)}") from None
    except BaseException:
        for path in (patch, listing):
            path.unlink(missing_ok=True)
        raise
    finally:
        shadow.close()
    return writer.summary(shown, size, digest)


class _Writer:
    def __init__(
        self,
        changes: Changes,
        store: Store,
        redact: Redact | None,
        exited: int | None,
        is_cancelled: IsCancelled,
    ) -> None:
        self._changes = changes
        self._store = store
        self._redact = redact
        self._exited = exited
        self._is_cancelled = is_cancelled
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._counted: list[bytes] = []
        self._paths = [redact(change.path) if redact else change.path for change in changes.items]

    def lines(self, shadow: Shadow) -> Iterator[bytes]:
        """The listing; what the patch is made of goes to the shadow meanwhile."""
        found = reasons(self._changes.items, self._paths)
        for change, path, reason in zip(self._changes.items, self._paths, found, strict=True):
            if self._is_cancelled():
                raise Cancelled
            record = self._record(change, path, reason, shadow)
            self._count(change, path, record)
            yield encode_change(record) + b"\n"

    def summary(self, shown: int, size: int, digest: str) -> Summary:
        return Summary(
            total=len(self._counted),
            added=self._counts["added"],
            removed=self._counts["removed"],
            changed=self._counts["changed"],
            in_patch=self._counts["in_patch"],
            inside_git=self._reasons["inside-git"],
            not_in_patch=dict(sorted(self._reasons.items())),
            paths=[shown_name(path)[0] for path in self._counted[:shown]],
            has_after_exit=self._counts["after_exit"] > 0,
            is_incomplete=bool(self._changes.unknown or self._reasons["unreadable"]),
            patch_bytes=size,
            patch_sha256=digest,
        )

    def _count(self, change: Change, path: bytes, record: FsChange) -> None:
        self._counts["after_exit"] += record.after_exit is True
        if record.not_in_patch:
            self._reasons[record.not_in_patch] += 1
        elif is_leaf(change.before) or is_leaf(change.after):
            self._counts["in_patch"] += 1
        else:
            return
        self._counts[record.change] += 1
        self._counted.append(path)

    def _record(
        self, change: Change, path: bytes, reason: Reason | None, shadow: Shadow
    ) -> FsChange:
        before, after = self._content(change.before), self._content(change.after)
        if before and after and before.is_as(after) and reason is None:
            reason = "redacted"
        for content in (before, after):
            if content:
                content.read(shadow if reason is None else None)
        if reason is None and (before or after):
            shadow.add(path, *(side.git_mode if side else None for side in (before, after)))
        text, base64 = shown_name(path)
        return FsChange(
            schema=FS_CHANGE,
            path=text,
            path_base64=base64,
            change=change.what,
            before=self._state(change.before, before),
            after=self._state(change.after, after),
            in_patch=reason is None,
            not_in_patch=reason,
            after_exit=self._is_after_exit(change.after),
        )

    def _is_after_exit(self, after: State | None) -> bool | None:
        if self._exited is None:
            return False
        if after is None or self._exited - TICK < after.ctime <= self._exited:
            return None
        return after.ctime > self._exited

    def _content(self, state: State | None) -> _Content | None:
        if not state or not state.is_kept or not is_leaf(state):
            return None
        if self._redact and state.size > LARGEST:
            return None
        if not self._redact:
            return _Content(git_mode(state), state.size, self._store.read(state.place, state.size))
        data = self._redact(b"".join(self._store.read(state.place, state.size)))
        return _Content(git_mode(state), len(data), [data], data)

    def _state(self, state: State | None, content: _Content | None) -> FileState | None:
        if not state:
            return None
        shown = FileState(
            kind=state.kind, mode=f"{stat.S_IMODE(state.mode):04o}", bytes=None, sha256=None
        )
        if content:
            shown.bytes, shown.sha256 = content.size, content.sha256
            if state.kind == "symlink":
                shown.target, shown.target_base64 = shown_name(content.begin)
        elif state.kind == "file" and not self._redact:
            shown.bytes = state.size
            shown.sha256 = state.digest.hex() if state.digest else None
        return shown


class _Content:
    """What a state holds, as it is written down; `data` where it is not what the store has."""

    def __init__(
        self, mode: str, size: int, chunks: Iterable[bytes], data: bytes | None = None
    ) -> None:
        self.git_mode = mode
        self.size = size
        self.sha256 = ""
        self.begin = b""
        self._chunks = chunks
        self._data = data

    def is_as(self, other: _Content) -> bool:
        """Whether a redaction has made them the same."""
        return (
            self._data is not None and self._data == other._data and self.git_mode == other.git_mode
        )

    def read(self, shadow: Shadow | None) -> None:
        """Once, for the digest and for the patch."""
        chunks = self._digested()
        if shadow:
            shadow.put(self.size, chunks)
        else:
            for _ in chunks:
                pass

    def _digested(self) -> Iterator[bytes]:
        from hashlib import sha256

        hashed = sha256()
        for chunk in self._chunks:
            self.begin = self.begin or chunk
            hashed.update(chunk)
            yield chunk
        self.sha256 = hashed.hexdigest()


def _measured(path: Path) -> tuple[int, str]:
    from hashlib import sha256

    hashed, size = sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            hashed.update(chunk)
            size += len(chunk)
    return size, hashed.hexdigest()
