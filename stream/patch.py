"""What git says of a patch, without anything that a user or a workspace has told git.

No configuration and no attributes but ours, no repository but an empty one of our own, no
hook, no filter: a workspace was written by whom the run is evidence of.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from stream.errors import StreamError, os_reason, visible

PATIENCE = 120.0  #: seconds
#: stands above every .gitattributes of the workspace: no byte is converted, no filter started
ATTRIBUTES = "* -text !eol !crlf !ident !filter !working-tree-encoding -whitespace\n"


class GitError(StreamError):
    """Git has said nothing."""


def parses(patch: Path) -> str:
    """Why git cannot read it; empty where it can. Raises GitError."""
    if not patch.stat().st_size:
        return ""
    return _ask(["--numstat", "-z", os.path.abspath(patch)], None)  # noqa: PTH100


def applies(patch: Path, workspace: Path) -> str:
    """Why it cannot be taken back from the workspace; empty where it can. Raises GitError."""
    if not patch.stat().st_size:
        return ""
    words = ["--check", "--reverse", "--whitespace=nowarn", os.path.abspath(patch)]  # noqa: PTH100
    return _ask(words, workspace)


def _ask(words: list[str], workspace: Path | None) -> str:
    import subprocess

    with tempfile.TemporaryDirectory(prefix="stream-check-") as scratch:
        own = _repository(Path(scratch))
        place = workspace or own
        try:
            done = subprocess.run(
                ["git", "apply", *words],
                cwd=place,
                env=_environment(own, place),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise GitError(f"git took more than {PATIENCE:g} seconds") from None
        except OSError as error:
            raise GitError(f"git cannot be started: {os_reason(error)}") from None
    if not done.returncode:
        return ""
    said = done.stderr.decode(errors="replace").strip().splitlines()
    first = next((line for line in said if line.startswith(("error:", "fatal:"))), "")
    return f"git says: {visible(first)[:240] or f'exit {done.returncode}'}"


def _repository(scratch: Path) -> Path:
    """As empty as one can be."""
    own = scratch / "git"
    for name in ("objects", "refs", "info"):
        (own / name).mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/none\n")
    (own / "info" / "attributes").write_text(ATTRIBUTES)
    return own


def _environment(own: Path, place: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": str(own),
        "XDG_CONFIG_HOME": str(own),
        "GIT_DIR": str(own),
        "GIT_WORK_TREE": str(place),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(place.parent),
        "GIT_TERMINAL_PROMPT": "0",
    }
