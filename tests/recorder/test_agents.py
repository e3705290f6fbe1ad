"""Which agent is recorded, and which version: found without running the command a second time."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from stream.errors import UsageError
from stream.observe import agents
from stream.observe.agents import Version, find_agent_version, identify_agent, read_program_version
from tests.cli.command import Place, processes_naming, write_script
from tests.recorder.runs import Run, observe

ORDER = '#!/bin/sh\necho "$*" >>"${0%/*}/calls"\npwd >>"${0%/*}/calls"; touch mark\n'
#: Does what it was asked for, whatever that was: writes where it stands and at home.
NATIVE = """
#include <stdio.h>
#include <stdlib.h>
int main(void) {
  char path[4096];
  fclose(fopen("mark", "w"));
  snprintf(path, sizeof path, "%s/mark", getenv("HOME"));
  fclose(fopen(path, "w"));
  puts(getenv("SECRET_KEY") ? "6.6.6" : "1.2.3 (Claude Code)");
  return 0;
}
"""


def read_metadata(run: Run) -> Any:
    return json.loads((run.folder / "metadata.json").read_bytes())


def read_known_agent(run: Run) -> tuple[str, ...]:
    """As it stands in metadata and in every event."""
    stated = read_metadata(run)
    for event in run.events:
        session = event["session"]
        assert session["agent_id"] == stated["agent_id"]
        assert session["agent_version"] == stated["agent_version"]
    facts = run.facts_of("agent_invoked")
    keys = ("agent_known_by", "version_known_by")
    assert [facts[key] for key in keys] == [stated[key] for key in keys]
    return tuple(stated[key] for key in ("agent_id", "agent_version", *keys))


@pytest.mark.parametrize("mode", ["copy", "empty", "here"])
def test_a_script_runs_once(place: Place, mode: str) -> None:
    """Whatever it is called: it could take a question for an order."""
    (place.workspace / "bin").mkdir()
    claude = write_script(place.workspace / "bin" / "claude", ORDER)
    run = observe(place, "--workspace", mode, "--", claude, "-p", "x")
    assert (place.workspace / "bin/calls").read_text().splitlines()[::2] == ["-p x"]
    assert (place.workspace / "mark").exists() == (mode == "here")
    assert read_known_agent(run) == ("claude-code", "unknown", "command", "unknown")
    assert run.events[0]["prompt_provenance"]["provider"] == "anthropic"
    assert read_metadata(run)["profile"] == "poc"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_native_program_is_asked_in_a_folder_that_is_thrown_away(place: Place) -> None:
    source, claude = place.root / "claude.c", place.workspace / "claude"
    source.write_text(NATIVE)
    subprocess.run(["gcc", "-o", claude, source], check=True)
    home = place.root / "home"
    home.mkdir()
    env = {"HOME": str(home), "SECRET_KEY": "x"}
    run = observe(place, "--", "./claude", env=env)
    assert read_known_agent(run) == ("claude-code", "1.2.3", "command", "answer")
    assert run.done.out == b"6.6.6\n"
    assert [path.name for path in home.iterdir()] == ["mark"]
    assert sorted(path.name for path in place.workspace.iterdir()) == ["claude", "runs"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_who_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, claude = tmp_path / "claude.c", tmp_path / "claude"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    subprocess.run(["gcc", "-o", claude, source], check=True)
    monkeypatch.setattr(agents, "PATIENCE", 0.1)
    assert anyio.run(agents.ask_program_version, claude) is None
    assert processes_naming(str(claude)) == []


def test_an_answer_of_what_fails_is_none(place: Place) -> None:
    shutil.copy(shutil.which("false") or "", place.workspace / "claude")
    run = observe(place, "--", "./claude", check=False)
    assert read_known_agent(run) == ("claude-code", "unknown", "command", "unknown")


def write_package(folder: Path, name: str, version: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"name": name, "version": version}))


def test_the_package_of_a_script_states_its_version(place: Place) -> None:
    modules = place.root / "node_modules"
    home = modules / "@anthropic-ai/claude-code"
    write_package(home, "@anthropic-ai/claude-code", "2.1.197")
    write_script(home / "cli.js", ORDER)
    (modules / ".bin").mkdir()
    (modules / ".bin/claude").symlink_to("../@anthropic-ai/claude-code/cli.js")
    env = {"PATH": f"{modules}/.bin:{place.env['PATH']}"}
    run = observe(place, "--", "timeout", "60", "env", "A=1", "claude", "-p", env=env)
    assert read_known_agent(run) == ("claude-code", "2.1.197", "command", "files")
    assert (modules / ".bin/calls").read_text().splitlines()[::2] == ["-p"]


OURS = "@openai/codex"


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        (OURS, "0.169.0", "0.169.0"),
        (f"{OURS}-linux-x64", "0.169.0-alpha.1", "0.169.0-alpha.1"),
        ("my-project", "0.1.0", None),
        (OURS, "latest", None),
        (OURS, 3, None),
        (None, "1.2.3", None),
    ],
)
def test_a_package_speaks_for_its_own_programs_only(
    tmp_path: Path, name: object, version: object, expected: str | None
) -> None:
    write_package(tmp_path, name, version)  # type: ignore[arg-type]  # whatever stands there
    (tmp_path / "bin").mkdir()
    program = write_script(tmp_path / "bin" / "codex", "")
    assert read_program_version(program, OURS) == expected


def test_other_files_that_state_a_version(tmp_path: Path) -> None:
    """Of an installer, of a Python package that carries the program, of pip."""
    versions = tmp_path / "claude/versions"
    versions.mkdir(parents=True)
    (versions / "2.1.327").write_text("")
    (tmp_path / "claude-link").symlink_to(versions / "2.1.327")
    assert read_program_version(tmp_path / "claude-link", "@anthropic-ai/claude-code") == "2.1.327"
    (tmp_path / "claude.version").write_text("2.1.326 (Claude Code)\n")
    assert read_program_version(tmp_path / "claude", "@anthropic-ai/claude-code") == "2.1.326"
    (tmp_path / "claude.version").write_bytes(b"\xff")
    assert read_program_version(tmp_path / "claude", "@anthropic-ai/claude-code") is None
    (tmp_path / "bin").mkdir()
    site = tmp_path / "lib/python3.12/site-packages"
    (site / "aider_chat-0.86.2.dist-info").mkdir(parents=True)
    assert read_program_version(tmp_path / "bin/aider", "aider-chat") == "0.86.2"
    (site / "aider_chat-0.86.3.dist-info").mkdir()
    assert read_program_version(tmp_path / "bin/aider", "aider-chat") is None


def test_what_is_declared_is_marked(place: Place) -> None:
    write_script(place.workspace / "agent.sh", ORDER)
    words = ("--workspace", "here", "--agent", "claude@2.1.0", "--", "./agent.sh")
    run = observe(place, *words)
    assert read_known_agent(run) == ("claude-code", "2.1.0", "declared", "declared")
    assert read_metadata(run)["profile"] == "poc"
    assert "the agent is declared as claude-code 2.1.0" in run.done.err


@pytest.mark.parametrize("text", ["", " ", "@1.0", "claude@", "a\nb", "x" * 200])
def test_a_declaration_that_is_none(place: Place, text: str) -> None:
    done = place.stream("observe", "--agent", text, "--", "true")
    assert done.code == 2
    assert "--agent" in done.err
    assert not (place.workspace / "runs").exists()


@pytest.mark.parametrize(
    ("declared", "id_", "version"),
    [
        ("codex", "codex", "unknown"),
        ("claude-code@1", "claude-code", "1"),
        ("@google/gemini-cli@0.61.0", "gemini-cli", "0.61.0"),
        ("mine@2@3", "mine", "2@3"),
    ],
)
def test_declarations(declared: str, id_: str, version: str) -> None:
    agent = identify_agent(["sh", "agent.sh"], declared)
    assert (agent.id, agent.version, agent.known_by) == (id_, version, "declared")
    assert agent.program == ""


def test_a_declared_agent_that_the_words_show_can_be_looked_at() -> None:
    assert identify_agent(["env", "claude"], "claude").program == "claude"
    assert identify_agent(["env", "claude"], "codex").program == ""


SCRIPT = "/usr/lib/node_modules/@anthropic-ai/claude-code/cli.js"
FOUND = [
    ("claude -p x", "claude"),
    ("/opt/bin/claude", "/opt/bin/claude"),
    ("env -u X A=1 claude", "claude"),
    ("env -i A=1 claude", ""),
    ("env PATH=/opt claude", ""),
    ("timeout -k 3 5 claude", "claude"),
    ("timeout --signal=KILL 5 nice -n 5 claude", "claude"),
    ("nohup setsid stdbuf -oL claude", "claude"),
    ("taskset 0x1 claude", "claude"),
    ("sudo -u me claude", ""),
    ("npx claude", ""),
    ("npx -y -p @anthropic-ai/claude-code claude -p x", ""),
    ("npm exec -- @anthropic-ai/claude-code", ""),
    ("npm x -y @anthropic-ai/claude-code", ""),
    ("uv run --with x -p 3.12 claude -p x", ""),
    ("uv tool run --from x claude -p x", ""),
    ("bun x @anthropic-ai/claude-code", ""),
    ("bun claude", "claude"),
    ("pnpm exec claude -p x", ""),
    ("poetry run claude -p x", ""),
    ("runuser -u me -- claude", ""),
    ("bunx @anthropic-ai/claude-code@latest", ""),
    ("bwrap --ro-bind / / --dev /dev -- claude -p x", ""),
    ("codex sandbox -- claude", ""),
    ("sh -c 'claude -p x'", "claude"),
    ("bash -ec 'cd sub && exec claude -p x >out 2>&1'", "claude"),
    ("bash -ec 'cd sub && ./claude'", ""),
    ("bash -lc claude", ""),
    ("bash -euo pipefail -c claude", "claude"),
    ("bash -o errexit -c claude", "claude"),
    ("sh -c '. ./env; claude'", ""),
    ("sh -c 'PATH=x claude'", ""),
    ("sh -c 'A=1 claude -p x | tee out'", "claude"),
    ("sh -c 'if ! claude; then echo codex; fi'", "claude"),
    ("sh -c 'echo $(claude -p x)'", ""),
    ("""sh -c 'exec "$@"' sh claude -p x""", "claude"),
    (f"node --no-warnings {SCRIPT} -p x", SCRIPT),
    (SCRIPT, SCRIPT),
    ("""sh -c "timeout 5 env sh -c 'claude -p x'" """, "claude"),
]


@pytest.mark.parametrize(("line", "program"), FOUND)
def test_a_name_is_found_behind_the_usual_launchers(line: str, program: str) -> None:
    """And its program, where that is the one that the recorder would find."""
    agent = identify_agent(shlex.split(line))
    assert (agent.id, agent.known_by, agent.program) == ("claude-code", "command", program)


@pytest.mark.parametrize(
    ("line", "id_"),
    [
        ("./agent.sh claude", "agent.sh"),
        ("sh run.sh claude", "sh"),
        ("sh -c 'echo claude'", "sh"),
        ("sh -c 'cat <<E\nclaude\nE'", "sh"),
        ("sh -c '# claude\ntrue'", "sh"),
        ('sh -c "claude\'s"', "sh"),
        ("sh -c 'claude -p x; codex exec y'", "sh"),
        ("sh -c ''", "sh"),
        ("env", "env"),
        ("timeout 5", "timeout"),
        ("bwrap --bind claude claude true", "bwrap"),
        ("npx", "npx"),
        ("python -c claude", "python"),
        ("python -m pytest claude", "python"),
        ("python3 -m aider --yes", "aider"),
        ("/opt/bin/python3.13 -m aider --yes", "aider"),
        ("uv run -m aider --yes", "aider"),
        ("uv run python3.11 -m aider", "aider"),
        ("uv run script.py claude", "uv"),
        ("pythonic -m aider", "pythonic"),
        ("node node_modules/.bin/codex", "codex"),
        ("node node_modules/opencode-ai/bin/x", "opencode"),
        ("node -e claude", "node"),
        ("node claude-code/cli.js", "node"),
        ("node", "node"),
    ],
)
def test_a_name_is_not_guessed(line: str, id_: str) -> None:
    assert identify_agent(shlex.split(line)).id == id_


def test_an_exact_version_of_a_package_is_known_by_its_name() -> None:
    agent = identify_agent(["npx", "-y", "@openai/codex@0.169.0", "exec"])
    assert (agent.id, agent.version, agent.provider) == ("codex", "0.169.0", "openai")
    for version in ("latest", "^0.169.0", "0"):
        assert identify_agent(["npx", f"@openai/codex@{version}"]).version == "unknown"


def test_a_declaration_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="--agent 'claude@': there is no version behind the @"):
        identify_agent(["true"], "claude@")


def test_an_unknown_program_is_not_asked() -> None:
    """Though it is a native one, and would answer."""
    agent = identify_agent([sys.executable, "-c", ""])
    assert anyio.run(find_agent_version, agent, Path(sys.executable)) == Version(
        "unknown", "unknown"
    )


def test_an_agent_is_verbose_behind_a_launcher_as_well(place: Place) -> None:
    write_script(place.workspace / "claude", ORDER)
    run = observe(place, "--", "env", "A=1", "sh", "-c", "./claude -p x --verbose")
    assert "verbose=yes" in run.summary_of("agent_invoked")
