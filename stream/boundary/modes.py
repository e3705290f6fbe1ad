"""Modes: the declared ways to run a probe inside something, as files of catalogs/modes.

A file is TOML. Its words may contain `{workspace}`, `{home}`, `{outside}`, `{tmp}`, `{state}`,
`{kit}` and `{helpers}`, which stand for the places of a cell; the word `{probe}` alone stands for
the words that run the probe.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from stream.boundary.policies import promises_in
from stream.boundary.settings_files import read_settings
from stream.codec import BUNDLE
from stream.errors import InputError, UsageError
from stream.process.users import User
from stream.records.control import MODE_NAME
from stream.records.mode_files import ModeDocument, settings_of
from stream.records.modes import BASELINE, Sandbox
from stream.records.policies import PolicyPromise

FOLDER = BUNDLE / "catalogs" / "modes"
PLACES = ("workspace", "home", "outside", "tmp", "state", "kit", "helpers")
PROBE = "{probe}"
_PLACE = re.compile(r"\{([^{}]*)\}")


class Mode(Struct, frozen=True):
    """A mode that was loaded."""

    name: str
    path: Path
    document: ModeDocument
    promises: tuple[PolicyPromise, ...]

    @property
    def missing(self) -> list[str]:
        """Return the programs that it needs and that are not on PATH."""
        return [name for name in self.document.needs if shutil.which(name) is None]

    @property
    def reason_unavailable(self) -> str | None:
        """Return why it cannot be run here, with what to do; None if it can."""
        platforms = self.document.platforms
        if platforms and sys.platform not in platforms:
            return f"it is for {', '.join(platforms)}"
        if self.missing:
            install = f"; install: {self.document.install}" if self.document.install else ""
            return f"{', '.join(self.missing)} missing{install}"
        return None

    def sandbox(self, version: str | None) -> Sandbox:
        """Return the sandbox as a record names it."""
        name = self.document.sandbox
        if name is None:
            return Sandbox(None, None, None)
        settings = msgspec.json.encode(settings_of(self.document), order="sorted")
        return Sandbox(name, sha256(settings).hexdigest(), version)

    def command(
        self, probe: Sequence[str], places: Mapping[str, str], *, is_root: bool
    ) -> list[str]:
        """Return the command line that runs a probe in this mode."""
        document = self.document
        words = document.command
        if not is_root and document.as_user is not None:
            words = document.as_user
        line: list[str] = []
        for word in words:
            line += probe if word == PROBE else [_fill_places(word, places)]
        return line

    def environment(self, places: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that it adds to the environment of a probe."""
        return {name: _fill_places(value, places) for name, value in self.document.env.items()}

    def settings_files(self, places: Mapping[str, str]) -> dict[str, str]:
        """Return the contents of its settings files by path."""
        return {
            _fill_places(path, places): _fill_places(text, places, strict=False)
            for path, text in self.document.files.items()
        }


class MeasuredModes(Struct, frozen=True):
    """The modes that probes run in, measured from outside, and the user that they run as."""

    modes: tuple[Mode, ...]  #: the baseline first
    user: User
    unavailable: tuple[tuple[str, str], ...]  #: names of others, and why they cannot be run here


def measured_modes(names: Sequence[str], user: User) -> MeasuredModes:
    """Choose the modes of these names that can be run here. Raise StreamError."""
    chosen = choose_modes(names)
    reasons = [(mode.name, mode.reason_unavailable) for mode in chosen]
    return MeasuredModes(
        tuple(mode for mode in chosen if mode.reason_unavailable is None),
        user,
        tuple((name, reason) for name, reason in reasons if reason is not None),
    )


def _fill_places(text: str, places: Mapping[str, str], *, strict: bool = True) -> str:
    """Put the places of a cell into a text. Other braces stay, as those of a JSON file."""
    return _PLACE.sub(
        lambda found: places[found[1]] if strict or found[1] in places else found[0], text
    )


def load_mode(path: Path) -> Mode:
    """Read a mode from its file. Raise InputError with file and line."""
    file = read_settings(str(path))
    name = path.stem
    if re.match(MODE_NAME, name) is None:
        raise InputError(f"{path}: a mode's name has lower-case letters, digits, `.`, `_` and `-`")
    promises = promises_in(file)
    try:
        document = msgspec.convert(file.value, ModeDocument)
    except msgspec.ValidationError as error:
        keys = re.findall(r"[`$.](\w+)", str(error).partition(" - at ")[2] or str(error))
        raise InputError(f"{path}:{file.line(*keys)}: {error}") from None
    for key, fault in _mode_faults(document):
        raise InputError(f"{path}:{file.line(key)}: {fault}")
    return Mode(name, path, document, promises)


def _mode_faults(document: ModeDocument) -> Iterable[tuple[str, str]]:
    """Find what the types of a mode's file cannot say: (the key, the fault)."""
    for key, words in (("command", document.command), ("as_user", document.as_user)):
        if words is not None and words.count(PROBE) != 1:
            yield key, f"$.{key}: expected the word {PROBE} once, it stands for the probe"
    texts: list[tuple[str, str]] = [("command", word) for word in document.command]
    texts += [("as_user", word) for word in document.as_user or ()]
    texts += [("env", value) for value in document.env.values()]
    texts += [("files", path) for path in document.files]
    for key, text in texts:
        for place in _PLACE.findall(text if text != PROBE else ""):
            if place not in PLACES:
                yield key, f"$.{key}: unknown place {{{place}}} (expected {', '.join(PLACES)})"
    for path in document.files:
        if not path.startswith("{"):
            yield "files", f"$.files: {path}: expected a path that begins with a place"
    if document.needs and not document.install:
        yield "needs", "$.install: missing: say how what it needs is installed"


def find_modes(folder: Path = FOLDER) -> list[Mode]:
    """Read all modes of a folder, sorted by name, the baseline first."""
    modes = [load_mode(path) for path in sorted(folder.glob("*.toml"))]
    return sorted(modes, key=lambda mode: (mode.name != BASELINE, mode.name))


def choose_modes(names: Sequence[str]) -> list[Mode]:
    """Return the modes of these names, or of these paths of files, and the baseline before them.
    Raise StreamError for one that does not exist."""
    chosen = {BASELINE: load_mode(FOLDER / f"{BASELINE}.toml")}
    for name in names:
        is_path = "/" in name or name.endswith(".toml")
        path = Path(name) if is_path else FOLDER / f"{name}.toml"
        if not is_path and not path.is_file():
            known = [one.stem for one in FOLDER.glob("*.toml")]
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "see `stream modes`"
            raise UsageError(f"unknown mode: {name} ({hint})")
        mode = load_mode(path)
        known_mode = chosen.setdefault(mode.name, mode)
        if known_mode.path.resolve() != mode.path.resolve():
            raise UsageError(f"{path}: there is another mode of that name: {known_mode.path}")
    return list(chosen.values())


def first_version_line(output: bytes) -> str | None:
    """Return the first line that a program printed about its version."""
    for line in output.decode(errors="replace").splitlines():
        if text := " ".join(line.split()):
            return text[:100]
    return None
