"""Every test of the command line ends in the same question: is anything left behind?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Place

_OURS = ("CATALOG_PATH", "BOUNDARY_PATH", "COLUMNS", "PWD", "STREAM_FRAME", "STREAM_EMIT_LOG")


def make_place(root: Path) -> Place:
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("FENCE_") and name not in _OURS
    }
    place = Place(root, {**env, "TMPDIR": str(root / "tmp")})
    place.workspace.mkdir()
    place.tmp.mkdir()
    return place


def check_place(place: Place) -> None:
    for process in place.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
            pytest.fail(f"{process.args!r} is still running")
    assert not place.find_left()
    assert not [
        text for text in place.error_texts if "Traceback" in text or "Exception ignored" in text
    ]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = make_place(tmp_path)
    yield place
    check_place(place)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """For one run that several tests look at."""
    place = make_place(tmp_path_factory.mktemp("shared"))
    yield place
    check_place(place)
