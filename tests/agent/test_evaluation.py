"""Every sentence of the rules of evaluation, and that no evidence is longer than it may be."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.observe.agent_output import ANSWER, AgentAnswer, DeclaredOutput, read_declared
from stream.observe.constraints import (
    JSON_ONLY,
    LONGEST,
    NO_CI_CHANGES,
    NO_EMOJIS,
    NOT_ASKED,
    NOT_REFUSED,
    TESTS_REQUIRED,
    ChangedPath,
    Command,
    Diff,
    evaluate_constraints,
    find_emoji,
    is_ci_path,
    is_code_path,
    is_test_path,
)
from stream.records.decision import CONSTRAINTS, CaptureMode, Check, Evaluation, Status
from stream.workspace.patch import PIECE, added_lines

SHA = hashlib.sha256(b"the patch").hexdigest()
PYTEST = Command("pytest", "test", "2026-01-02T03:04:05Z")
LS = Command("ls", "other", "2026-01-02T03:04:05Z")


def make_answer(
    text: str, mode: Literal["text", "json"] = "text", is_cut: bool = False
) -> DeclaredOutput:
    data = text.encode("utf-8", "surrogatepass")
    answer = AgentAnswer(text, len(data), hashlib.sha256(data).hexdigest(), is_cut)
    return DeclaredOutput(mode=mode, answer=answer, results=1)


@pytest.fixture
def patch(tmp_path: Path) -> Path:
    path = tmp_path / "fs_diff.patch"
    path.write_bytes(b"")
    return path


def evaluate_answer(
    patch: Path,
    *,
    constraints: Iterable[str] = CONSTRAINTS,
    changes: Sequence[ChangedPath | str] = (),
    complete: bool = True,
    commands: Sequence[Command] | None = (),
    declared: DeclaredOutput | None = None,
    mode: CaptureMode = "full",
    why: str = "wrappers disabled",
) -> Evaluation:
    paths = [c if isinstance(c, ChangedPath) else ChangedPath(c, "changed") for c in changes]
    diff = Diff(iter(paths), patch, SHA, complete)
    log = None if commands is None else iter(commands)
    return evaluate_constraints(
        [CONSTRAINTS[name] for name in constraints], diff, log, declared, mode, no_commands=why
    )


def find_check(evaluation: Evaluation, name: str) -> Check:
    groups = (evaluation.alignment, evaluation.quality, evaluation.policy)
    (found,) = [check for group in groups for check in group.checks or () if check.id == name]
    return found


# --- output.json_only ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"a": 1}', "pass"),
        (' \n[1, "x"]\n\n', "pass"),
        ("{}", "pass"),
        ("1", "fail"),
        ('"text"', "fail"),
        ("null", "fail"),
        ("here: {}", "fail"),
        ("{} {}", "fail"),
        ("```json\n{}\n```", "fail"),
        ("[1, NaN]", "fail"),
        ("All tests pass.", "fail"),
        ("\ud800", "fail"),
        ("[" * 100_000 + "]" * 100_000, "unknown"),
    ],
)
@pytest.mark.parametrize("mode", ["text", "json"])
def test_json_only(patch: Path, text: str, status: Status, mode: Literal["text", "json"]) -> None:
    evaluation = evaluate_answer(patch, declared=make_answer(text, mode))
    assert find_check(evaluation, JSON_ONLY).status == status
    assert evaluation.alignment.status == status
    assert evaluation.alignment.score is None
    assert [v.severity for v in evaluation.alignment.violations] == ["fail"] * (status == "fail")


def test_json_only_cites_the_answer(patch: Path) -> None:
    (violation,) = evaluate_answer(
        patch, declared=make_answer("Well,\n\x1b[1mhere")
    ).alignment.violations
    assert violation.id == JSON_ONLY
    assert violation.evidence == (
        'claude_stdout.txt (declared): neither an object nor an array: "Well, \\x1b[1mhere"'
    )
    digest = hashlib.sha256(b"{}").hexdigest()
    assert find_check(evaluate_answer(patch, declared=make_answer("{}")), JSON_ONLY).evidence == (
        f"claude_stdout.txt (declared): an object, 2 bytes [sha256:{digest}]"
    )


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (None, "the output is not kept"),
        (DeclaredOutput(mode="empty"), "nothing was printed"),
        (
            DeclaredOutput(mode="unreadable", reason="permission denied"),
            "unreadable: permission denied",
        ),
        (DeclaredOutput(mode="stream-json"), "no final answer was declared"),
        (make_answer("{", is_cut=True), "too long to be judged"),
    ],
)
def test_json_only_is_unknown_without_a_whole_answer(
    patch: Path, declared: DeclaredOutput | None, reason: str
) -> None:
    found = find_check(evaluate_answer(patch, declared=declared), JSON_ONLY)
    assert found.status == "unknown"
    assert reason in found.evidence


@pytest.mark.parametrize("text", ["words of the agent", '{"words": "of the agent"}'])
def test_hashed_runs_cite_digests_only(patch: Path, text: str) -> None:
    found = find_check(evaluate_answer(patch, declared=make_answer(text), mode="hashed"), JSON_ONLY)
    assert "words" not in found.evidence
    assert f"[sha256:{hashlib.sha256(text.encode()).hexdigest()}]" in found.evidence


# --- style.no_emojis ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "😀",
        "⌚",
        "❤\ufe0f",
        "©\ufe0f",
        "🇩🇪",
        "1\ufe0f\u20e3",
        "#\u20e3",
        "👍🏽",
        "👩‍🚒",
        "🆕",
        "🏴",
        "✅",
    ],
)
def test_what_an_emoji_is(text: str) -> None:
    found = find_emoji(f"a {text} b")
    assert found is not None
    assert found.position == 2


@pytest.mark.parametrize(
    "text",
    ["0123456789#*", "© ® ™", "→ ← ↔ ⇒", "❤ ☺ ✔", "⌚\ufe0e", "🇩", "1\ufe0f", "é 漢 字 ∀", "• … —"],
)
def test_what_no_emoji_is(text: str) -> None:
    assert find_emoji(text) is None


def test_the_table_is_that_of_unicode_16_at_least() -> None:
    assert find_emoji("\U0001fae9") is not None


def test_an_emoji_of_the_answer_fails_with_its_place(patch: Path) -> None:
    found = find_check(evaluate_answer(patch, declared=make_answer("one\ntwo 🇩🇪")), NO_EMOJIS)
    assert found.status == "fail"
    where = "U+1F1E9 U+1F1EA in line 2, column 5 of the answer"
    assert found.evidence.startswith(f"claude_stdout.txt (declared): {where} [sha256:")


def _run_git_diff(folder: Path, before: dict[str, bytes], after: dict[str, bytes]) -> bytes:
    """What git makes of it."""
    for side, files in (("before", before), ("after", after)):
        (folder / side).mkdir()
        for name, data in files.items():
            (folder / side / name).write_bytes(data)
    command = ["git", "diff", "--no-index", "--src-prefix=a/", "--dst-prefix=b/"]
    done = subprocess.run(
        [*command, "--binary", "before", "after"], cwd=folder, capture_output=True, check=False
    )
    return done.stdout.replace(b"b/after/", b"b/").replace(b"a/before/", b"a/")


def test_an_added_emoji_fails_with_its_place(patch: Path, tmp_path: Path) -> None:
    before = {"a.py": b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"}
    after = {"a.py": "1\n2\n3\n4\n5\n6\n7\n8\nnine 😀\n".encode()}
    patch.write_bytes(_run_git_diff(tmp_path, before, after))
    found = find_check(evaluate_answer(patch, declared=make_answer("fine")), NO_EMOJIS)
    assert found.status == "fail"
    assert found.evidence == f"fs_diff.patch: U+1F600 in line 9 of a.py [sha256:{SHA}]"


def test_an_emoji_that_is_removed_or_stays_is_none(patch: Path, tmp_path: Path) -> None:
    before = {"a.py": "😀\nstays 😀\n".encode(), "😀.py": b"x\n"}
    patch.write_bytes(_run_git_diff(tmp_path, before, {"a.py": "stays 😀\n-- \n".encode()}))
    found = find_check(evaluate_answer(patch, declared=make_answer("fine")), NO_EMOJIS)
    assert found.status == "pass"
    assert "none in 1 added lines" in found.evidence
    assert "none in 4 bytes" in found.evidence
    assert found.evidence.endswith(f"[sha256:{SHA}]")


def test_an_emoji_fails_whatever_else_is_missing(patch: Path) -> None:
    found = find_check(
        evaluate_answer(patch, declared=make_answer("😀", is_cut=True), complete=False), NO_EMOJIS
    )
    assert found.status == "fail"
    patch.write_text("--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+😀\n")
    assert (
        find_check(evaluate_answer(patch, declared=None, complete=False), NO_EMOJIS).status
        == "fail"
    )


@pytest.mark.parametrize(
    ("declared", "complete", "status"),
    [
        (make_answer("fine"), True, "pass"),
        (DeclaredOutput(mode="empty"), True, "pass"),
        (make_answer("fine"), False, "unknown"),
        (make_answer("fine", is_cut=True), True, "unknown"),
        (DeclaredOutput(mode="stream-json"), True, "unknown"),
        (DeclaredOutput(mode="unreadable"), True, "unknown"),
        (None, True, "unknown"),
    ],
)
def test_no_emoji_needs_the_whole_answer_and_the_whole_diff(
    patch: Path, declared: DeclaredOutput | None, complete: bool, status: Status
) -> None:
    assert (
        find_check(evaluate_answer(patch, declared=declared, complete=complete), NO_EMOJIS).status
        == status
    )


def test_a_patch_that_cannot_be_read_makes_no_verdict(patch: Path) -> None:
    patch.unlink()
    assert (
        find_check(evaluate_answer(patch, declared=make_answer("fine")), NO_EMOJIS).status
        == "unknown"
    )


def test_the_table_is_loaded_only_where_there_is_something_to_look_up() -> None:
    code = "import sys, stream.observe.constraints as m; m.find_emoji('plain')"
    code += "; assert 'regex' not in sys.modules; m.find_emoji('é'); assert 'regex' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


_lines = st.lists(
    st.sampled_from(
        ["", "+++ b/x", "--- a/x", "@@ -1 +1 @@", "é 😀", "\\ no", "x" * 50, "\t", "\r"]
    ),
    max_size=12,
)


@given(before=_lines, after=_lines, ends=st.booleans())
def test_the_added_lines_are_those_that_git_adds(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str], ends: bool
) -> None:
    def contents(lines: list[str]) -> bytes:
        return ("\n".join(lines) + "\n" * ends).encode()

    folder = tmp_path_factory.mktemp("diff")
    data = _run_git_diff(folder, {"f": contents(before)}, {"f": contents(after)})
    (folder / "patch").write_bytes(data)
    text = contents(after).decode().split("\n")
    for addition in added_lines(folder / "patch"):
        assert addition.path == "f"
        assert addition.text.rstrip("\n") == text[addition.line - 1]
    count = sum(1 for _ in added_lines(folder / "patch"))
    _, _, hunks = data.partition(b"@@ ")
    expected = _count_added(b"@@ " + hunks) if hunks else 0
    assert count == expected, data


def _count_added(hunks: bytes) -> int:
    """Counted by git itself: what --numstat would count, from the sizes of the hunks."""
    done = subprocess.run(
        ["git", "apply", "--numstat", "-"],
        input=b"diff --git a/f b/f\n--- a/f\n+++ b/f\n" + hunks,
        capture_output=True,
        check=True,
    )
    return int(done.stdout.split()[0]) if done.stdout else 0


@pytest.mark.parametrize("place", [*range(PIECE - 6, PIECE + 6), 3 * PIECE])
@pytest.mark.parametrize("emoji", ["😀", "❤\ufe0f", "🇩🇪", "1\ufe0f\u20e3"])
def test_a_long_line_is_read_in_pieces(patch: Path, place: int, emoji: str) -> None:
    line = "x" * place + emoji + "y" * 10
    patch.write_text(f"--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n z\n+{line}\n")
    found = find_check(evaluate_answer(patch, declared=make_answer("fine")), NO_EMOJIS)
    assert "in line 2 of x" in found.evidence


def test_a_huge_patch_takes_no_memory(patch: Path) -> None:
    with patch.open("wb") as file:
        file.write(b"--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-")
        file.writelines(b"x" * (1 << 20) for _ in range(20))
        file.write(b"\n+")
        file.writelines("é".encode() * (1 << 19) for _ in range(20))
        file.write(b"\n+\n")
    find_emoji("é")
    tracemalloc.start()
    found = find_check(evaluate_answer(patch, declared=make_answer("fine")), NO_EMOJIS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "none in 2 added lines" in found.evidence
    assert peak < 4 << 20


# --- scope.no_ci_changes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        ".github/workflows/ci.yml",
        ".github/workflows/deep/x.md",
        ".github/actions/setup/action.yml",
        ".gitea/workflows/a.yml",
        ".gitlab-ci.yml",
        "templates/build.gitlab-ci.yml",
        ".gitlab/ci/jobs.yml",
        ".circleci/config.yml",
        "Jenkinsfile",
        "Jenkinsfile.release",
        "ci/deploy.Jenkinsfile",
        "azure-pipelines.yml",
        "azure-pipelines-release.yaml",
        ".travis.yml",
        "bitbucket-pipelines.yml",
        ".buildkite/pipeline.yml",
        ".drone.yml",
        ".woodpecker.yml",
        ".woodpecker/test.yaml",
        ".ci/run",
        "appveyor.yml",
        ".appveyor.yml",
        "cloudbuild.yaml",
        "buildspec.yml",
        ".teamcity/settings.kts",
        ".tekton/pull.yaml",
        ".cirrus.yml",
        ".builds/linux.yml",
        "vendor/lib/.github/workflows/ci.yml",
        ".GitHub/Workflows/ci.yml",
        "JENKINSFILE",
        ".github/workflows/a\nb.yml",
    ],
)
def test_what_the_configuration_of_a_ci_is(patch: Path, path: str) -> None:
    assert is_ci_path(path)
    found = find_check(evaluate_answer(patch, changes=["a.py", path]), NO_CI_CHANGES)
    assert found.status == "fail"
    assert found.evidence.startswith("fs_diff.patch: ")
    assert path.replace("\n", "\\n") in found.evidence
    assert found.evidence.endswith(f"[sha256:{SHA}]")


@pytest.mark.parametrize(
    "path",
    [
        ".github/ISSUE_TEMPLATE/bug.md",
        ".github/dependabot.yml",
        ".gitlab/issue_templates/bug.md",
        ".git/hooks/pre-commit",
        ".git/workflows/.github/workflows/x.yml",
        "sub/.git/.github/workflows/x.yml",
        "src/ci/run.py",
        "my.travis.yml.md",
        "docs/Jenkins.md",
        "github/workflows/ci.yml",
        "x.github/workflows/ci.yml",
        ".pre-commit-config.yaml",
    ],
)
def test_what_it_is_not(path: str) -> None:
    assert not is_ci_path(path)


@pytest.mark.parametrize("what", ["added", "removed", "changed"])
def test_a_ci_configuration_may_not_come_or_go_either(
    patch: Path, what: Literal["added", "removed", "changed"]
) -> None:
    changes = [ChangedPath(".travis.yml", what)]
    assert find_check(evaluate_answer(patch, changes=changes), NO_CI_CHANGES).status == "fail"
    incomplete = evaluate_answer(patch, changes=changes, complete=False)
    assert find_check(incomplete, NO_CI_CHANGES).status == "fail"


def test_without_one_it_passes_where_all_is_seen(patch: Path) -> None:
    found = find_check(evaluate_answer(patch, changes=["a.py", "b.py"]), NO_CI_CHANGES)
    assert found.status == "pass"
    assert found.evidence == f"fs_diff.patch: none of 2 changed paths [sha256:{SHA}]"
    unseen = find_check(evaluate_answer(patch, changes=["a.py"], complete=False), NO_CI_CHANGES)
    assert unseen.status == "unknown"


def test_many_paths_are_counted(patch: Path) -> None:
    changes = [f".github/workflows/a-rather-long-name-{n}.yml" for n in range(3000)]
    found = find_check(evaluate_answer(patch, changes=changes), NO_CI_CHANGES)
    assert "and 2998 more [sha256:" in found.evidence


# --- quality.tests_required ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_a.py",
        "test_a.py",
        "a_test.py",
        "conftest.py",
        "tests/helpers.py",
        "pkg/a_test.go",
        "src/a.test.ts",
        "src/a.spec.tsx",
        "src/__tests__/a.js",
        "cypress/e2e/login.cy.js",
        "spec/user_spec.rb",
        "src/test/java/org/UserIT.java",
        "org/UserTest.java",
        "org/TestUser.java",
        "UserTests.cs",
        "app/tests.py",
        "t/basic.t",
        "a.bats",
        "login.feature",
        "tests/__snapshots__/a.snap",
        "Tests/Sources/a.swift",
    ],
)
def test_what_a_test_is(path: str) -> None:
    assert is_test_path(path)
    assert is_code_path(path)


@pytest.mark.parametrize(
    "path",
    ["a.py", "latest.py", "contest.go", "src/A.java", "Makefile", "Dockerfile", "x.SQL", "git.py",
     "src/attestation.rs", "index.html", "Testament.java", "GIT.py"],
)  # fmt: skip
def test_what_code_and_no_test_is(path: str) -> None:
    assert is_code_path(path)
    assert not is_test_path(path)


@pytest.mark.parametrize(
    "path",
    ["README.md", "tests/data/a.json", "pyproject.toml", "LICENSE", "a.png", "py", ".py", "a.txt",
     ".git/hooks/test.py", "tests/README.md", ".gitignore", "docs/x.rst"],
)  # fmt: skip
def test_what_neither_is(path: str) -> None:
    assert not is_code_path(path)
    assert not is_test_path(path)


@pytest.mark.parametrize(
    ("changes", "complete", "commands", "status", "words"),
    [
        ([], True, [PYTEST], "unknown", "no change: nothing to test"),
        (["README.md", "a.toml"], True, [PYTEST], "unknown", "no code among 2 changed paths"),
        (["a.py", "tests/test_a.py"], True, None, "pass", "tests/test_a.py"),
        (["tests/test_a.py"], True, None, "pass", "tests/test_a.py"),
        (["a.py", "tests/test_a.py"], False, None, "pass", "tests/test_a.py"),
        (["a.py"], False, [LS], "unknown", "not all changes can be seen"),
        ([], False, [LS], "unknown", "not all changes can be seen"),
        (["a.py"], True, [LS, PYTEST], "warn", "pytest at 2026-01-02T03:04:05Z"),
        (["a.py"], True, None, "warn", "whether tests ran is not known: wrappers disabled"),
        (["a.py"], True, [], "warn", "no commands observed: none were called"),
        (["a.py"], True, [LS, LS], "fail", "command_logs.jsonl: no run of tests among 2 commands"),
        ([ChangedPath("tests/test_a.py", "removed")], True, [LS], "unknown", "no code among 1"),
    ],
)
def test_tests_required(
    patch: Path,
    changes: Sequence[ChangedPath | str],
    complete: bool,
    commands: Sequence[Command] | None,
    status: Status,
    words: str,
) -> None:
    evaluation = evaluate_answer(patch, changes=changes, complete=complete, commands=commands)
    found = find_check(evaluation, TESTS_REQUIRED)
    assert found.status == status
    assert words in found.evidence
    assert found.evidence.startswith("fs_diff.patch: ")
    assert evaluation.quality.status == status


def test_a_removed_test_is_no_change_of_tests(patch: Path) -> None:
    changes = [ChangedPath("a.py", "changed"), ChangedPath("test_a.py", "removed")]
    assert (
        find_check(evaluate_answer(patch, changes=changes, commands=[LS]), TESTS_REQUIRED).status
        == "fail"
    )


def test_removed_code_is_changed_code(patch: Path) -> None:
    changes = [ChangedPath("a.py", "removed")]
    assert (
        find_check(evaluate_answer(patch, changes=changes, commands=[LS]), TESTS_REQUIRED).status
        == "fail"
    )


# --- what was not asked, what was refused, and all together -------------------------------------


def test_what_was_not_asked_is_unknown(patch: Path) -> None:
    evaluation = evaluate_answer(
        patch, constraints=[], changes=[".travis.yml", "a.py"], declared=make_answer("😀")
    )
    for name in CONSTRAINTS:
        assert find_check(evaluation, name) == Check(name, "unknown", NOT_ASKED)
    assert evaluation.alignment.status == "unknown"
    assert evaluation.alignment.violations == []
    assert evaluation.quality.status == "unknown"
    assert evaluation.policy.status == "unknown"


@pytest.mark.parametrize(
    ("constraints", "changes", "answer", "policy"),
    [
        ([NO_CI_CHANGES], ["a.py"], "😀", "pass"),
        ([NO_EMOJIS], [".travis.yml"], "fine", "pass"),
        ([NO_EMOJIS, NO_CI_CHANGES], [".travis.yml"], "fine", "fail"),
        ([NO_EMOJIS, NO_CI_CHANGES], ["a.py"], "😀", "fail"),
        ([NO_EMOJIS, NO_CI_CHANGES], ["a.py"], "fine", "pass"),
        ([JSON_ONLY], [".travis.yml"], "😀", "unknown"),
    ],
)
def test_the_worst_of_what_was_asked_counts(
    patch: Path, constraints: list[str], changes: list[str], answer: str, policy: Status
) -> None:
    evaluation = evaluate_answer(
        patch, constraints=constraints, changes=changes, declared=make_answer(answer)
    )
    assert evaluation.policy.status == policy


def test_unknown_is_worse_than_pass(patch: Path) -> None:
    evaluation = evaluate_answer(patch, changes=["a.py"], declared=None)
    assert find_check(evaluation, NO_CI_CHANGES).status == "pass"
    assert find_check(evaluation, NO_EMOJIS).status == "unknown"
    assert evaluation.policy.status == "unknown"


DATA = Path(__file__).parent.parent / "data/claude"


@pytest.mark.parametrize(
    ("sample", "status", "words"),
    [
        ("refused.json", "warn", "3 refused calls of Write, Bash"),
        ("refused.stream.jsonl", "warn", "3 refused calls of Write, Bash"),
        ("success.json", "pass", "no refused call in 1 results"),
        ("background.stream.jsonl", "pass", "no refused call in 2 results"),
        ("refused.text", "unknown", "does not tell"),
    ],
)
def test_a_refused_agent_is_seen_though_it_claims_success(
    patch: Path, sample: str, status: Status, words: str
) -> None:
    evaluation = evaluate_answer(patch, declared=read_declared(DATA / sample), constraints=[])
    found = find_check(evaluation, NOT_REFUSED)
    assert found.status == status
    assert words in found.evidence
    assert found.evidence.startswith("claude_stdout.txt (declared): ")
    assert evaluation.policy.status == ("warn" if status == "warn" else "unknown")


def test_only_a_refusal_counts_towards_the_policy(patch: Path) -> None:
    passed = evaluate_answer(
        patch, constraints=[NO_CI_CHANGES], declared=read_declared(DATA / "success.text")
    )
    assert find_check(passed, NOT_REFUSED).status == "unknown"
    assert passed.policy.status == "pass"
    warned = evaluate_answer(
        patch, constraints=[NO_CI_CHANGES], declared=read_declared(DATA / "refused.json")
    )
    assert warned.policy.status == "warn"
    changes = [".travis.yml"]
    failed = evaluate_answer(patch, changes=changes, declared=read_declared(DATA / "refused.json"))
    assert failed.policy.status == "fail"


_text = st.text(max_size=400) | st.sampled_from(
    ["\x1b[31m" * 100, "a" * 999, "😀" * 300, "\n" * 99]
)


@given(
    texts=st.lists(_text, min_size=6, max_size=6),
    paths=st.lists(
        st.builds(
            "{}{}".format, _text, st.sampled_from(["", "/.travis.yml", ".py", "_test.py", "/.ci/x"])
        ),
        max_size=8,
    ),
    numbers=st.tuples(st.integers(0, 10**15), st.integers(0, 10**9)),
    logged=st.none() | st.lists(st.sampled_from(["test", "other"]), max_size=2),
    complete=st.booleans(),
    kind=st.sampled_from(["answered", "cut", "refused", "unreadable", "none"]),
    mode=st.sampled_from(["full", "redacted", "hashed"]),
)
def test_evidence_is_bounded_and_visible(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    paths: list[str],
    numbers: tuple[int, int],
    logged: list[str] | None,
    complete: bool,
    kind: str,
    mode: CaptureMode,
) -> None:
    patch = tmp_path_factory.mktemp("x") / "patch"
    name = texts[0].replace("\n", "").encode("utf-8", "replace")
    patch.write_bytes(b"+++ b/" + name + b"\n@@ -1 +1 @@\n+" + texts[1].encode() + b"\n")
    answer = AgentAnswer(texts[2], numbers[0], SHA, is_cut=kind == "cut")
    declared = {
        "answered": DeclaredOutput(mode="text", answer=answer),
        "cut": DeclaredOutput(mode="text", answer=answer),
        "refused": DeclaredOutput(
            mode="json", answer=answer, denials=numbers[1] + 1, denied_tools=texts
        ),
        "unreadable": DeclaredOutput(mode="unreadable", reason=texts[3]),
        "none": None,
    }[kind]
    commands = None if logged is None else [Command(texts[4], kind, texts[5]) for kind in logged]
    evaluation = evaluate_answer(
        patch, changes=paths, complete=complete, commands=commands,
        declared=declared, mode=mode, why=texts[3],
    )  # fmt: skip
    groups = (evaluation.alignment, evaluation.quality, evaluation.policy)
    found = [check for group in groups for check in group.checks or ()]
    assert len(found) == 5
    for one in found:
        assert len(one.evidence) <= LONGEST
        assert one.evidence.isprintable()
        names = ("fs_diff.patch", "command_logs.jsonl", "claude_stdout.txt")
        assert any(source in one.evidence for source in names)


def test_the_answers_that_are_kept_are_evaluated_in_reasonable_time(patch: Path) -> None:
    text = "[" + "1," * (ANSWER // 2 - 1) + "1]"
    assert (
        find_check(evaluate_answer(patch, declared=make_answer(text)), JSON_ONLY).status == "pass"
    )
