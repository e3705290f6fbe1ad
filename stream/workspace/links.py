"""Where a link of a snapshot leads, as far as the snapshot can tell."""

from __future__ import annotations

import stat

from stream.workspace.snapshot import Folder, Snapshot
from stream.workspace.store import Store

_MOST = 40  #: links on one way; then a system gives up


def goes_round(snapshot: Snapshot, store: Store, path: bytes) -> bool:
    """Whether nothing can be looked up through it. Not known, and not said, of a way that leads
    out of the snapshot."""
    todo = path.split(b"/")[::-1]
    way: list[Folder] = [snapshot.root]
    passed = 0
    while todo:
        name = todo.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            way.pop()
            if not way:
                return False
            continue
        inner = way[-1].folders.get(name)
        if inner:
            way.append(inner)
            continue
        record = way[-1].records().get(name)
        if not record or not stat.S_ISLNK(record.mode) or record.place < 0:
            return False
        passed += 1
        if passed > _MOST:
            return True
        target = b"".join(store.read(record.place, record.size))
        if target.startswith(b"/"):
            return False
        todo.extend(target.split(b"/")[::-1])
    return False
