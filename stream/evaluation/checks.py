"""One function a rule: its status, and what that rests on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from stream.declared import Answer, Declared
from stream.evaluation.additions import additions
from stream.evaluation.emojis import TAIL, find_emoji
from stream.evaluation.evidence import COMMANDS, DECLARED, DIFF, evidence, excerpt, listed
from stream.records.decision import Status

Verdict = tuple[Status, str]


class Declaration(Struct):
    """What the agent said, and whether its words may be quoted."""

    declared: Declared | None  #: None: its output is not kept
    may_quote: bool

    @property
    def answer(self) -> Answer | None:
        return self.declared.answer if self.declared else None

    @property
    def missing(self) -> str:
        """Why there is no answer."""
        if self.declared is None:
            return "the output is not kept"
        if self.declared.mode == "unreadable":
            return f"unreadable: {self.declared.reason}"
        return "nothing was printed" if self.is_silent else "no final answer was declared"

    @property
    def is_silent(self) -> bool:
        return self.declared is not None and self.declared.mode == "empty"


class Changes(Struct, kw_only=True):
    """The diff, gone through once: the first paths of each kind, and how many there are."""

    patch: Path
    sha256: str
    is_complete: bool
    count: int
    ci: list[str]
    ci_count: int
    code: list[str]  #: and no test
    code_count: int
    tests: list[str]  #: added or changed
    test_count: int


class Commands(Struct, kw_only=True):
    """The command log, gone through once."""

    count: int | None  #: None: there is no log
    first_test: str = ""
    unvouched_tests: int = 0  #: runs of tests that are not counted: anybody may have told of them
    unwrapped_tests: Sequence[str] = ()  #: programs that a kernel feed saw run tests
    why_none: str = ""


# --- alignment ----------------------------------------------------------------------------------


def output_json_only(declaration: Declaration) -> Verdict:
    answer = declaration.answer
    if answer is None:
        return "unknown", evidence(DECLARED, declaration.missing)
    if answer.is_cut:
        text = f"an answer of {answer.bytes} bytes is too long to be judged"
        return "unknown", evidence(DECLARED, text, answer.sha256)
    try:
        value = msgspec.json.decode(answer.text.strip())
    except RecursionError:
        return "unknown", evidence(DECLARED, "nested too deeply to be judged", answer.sha256)
    except (msgspec.DecodeError, UnicodeEncodeError):
        value = None
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "an array"
        return "pass", evidence(DECLARED, f"{kind}, {answer.bytes} bytes", answer.sha256)
    text = "neither an object nor an array"
    if not declaration.may_quote:
        return "fail", evidence(DECLARED, text, answer.sha256)
    return "fail", evidence(DECLARED, f"{text}: {excerpt(answer.text)}")


# --- policy -------------------------------------------------------------------------------------


def no_ci_changes(changes: Changes) -> Verdict:
    if changes.ci:
        paths = listed(changes.ci, changes.ci_count, 100)
        return "fail", evidence(DIFF, paths, changes.sha256)
    if not changes.is_complete:
        return "unknown", evidence(DIFF, "not all changes can be seen", changes.sha256)
    text = f"none of {changes.count} changed paths"
    return "pass", evidence(DIFF, text, changes.sha256)


def no_emojis(declaration: Declaration, changes: Changes) -> Verdict:
    """One is a fail, whatever else is missing; a pass needs all of the answer and of the diff."""
    answer = declaration.answer
    if answer and (place := _emoji_in_answer(answer)):
        return "fail", evidence(DECLARED, place, answer.sha256)
    try:
        place, lines = _emoji_in_patch(changes.patch)
    except OSError:
        return "unknown", evidence(DIFF, "the added lines cannot be read", changes.sha256)
    if place:
        return "fail", evidence(DIFF, place, changes.sha256)
    if not changes.is_complete:
        return "unknown", evidence(DIFF, "not all added lines can be seen", changes.sha256)
    if answer is None and not declaration.is_silent:
        return "unknown", evidence(DECLARED, declaration.missing)
    if answer and answer.is_cut:
        return "unknown", evidence(DECLARED, "only the beginning can be judged", answer.sha256)
    said = f"{DECLARED}: none in {answer.bytes if answer else 0} bytes"
    return "pass", evidence(DIFF, f"none in {lines} added lines; {said}", changes.sha256)


def _emoji_in_answer(answer: Answer) -> str:
    found = find_emoji(answer.text)
    if not found:
        return ""
    before = answer.text[: found.place]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return f"{found.code_points} in line {line}, column {column} of the answer"


def _emoji_in_patch(patch: Path) -> tuple[str, int]:
    """The place of the first one, and how many lines are added up to it."""
    lines, tail = 0, ""
    for addition in additions(patch):
        found = find_emoji(tail + addition.text)
        if found:
            where = listed([addition.path], 1, 80)
            return f"{found.code_points} in line {addition.line} of {where}", lines + 1
        tail = (tail + addition.text)[-TAIL:] if addition.goes_on else ""
        lines += not addition.goes_on
    return "", lines


def agent_not_refused(declaration: Declaration) -> Verdict:
    declared = declaration.declared
    if declared is None or declared.denials is None:
        return "unknown", evidence(DECLARED, "it does not tell what was refused")
    if not declared.denials:
        return "pass", evidence(DECLARED, f"no refused call in {declared.results} results")
    tools = listed(declared.denied_tools, len(declared.denied_tools), 120)
    return "warn", evidence(DECLARED, f"{declared.denials} refused calls of {tools}")


# --- quality ------------------------------------------------------------------------------------


def tests_required(changes: Changes, commands: Commands) -> Verdict:
    if changes.tests:
        paths = listed(changes.tests, changes.test_count, 100)
        return "pass", evidence(DIFF, paths, changes.sha256)
    if not changes.is_complete:
        return "unknown", evidence(DIFF, "not all changes can be seen", changes.sha256)
    if not changes.code:
        what = f"no code among {changes.count} changed paths" if changes.count else "no change"
        return "unknown", evidence(DIFF, f"{what}: nothing to test", changes.sha256)
    code = f"{listed(changes.code, changes.code_count, 60)}, and no test"
    if commands.first_test:
        text = f"{code}; {COMMANDS}: {commands.first_test}"
        return "warn", evidence(DIFF, text)
    if commands.unwrapped_tests:
        names = listed(commands.unwrapped_tests, len(commands.unwrapped_tests), 60)
        return "warn", evidence(DIFF, f"{code}; the kernel feed saw, past the wrappers: {names}")
    told = commands.unvouched_tests
    beside = f", and {told} that nobody vouches for" if told else ""
    if commands.count is None:
        text = f"{code}; whether tests ran is not known: {commands.why_none}"
        return "warn", evidence(DIFF, text)
    if not commands.count:
        text = f"{code}; no commands observed: {commands.why_none}"
        return "warn", evidence(DIFF, text)
    text = f"{code}; {COMMANDS}: no run of tests among {commands.count} commands{beside}"
    return "fail", evidence(DIFF, text)
