"""A rig for each module; at its end nothing of it may be left."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Place
from tests.cli.conftest import check_place
from tests.e2e.rig import KEY, REQUEST, Rig, bundled_claude, end_stub

SCENARIO = f"""# Add a function

## Request

{REQUEST}

## Constraints

- `style.no_emojis`
- `scope.no_ci_changes`
- `quality.tests_required`
"""


@pytest.fixture(scope="session")
def claude() -> Path:
    found = bundled_claude()
    if found is None:
        pytest.skip("needs claude-agent-sdk: pip install -e '.[e2e]'")
    return found


@pytest.fixture(scope="module")
def rig(claude: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    root = tmp_path_factory.mktemp("e2e")
    rig = Rig(Place(root, clean_environment(root, claude)), root / "add_function")
    for folder in (rig.place.workspace, rig.place.tmp, rig.scenario, root / "home"):
        folder.mkdir()
    (rig.scenario / "scenario.md").write_text(SCENARIO)
    yield rig
    for stub in rig.stubs:
        end_stub(stub)
    assert not find_living(root)
    check_place(rig.place)


def clean_environment(root: Path, claude: Path) -> dict[str, str]:
    path = (claude.parent, Path(sys.executable).parent, "/usr/bin", "/bin")
    return {
        "PATH": os.pathsep.join(map(str, path)),
        "HOME": str(root / "home"),
        "TMPDIR": str(root / "tmp"),
        "LANG": "C.UTF-8",
        "ANTHROPIC_API_KEY": KEY,
        "IS_SANDBOX": "1",  # what root needs to allow everything
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "CLAUDE_CODE_TMPDIR": str(root / "claude"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def find_living(root: Path) -> list[str]:
    """Whatever was started here has its home here, and most of it its folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            known = (process / "environ").read_bytes() + os.fsencode((process / "cwd").readlink())
        except OSError:
            continue
        if os.fsencode(root) in known and process.name != str(os.getpid()):
            found.append(f"{process.name}: {(process / 'cmdline').read_bytes()!r}")
    return found
