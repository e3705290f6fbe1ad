"""The category of a command line: what kind of work a program does, by its name and its words."""

from __future__ import annotations

import os
from collections.abc import Sequence

#: what an auditor asks about: tests, builds, packages, version control, the network, containers
_NAMES = {
    "test": "pytest py.test tox nox jest vitest mocha ava playwright rspec phpunit ctest bats"
    " cypress",
    "build": "make cmake ninja gradle mvn bazel cargo go dotnet tsc webpack vite rake just meson",
    "package": "pip pip3 pipx uv poetry pdm conda npm npx pnpm yarn bun gem bundle composer apt"
    " apt-get dnf apk brew",
    "vcs": "git gh glab hg svn jj",
    "network": "curl wget ssh scp sftp rsync nc ncat telnet ftp aws gcloud az",
    "container": "docker podman kubectl helm terraform ansible-playbook",
    "interpreter": "python python3 node deno ruby perl php Rscript java",
}
_CATEGORY_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}
DEFAULT_NAMES = tuple(_CATEGORY_OF)
_TEST_WORDS = {"test", "tests", "check", "t", "tst", "it"}
_MODULES = {"pytest", "unittest", "tox", "nox", "doctest"}
_RUNNERS = {"npx", "pnpm", "yarn", "bun", "bunx", "uv", "uvx", "poetry", "pdm", "bundle", "pipx"}


def category_of(name: str, words: Sequence[bytes]) -> str:
    """Return the category of a command, by its name and by words that make a test run of it."""
    category = _CATEGORY_OF.get(name, "other")
    plain = [os.fsdecode(word) for word in words]
    return "test" if category == "test" or _runs_tests(name, plain) else category


def _runs_tests(name: str, words: list[str]) -> bool:
    first = next((word for word in words if not word.startswith("-")), "")
    if name.rstrip("0123456789.") == "python":
        module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
        return bool(module) and module[0] in _MODULES
    if name == "node":
        return "--test" in words
    if name in ("npm", "pnpm", "yarn", "bun"):
        after = words[words.index("run") + 1 :] if "run" in words else words
        script = next((word for word in after if not word.startswith("-")), "")
        if script in _TEST_WORDS or script.startswith("test:"):
            return True
    if name in _RUNNERS:
        return any(_CATEGORY_OF.get(word) == "test" or word in _MODULES for word in words)
    if name in ("go", "cargo", "dotnet", "make", "mvn", "gradle", "rake", "bazel", "just", "deno"):
        return any(word in _TEST_WORDS for word in words) or first == "nextest"
    return False
