"""Mechanical verdicts about a run, each with its evidence. Recorded, never enforced.

The rules are written in schema/README.md. Unknown stays unknown: what is missing makes no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from stream.declared import Declared
from stream.evaluation.checks import (
    Changes,
    Commands,
    Declaration,
    Verdict,
    agent_not_refused,
    no_ci_changes,
    no_emojis,
    output_json_only,
    tests_required,
)
from stream.evaluation.evidence import NO_RULE, NOT_ASKED, cut
from stream.evaluation.paths import is_ci, is_code, is_test
from stream.records.decision import (
    CONSTRAINTS,
    Alignment,
    CaptureMode,
    Check,
    Checked,
    Constraint,
    ConstraintType,
    Evaluation,
    Status,
    Violation,
)

JSON_ONLY = "output.json_only"
NO_EMOJIS = "style.no_emojis"
NO_CI_CHANGES = "scope.no_ci_changes"
TESTS_REQUIRED = "quality.tests_required"
NOT_REFUSED = "agent.not_refused"

_WORST: tuple[Status, ...] = ("fail", "warn", "unknown", "pass")
#: where a constraint counts that is none of ours, by its type
_GROUPS: dict[ConstraintType, str] = {
    **dict.fromkeys(("style", "safety", "scope"), "policy"),
    **dict.fromkeys(("format", "other"), "alignment"),
    "quality": "quality",
}
_NAMED = 5  #: paths that evidence can have room for


class ChangedPath(Struct, frozen=True):
    path: str
    what: Literal["added", "removed", "changed"]


class Diff(Struct):
    changes: Iterable[ChangedPath]
    patch: Path
    sha256: str
    is_complete: bool  #: all changes are among the changes, and all added lines in the patch


class Command(Struct, frozen=True):
    name: str
    category: str  #: `test` for a run of tests
    time: str
    is_vouched: bool = True  #: else anybody may have written it down


def evaluate(
    constraints: Collection[Constraint],
    diff: Diff,
    commands: Iterable[Command] | None,
    declared: Declared | None,
    capture_mode: CaptureMode,
    *,
    no_commands: str = "unknown",
    unwrapped_tests: Sequence[str] = (),
) -> Evaluation:
    """`no_commands` says why there are none; `declared` is None where the output is not kept.
    `unwrapped_tests`: programs that ran tests, and that no wrapper told of."""
    asked = {constraint.id for constraint in constraints}
    changes = _changes(diff)
    log = _commands(commands, no_commands)
    log.unwrapped_tests = unwrapped_tests
    declaration = Declaration(declared, may_quote=capture_mode != "hashed")

    def check(name: str, verdict: Callable[[], Verdict]) -> Check:
        return Check(name, *(verdict() if name in asked else ("unknown", NOT_ASKED)))

    json_only = check(JSON_ONLY, lambda: output_json_only(declaration))
    tests = check(TESTS_REQUIRED, lambda: tests_required(changes, log))
    policy = [
        check(NO_CI_CHANGES, lambda: no_ci_changes(changes)),
        check(NO_EMOJIS, lambda: no_emojis(declaration, changes)),
    ]
    refused = Check(NOT_REFUSED, *agent_not_refused(declaration))
    counted = [refused] if refused.status == "warn" else []
    others = {kind: _unchecked(constraints, kind) for kind in ("alignment", "quality", "policy")}
    alignment, quality = [json_only, *others["alignment"]], [tests, *others["quality"]]
    policy += others["policy"]
    return Evaluation(
        Alignment(_overall(alignment, asked), None, _violations(json_only), alignment),
        Checked(_overall(quality, asked), quality),
        Checked(_overall([*policy, *counted], {*asked, NOT_REFUSED}), [*policy, refused]),
    )


def _unchecked(constraints: Collection[Constraint], group: str) -> list[Check]:
    """Those that no rule here can check: they stay unknown."""
    return [
        Check(constraint.id, "unknown", NO_RULE)
        for constraint in constraints
        if constraint.id not in CONSTRAINTS and _GROUPS[constraint.type] == group
    ]


def _overall(checks: list[Check], asked: Collection[str]) -> Status:
    found = [check.status for check in checks if check.id in asked]
    return next((status for status in _WORST if status in found), "unknown")


def _violations(check: Check) -> list[Violation]:
    if check.status != "fail":
        return []
    return [Violation(check.id, "fail", "The answer is not JSON alone.", check.evidence)]


def _changes(diff: Diff) -> Changes:
    found = Changes(
        patch=diff.patch, sha256=diff.sha256, is_complete=diff.is_complete,
        count=0, ci=[], ci_count=0, code=[], code_count=0, tests=[], test_count=0,
    )  # fmt: skip
    for change in diff.changes:
        found.count += 1
        if is_ci(change.path):
            found.ci_count += 1
            found.ci += [change.path][: _NAMED - len(found.ci)]
        if is_test(change.path):
            if change.what != "removed":
                found.test_count += 1
                found.tests += [change.path][: _NAMED - len(found.tests)]
        elif is_code(change.path):
            found.code_count += 1
            found.code += [change.path][: _NAMED - len(found.code)]
    return found


def _commands(commands: Iterable[Command] | None, why_none: str) -> Commands:
    if commands is None:
        return Commands(count=None, why_none=cut(why_none, 60))
    count, unvouched, first = 0, 0, ""
    for command in commands:
        if command.category == "test" and not command.is_vouched:
            unvouched += 1
            continue
        count += 1
        if command.category == "test" and not first:
            first = f"{cut(command.name, 30)} at {cut(command.time, 30)}"
    none = f"{unvouched} that nobody vouches for" if unvouched else "none were called"
    return Commands(count=count, unvouched_tests=unvouched, first_test=first, why_none=none)
