"""Two runs of the same work are the same, wherever each of them lay and whatever it was called."""

from __future__ import annotations

import pytest

from tests.cli.command import Place
from tests.feeds import FEEDS

WORK = "echo x >made; cat made; ls .; rm made"


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("workspace", ["copy", "empty", "here"])
def test_two_runs_of_the_same_work(place: Place, feed: str, workspace: str) -> None:
    runs = [place.root / "runs" / name for name in ("a", "another_one")]
    for run in runs:
        words = ("--workspace", workspace, "--runs", run.parent, "--run-id", run.name)
        done = place.stream("observe", "--kernel", feed, *words, "--", "sh", "-c", WORK)
        assert done.code == 0, done.err
    done = place.stream("diff", "--canonical", *runs)
    assert done.code == 0, done.out.decode() + done.err
