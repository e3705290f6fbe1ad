"""`diff` of two real runs whose names have random endings, as mkdtemp and mkstemp make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Place
from tests.feeds import FEEDS

WORK = """
import os, socket, sys
top, node, python, *others, word, free = sys.argv[1:]
for name in (f'foo-{node}', f'myapp{node}', f'one-{python}', f'strict-{word}'):
    os.mkdir(f'{top}/{name}', 0o700)
for name in (f'{top}/foo-{node}/a.txt', f'{top}/data-{python}.csv'):
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
for name in others:
    os.mkdir(f'{top}/{name}')
server = socket.socket()
server.bind(('127.0.0.1', 0))
server.listen()
port = server.getsockname()[1]
for name in (f'server-{port}.json', f'made-{free}.json'):
    open(f'{top}/{name}', 'w').close()
"""
ONE = ("fooBar", "abcdefgh", "report-monday", "plain-8AcE7p", "secret", "1")
OTHER = ("1cZPPg", "0ndcwz39", "report-friday", "plain-YPWnJl", "hidden", "2")


@pytest.mark.parametrize("feed", FEEDS)
def test_endings_of_what_only_its_owner_may_use(place: Place, feed: str) -> None:
    """A word stays a word, however it was made, and so does what anybody may use."""
    runs = []
    for number, words in enumerate((ONE, OTHER)):
        top = place.root / "made"
        top.mkdir()
        runs.append(record_run(place, feed, f"run-{number}", top, words))
        top.rename(place.root / f"made-{number}")
    done = place.stream("diff", *runs, "--json")
    found: dict[str, Any] = json.loads(done.out)
    paths = {
        what: {path.removeprefix(f"{place.root}/made/") for path in listed if "/made/" in path}
        for what, listed in found["surface"]["filesystem_paths"].items()
    }
    assert paths["removed"] == {"report-monday", "strict-secret", "plain-(random)", "made-1.json"}
    assert paths["added"] == {"report-friday", "strict-hidden", "plain-YPWnJl", "made-2.json"}
    assert paths["unchanged"] == {
        *("foo-(random)", "foo-(random)/a.txt", "myapp(random)", "one-(random)"),
        *("data-(random).csv", "server-(port).json"),
    }
    (note,) = (note for note in found["notes"] if note.startswith("capability_diff_names"))
    assert "base port=1 random=6, head port=1 random=5" in note


def record_run(place: Place, feed: str, name: str, top: Path, words: tuple[str, ...]) -> Path:
    options = ("--kernel", feed, "--workspace", "empty", "--run-id", name)
    done = place.stream("observe", *options, "--", "/usr/bin/python3", "-ISc", WORK, top, *words)
    assert done.code == 0, done.err
    return place.workspace / "runs" / name
