"""Which version of an agent a program is: as its files tell it, else as it answers itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stream.errors import InputError

PATIENCE = 5.0  #: seconds for an answer
_LEVELS = 6  #: of folders above a program, in which its package.json may lie
_LONGEST = 64
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?[0-9A-Za-z.+-]*")
#: ELF, and the forms of Mach-O
_NATIVE = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xfe\xed\xfa\xcf", b"\xca\xfe\xba\xbe")


def whole_version(text: object) -> str | None:
    """The text, where it is one version and nothing else."""
    is_one = isinstance(text, str) and len(text) <= _LONGEST and _VERSION.fullmatch(text)
    return is_one[0] if is_one else None


def read_version(program: Path, package: str) -> str | None:
    """What the files of a program say of its version; nothing is started.

    An installer names the program by its version, or puts a `.version` file beside it; npm has a
    package.json above it, pip the metadata of the package beside its `bin`.
    """
    place = Path(os.path.realpath(program))
    beside = place.with_name(f"{place.name}.version")
    if version := whole_version(place.name):
        return version
    try:
        if beside.is_file() and beside.stat().st_size < 1000:
            found = _VERSION.match(beside.read_text().strip())
            return found and whole_version(found[0])
    except (OSError, UnicodeDecodeError):
        return None
    told = {*_from_npm(place, package), *_from_pip(place, package)}
    return told.pop() if len(told) == 1 else None


def _from_npm(place: Path, package: str) -> Iterator[str]:
    from stream.document import read_document

    for folder in list(place.parents)[:_LEVELS]:
        file = folder / "package.json"
        try:
            document: Any = read_document(file) if file.is_file() else None
        except (InputError, OSError):
            continue
        if not isinstance(document, dict):
            continue
        name = document.get("name")
        # A program for one platform comes in a package of its own.
        is_its = isinstance(name, str) and (name == package or name.startswith(f"{package}-"))
        if is_its and (version := whole_version(document.get("version"))):
            yield version
            return


def _from_pip(place: Path, package: str) -> Iterator[str]:
    if place.parent.name != "bin":
        return
    name = package.replace("-", "_")
    for folder in place.parent.parent.glob(f"lib/python*/site-packages/{name}-*.dist-info"):
        if version := whole_version(folder.name.removesuffix(".dist-info").rpartition("-")[2]):
            yield version


async def ask_version(program: Path) -> str | None:
    """What a native program answers to `--version`, in an empty folder that is thrown away, with
    nothing of the user's environment but PATH. A script is never asked: it could take the
    question for an order."""
    if not _is_native(program):
        return None
    from tempfile import TemporaryDirectory  # most runs need not load them

    from stream.process import capture

    try:
        with TemporaryDirectory(prefix="stream-", ignore_cleanup_errors=True) as folder:
            env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "TMPDIR": folder}
            said = await capture(
                [str(program), "--version"],
                env=env,
                cwd=folder,
                timeout=PATIENCE,
                stdout_limit=4096,
                stderr_limit=0,
            )
    except OSError:
        return None
    found = _VERSION.search(said.stdout.head.decode(errors="replace"))
    return whole_version(found[0]) if said.exit_code == 0 and found else None


def _is_native(program: Path) -> bool:
    try:
        if not program.is_file():  # reading a fifo would wait
            return False
        with program.open("rb") as file:
            return file.read(4) in _NATIVE
    except OSError:
        return False
