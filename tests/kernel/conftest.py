"""Programs that are watched, made once; and at the end of each test: is anything left behind?"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import place, shared
from tests.cli.test_user import open_place, run

__all__ = ["open_place", "place", "run", "shared"]
HERE = Path(__file__).parent


def compiled(source: str, folder: Path, *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = folder / Path(source).stem
    subprocess.run(
        [compiler, "-O1", "-w", "-o", str(target), str(HERE / source), *flags, "-pthread"],
        check=True,
    )
    return target


@pytest.fixture(scope="session")
def sequence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Work in a fixed order, for an ordinary user as well."""
    folder = tmp_path_factory.mktemp("programs")
    for place in (folder, *folder.parents[:2]):
        place.chmod(0o755)
    return compiled("sequence.c", folder)
