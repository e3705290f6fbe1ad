"""`diff` of real runs that reach files by the number of a folder that they have open.

Claude Code does so. strace prints such a name as it was given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Place
from tests.feeds import FEEDS

WORK = """
import os, sys
outside, first, scrambled, uuid, day = sys.argv[1:]
def behind(folder, name):
    return f'/proc/self/fd/{folder}/{name}'
spare = [os.open('/', os.O_RDONLY) for _ in range(int(first))]
top = os.open(outside, os.O_RDONLY)
os.mkdir(behind(top, uuid))
session = os.open(f'{outside}/{uuid}', os.O_RDONLY)
with open(f'{outside}/{uuid}/b{scrambled}.output', 'x'):
    pass
os.unlink(behind(session, f'b{scrambled}.output'))
here = os.open('.', os.O_RDONLY)
open('report', 'w').close()
os.rename(behind(here, 'report'), behind(here, f'report-{day}.md'))
"""
ONE = ("1", "akdv8sdu", "c9cf8bd6-1982-497c-a93b-ddea69ae9a93", "2026-11-19T13-35")
OTHER = ("4", "bjukxpjm", "93133abb-6d2a-491d-8eeb-3e8175452297", "2026-11-19T14-40")


@pytest.mark.parametrize("feed", FEEDS)
def test_a_folder_that_is_open_has_another_number_in_each_run(place: Place, feed: str) -> None:
    outside = place.root / "outside"
    outside.mkdir()

    def record_run(name: str, words: tuple[str, ...]) -> Path:
        options = ("--kernel", feed, "--workspace", "empty", "--run-id", name)
        command = (sys.executable, "-IS", "-c", WORK, str(outside), *words)
        done = place.stream("observe", "-q", *options, "--", *command)
        assert done.code == 0, done.err
        return place.workspace / "runs" / name

    (record,) = place.stream("diff", record_run("one", ONE), record_run("other", OTHER)).records
    found: dict[str, Any] = record["surface"]["filesystem_paths"]
    whole = found["added"] + found["removed"]
    assert [path.rpartition("/")[2] for path in whole] == [
        "report-2026-11-19T14-40.md",  # in the workspace, a name is the user's
        "report-2026-11-19T13-35.md",
    ]
    assert {f"{outside}/(uuid)", f"{outside}/(uuid)/(random).output"} <= {*found["unchanged"]}
