"""What a changed path is: the configuration of a CI, code, a test, or neither."""

from __future__ import annotations

import re
from functools import cache

# Where the services look, from the root of a repository; `*` does not cross a slash, `**` does.
_CI_PATHS = """
.github/workflows/** .github/actions/** .gitea/workflows/** .forgejo/workflows/**
.gitlab-ci.yml .gitlab-ci.yaml *.gitlab-ci.yml *.gitlab-ci.yaml .gitlab-ci/**
.gitlab/**.yml .gitlab/**.yaml .circleci/** .ci/** .travis.yml .travis.yaml .travis/**
jenkinsfile* *.jenkinsfile azure-pipelines*.yml azure-pipelines*.yaml .azure-pipelines/**
.azuredevops/**.yml .azuredevops/**.yaml bitbucket-pipelines.yml bitbucket-pipelines.yaml
.buildkite/** .cirrus.yml .cirrus.star .drone.yml .drone.yaml .drone.star .drone.jsonnet
.woodpecker* .woodpecker/** appveyor.yml appveyor.yaml .appveyor.yml .appveyor/**
cloudbuild*.yml cloudbuild*.yaml cloudbuild*.json buildspec*.yml buildspec*.yaml
.teamcity/** .tekton/** tekton/**.yml tekton/**.yaml .semaphore/** .builds/** .build.yml
.zuul.yml .zuul.yaml zuul.yaml zuul.d/** .zuul.d/** .harness/** screwdriver.yaml
codefresh.yml .codefresh/** codemagic.yaml bitrise.yml wercker.yml .prow.yaml .kokoro/**
.evergreen.yml .evergreen/**
"""

# Suffixes of what is compiled or interpreted, and of the pages that a program is made of.
_CODE = """
ada adb ads asm astro awk bash bat c cc cjs clj cljc cljs cmd coffee cpp cr cs cts cu cxx d dart
elm erl ex exs f f90 f95 for fs fsx gd go graphql groovy h hcl hh hpp hrl hs hxx ino ipynb java jl
js jsx kt kts lean lhs lisp lua m mjs ml mli mm mts nim nix pas php pl pm proto ps1 psm1 purs py
pyi pyx r rake rb re res rkt rs s sc scala scm sh sol sql sv svelte swift tcl tf ts tsx v vala vb
vhd vhdl vue wat zig zsh
css ejs erb hbs htm html j2 jinja less liquid pug sass scss
"""
_CODE_NAMES = "dockerfile makefile gnumakefile rakefile justfile cmakelists.txt"
# Suffixes of what is written for tests alone.
_TESTS = "bats feature robot t snap ambr"
_TEST_FOLDERS = """
test tests __tests__ spec specs e2e testing unittests integrationtest integrationtests
androidtest commontest jvmtest
"""
_TEST_NAMES = r"test_.*|.*[_.-]tests?|.*[_.-]spec|.*[_.-](?:e2e|cy)|conftest|tests?"
_TEST_CLASSES = r"Test[A-Z]\w*|\w*[a-z0-9](?:Tests?|TestCase|Spec|IT)"


def is_ci(path: str) -> bool:
    """In a subfolder too: it may be a repository of its own. Not in `.git`: hooks are no CI."""
    lower = path.lower()
    return not _is_inside_git(lower) and _ci_pattern().search(lower) is not None


def is_test(path: str) -> bool:
    *folders, name = path.split("/")
    stem, _, suffix = name.rpartition(".")
    if not is_code(path):
        return False
    return (
        suffix.lower() in _words(_TESTS)
        or not _words(_TEST_FOLDERS).isdisjoint(folder.lower() for folder in folders)
        or re.fullmatch(_TEST_NAMES, stem.lower()) is not None
        or re.fullmatch(_TEST_CLASSES, stem) is not None
    )


def is_code(path: str) -> bool:
    """Tests are code too. What lies inside `.git` is none."""
    lower = path.lower()
    name = lower.rpartition("/")[2]
    if _is_inside_git(lower):
        return False
    suffix = name[1:].rpartition(".")
    return name in _words(_CODE_NAMES) or (bool(suffix[1]) and suffix[2] in _words(_CODE + _TESTS))


def _is_inside_git(path: str) -> bool:
    return path.startswith(".git/") or "/.git/" in path


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@cache
def _ci_pattern() -> re.Pattern[str]:
    paths = "|".join(map(_as_pattern, _CI_PATHS.split()))
    return re.compile(rf"(?:^|/)(?:{paths})$", re.DOTALL)


def _as_pattern(path: str) -> str:
    parts = re.split(r"(\*{1,2})", path)
    return "".join({"**": ".+", "*": "[^/]*"}.get(part, re.escape(part)) for part in parts)
