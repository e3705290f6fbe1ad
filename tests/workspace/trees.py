"""Folders as values: made on disk, read back without the code under test, and generated."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st


class Node(NamedTuple):
    kind: str
    mode: int = 0o644
    data: bytes = b""  #: or the target of a link


Tree = dict[bytes, Node]


def text(data: bytes, mode: int = 0o644) -> Node:
    return Node("file", mode, data)


def link(target: bytes) -> Node:
    return Node("symlink", 0o777, target)


FOLDER = Node("dir", 0o755)


def close_tree(tree: Tree) -> Tree:
    """With every folder that a path needs; what would lie in a file is left out."""
    whole: Tree = {}
    for path in sorted(tree):
        above = [path[:i] for i, byte in enumerate(path) if byte == ord("/")]
        if all(whole.get(folder, FOLDER).kind == "dir" for folder in above):
            for folder in above:
                whole.setdefault(folder, FOLDER)
            whole[path] = tree[path]
    return whole


def path_at(root: Path, path: bytes) -> Path:
    return root / os.fsdecode(path)


def write_tree(root: Path, tree: Tree) -> None:
    """Makes the tree of the folder; what is right already is not touched."""
    root.mkdir(exist_ok=True)
    for path, node in sorted(read_tree(root).items()):
        if node.kind == "dir":
            path_at(root, path).chmod(node.mode | 0o700)
    for path, node in sorted(read_tree(root).items(), reverse=True):
        if tree.get(path, Node("")).kind != node.kind:
            place = path_at(root, path)
            (place.rmdir if node.kind == "dir" else place.unlink)()
    now = read_tree(root)
    for path, node in sorted(tree.items()):
        if now.get(path) != node:
            _write_node(path_at(root, path), node, is_new=path not in now)
    for path, node in sorted(tree.items(), reverse=True):
        if node.kind == "dir":
            path_at(root, path).chmod(node.mode)


def _write_node(place: Path, node: Node, *, is_new: bool) -> None:
    if node.kind == "symlink":
        place.unlink(missing_ok=True)
        place.symlink_to(os.fsdecode(node.data))
        return
    if node.kind == "file":
        if not is_new:
            place.chmod(0o600)
        place.write_bytes(node.data)
    elif node.kind == "dir":
        place.mkdir(exist_ok=True)
        return
    elif is_new:
        os.mkfifo(place)
    place.chmod(node.mode)


def read_tree(root: Path) -> Tree:
    tree: Tree = {}
    for folder, folders, files in os.walk(root):
        for place in (Path(folder, name) for name in folders + files):
            status = place.lstat()
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                node = link(os.readlink(os.fsencode(place)))  # noqa: PTH115 - a Path would tidy it
            elif stat.S_ISDIR(status.st_mode):
                node = Node("dir", mode)
            elif stat.S_ISREG(status.st_mode):
                node = Node("file", mode, place.read_bytes())
            else:
                node = Node("fifo", mode)
            tree[os.fsencode(place.relative_to(root))] = node
    return tree


def clean_environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {
        **kept,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CEILING_DIRECTORIES": str(home),
    }


def git(folder: Path, *words: str | Path, **more: str) -> bytes:
    done = subprocess.run(
        ["git", *map(str, words)],
        cwd=folder,
        env={**clean_environment(folder.parent), **more},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


# ---------------------------------------------------------------- generated

NAMES = st.sampled_from(
    [
        b"a",
        b"b",
        b"a.b",
        b"a b ",
        b"-x",
        b"new\nline",
        b'"quoted"',
        b"back\\slash",
        b"tab\there",
        b"\xff\xfe",
        "ü".encode(),
        b".gitignore",
        b".gitattributes",
        b"git~2",
        b"dev",
        b"null",
    ]
)
GIT_NAMES = st.sampled_from([b".git", b"GIT~1", b".Git ", b"x\\.git", b".gitmodules", b"gitmod~1"])
LINES = st.lists(
    st.sampled_from(
        [b"one\n", b"two\n", b"crlf\r\n", b"-- \n", b"+x\n", b" \n", b"\\ no\n", b"x" * 99]
    ),
    max_size=12,
).map(b"".join)
SPECIAL_CONTENTS = st.sampled_from(
    [b"", b"no newline", b"\0binary\0", bytes(range(256)), b"\r", b"\r\n", b"*\n", b"a\nb\n/c\n"]
)
ATTRIBUTES = st.sampled_from(
    [b"* text eol=crlf\n", b"* text=auto eol=lf\n", b"* -diff filter=x ident\n", b"* binary\n"]
)
CONTENTS = ATTRIBUTES | LINES | SPECIAL_CONTENTS | st.binary(max_size=40)
FILES = st.builds(text, CONTENTS, st.sampled_from([0o644, 0o755, 0o600, 0o444, 0o711]))
LINKS = st.builds(
    link, st.sampled_from([b"a", b"../b", b"/dev/null", b"\xff", b"no where\n", b"."])
)
FOLDERS = st.sampled_from([FOLDER, Node("dir", 0o700)])
NODES = st.one_of(FILES, FILES, LINKS, FOLDERS)


@st.composite
def changed_trees(draw: Any, names: Any = NAMES) -> tuple[Tree, Tree]:
    """(before, after), the second made of the first by what agents do."""
    paths = st.lists(names, min_size=1, max_size=3).map(b"/".join)
    before = close_tree(draw(st.dictionaries(paths, NODES, max_size=8)))
    after = dict(before)
    for _ in range(draw(st.integers(1, 5))):
        action = draw(st.sampled_from(["put", "put", "remove", "move", "mode", "edit", "swap"]))
        if action == "put" or not after:
            after[draw(paths)] = draw(NODES)
            continue
        path = draw(st.sampled_from(sorted(after)))
        node = after[path]
        if action in ("remove", "move"):
            below = [name for name in after if name == path or name.startswith(path + b"/")]
            taken = {name: after.pop(name) for name in below}
            if action == "move":
                new = draw(paths)
                after.update({new + name[len(path) :]: inner for name, inner in taken.items()})
        elif action == "swap":
            below = [name for name in after if name.startswith(path + b"/")]
            for name in below:
                del after[name]
            after[path] = draw(NODES)
            after[path + b"/" + draw(names)] = draw(NODES)
        elif action == "mode" and node.kind != "symlink":
            after[path] = node._replace(mode=draw(st.sampled_from([0o644, 0o755, 0o700, 0o750])))
        elif node.kind == "file":
            after[path] = node._replace(data=draw(CONTENTS) + node.data)
    return before, make_usable(close_tree(after))


def make_usable(tree: Tree) -> Tree:
    """Folders that an ordinary user may search."""
    return {
        path: node._replace(mode=node.mode | 0o700) if node.kind == "dir" else node
        for path, node in tree.items()
    }
