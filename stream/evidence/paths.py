"""Sets of paths, each with what is said of it, held by folder: what paths have in common is held
once. They come out in the order of whole paths, a piece at a time. Names lie there as UTF-8: that
takes less room than text, and who has bytes in hand can look them up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Generic, TypeAlias, TypeVar

from msgspec import Struct

KeyT = TypeVar("KeyT")
T = TypeVar("T")
Tell: TypeAlias = Callable[[tuple[KeyT, ...]], T]
Piece: TypeAlias = tuple[list[str], list[T]]  #: paths, and what is told of each
_PIECE = 1000  #: paths
_MOST_SHARED = 10_000
#: Folders stand without the slash behind them. None: names that are all of their path.
_Folders: TypeAlias = dict[str | None, set[bytes]]
_split = str.rpartition


class Paths(Generic[KeyT]):
    """By path, one or more of the keys under which it was added."""

    def __init__(self) -> None:
        self._named: dict[KeyT, _Folders] = {}
        self._lent: dict[KeyT, _Folders] = {}
        self._shared: dict[bytes, bytes] = {}  #: many folders have the same names in them

    def names(self, folder: str, key: KeyT) -> set[bytes]:
        """Some of one folder, given with a slash behind it: those that were added to this set,
        which nobody else adds to."""
        folders = self._lent.setdefault(key, {})
        return folders.setdefault(folder[:-1] if folder else None, set())

    def add(self, path: str, key: KeyT) -> None:
        self.add_all((path,), key)

    def add_all(self, paths: Iterable[str], key: KeyT) -> None:
        folders = self._named.setdefault(key, {})
        if len(self._shared) > _MOST_SHARED:
            self._shared.clear()
        share = self._shared.setdefault
        folder: str | None
        for folder, slash, name in map(_split, paths, repeat("/")):
            if not slash:
                folder = None
            encoded = name.encode()
            try:
                folders[folder].add(share(encoded, encoded))
            except KeyError:
                folders[folder] = {encoded}

    def remove(self, text: str, is_out: Callable[[KeyT], bool]) -> None:
        """Every path that has the text in it, which begins with the one slash that it has, under
        the keys that are out."""
        start = text[1:].encode()
        for key, folders in self._all():
            for folder, names in folders.items() if is_out(key) else ():
                if folder is None:
                    continue
                if text in f"{folder}/":
                    names.clear()
                else:
                    names -= {name for name in names if name.startswith(start)}

    def pieces(self, tell: Tell[KeyT, T]) -> Iterator[Piece[T]]:
        """Sorted by code points, which is the order of UTF-8 bytes. `tell`: of the keys of a
        path, whatever is wanted."""
        open_folders: list[_Folder[KeyT]] = []
        for prefix, named in sorted(self._folders().items()):
            # What begins as a folder does stands behind it, among the names that are in it.
            while open_folders and not prefix.startswith(open_folders[-1].prefix):
                yield from open_folders.pop().rest(tell)
            if open_folders:
                yield from open_folders[-1].before(prefix, tell)
            every = sorted(set().union(*(names for _, names in named)))
            open_folders.append(_Folder(prefix, named, every))
        while open_folders:
            yield from open_folders.pop().rest(tell)

    def folders_with(self, name: str) -> Iterator[str]:
        """Those that the name is in."""
        encoded = name.encode()
        for _, folders in self._all():
            yield from (folder for folder, names in folders.items() if folder and encoded in names)

    def __iter__(self) -> Iterator[str]:
        for paths, _ in self.pieces(len):
            yield from paths

    def _folders(self) -> dict[str, list[tuple[KeyT, set[bytes]]]]:
        """By what stands before a name."""
        found: dict[str, list[tuple[KeyT, set[bytes]]]] = {}
        for key, folders in self._all():
            for folder, names in folders.items():
                prefix = "" if folder is None else f"{folder}/"
                found.setdefault(prefix, []).append((key, names))
        return found

    def _all(self) -> list[tuple[KeyT, _Folders]]:
        return [*self._named.items(), *self._lent.items()]


class _Folder(Struct, Generic[KeyT]):
    prefix: str
    named: list[tuple[KeyT, set[bytes]]]  #: a key may come twice
    names: list[bytes]  #: sorted
    at: int = 0  #: those before it were given

    def before(self, path: str, tell: Tell[KeyT, T]) -> Iterator[Piece[T]]:
        name = path[len(self.prefix) :].encode()
        return self._until(bisect_left(self.names, name, self.at), tell)

    def rest(self, tell: Tell[KeyT, T]) -> Iterator[Piece[T]]:
        return self._until(len(self.names), tell)

    def _until(self, end: int, tell: Tell[KeyT, T]) -> Iterator[Piece[T]]:
        while self.at < end:
            start, self.at = self.at, min(self.at + _PIECE, end)
            yield self._piece(self.names[start : self.at], tell)

    def _piece(self, names: list[bytes], tell: Tell[KeyT, T]) -> Piece[T]:
        prefix = self.prefix
        paths = [prefix + name.decode() for name in names]
        keys = {key for key, _ in self.named}
        if len(keys) == 1:
            return paths, [tell(tuple(keys))] * len(paths)
        return paths, [tell(tuple(self._keys(name))) for name in names]

    def _keys(self, name: bytes) -> dict[KeyT, None]:
        return dict.fromkeys([key for key, some in self.named if name in some])
