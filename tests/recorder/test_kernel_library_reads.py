"""A program of an interpreter with a library and packages of its own: what it read that is its own
work is found without looking for it."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from tests.cli.command import Place
from tests.feeds import FEEDS
from tests.recorder.runs import observe
from tests.recorder.test_kernel import read_artifact

WORK = r"""
import json, locale, msgspec, ssl
ssl.create_default_context()
open('notes').read()
"""


@pytest.mark.parametrize("feed", FEEDS)
def test_what_an_interpreter_reads_for_itself_is_left_out(place: Place, feed: str) -> None:
    (place.workspace / "notes").write_text("x")
    run = observe(place, "--kernel", feed, "--", sys.executable, "-c", WORK)
    assert run.done.code == 0, run.done.err
    companion = read_artifact(run, "companion.json")
    assert f"{run.folder}/workspace/notes" in companion["paths"]
    own = (sysconfig.get_path("stdlib"), "/site-packages", "/etc/ssl/certs", "/ca-certificates/")
    assert [path for path in companion["paths"] if any(place in path for place in own)] == []
    assert companion["filtered"]["python_packages"] > 0
    library = Path(sysconfig.get_path("stdlib")).resolve()
    rule = "loader" if library.is_relative_to("/usr/lib") else "python_library"
    assert companion["filtered"][rule] > 10
