"""Imports point one way, names are nouns, and the command line starts fast."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import stream

HOUSE = Path(stream.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))

# Six floors between the errors and the command line: a module imports from floors below its
# own, and from rooms of its own floor where that makes no cycle.
FLOORS = [
    {"stream"},  # the package itself: its version
    {"stream.errors"},
    {"stream.records"},
    {"stream.codec", "stream.pipeline", "stream.files", "stream.process"},
    {
        *("stream.boundary", "stream.redaction", "stream.evidence", "stream.workspace"),
        *("stream.archive", "stream.contracts", "stream.targets"),
    },
    {"stream.sources", "stream.transformers", "stream.sinks"},
    {"stream.matrix", "stream.observe", "stream.verify", "stream.compare", "stream.doctor"},
    {"stream.cli"},
    {"stream.__main__"},
]
NO_NAMES = {"utils", "util", "base", "manager", "common", "helpers", "misc", "core"}


def module_of(path: Path) -> str:
    parts = path.relative_to(HOUSE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def iter_imports(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, inside functions as well."""
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "stream")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import, from {package}"
            if node.module and node.module.split(".")[0] == "stream":
                for name in node.names:
                    inner = f"{node.module}.{name.name}"
                    yield inner if inner in MODULES else node.module


def floor_of(module: str) -> int:
    for number, floor in enumerate(FLOORS):
        if module in floor or (number and any(module.startswith(f"{room}.") for room in floor)):
            return number
    raise AssertionError(f"{module} stands on no floor: give it one in tests/core/test_house.py")


@cache
def list_imports() -> list[tuple[str, str]]:
    return [(name, other) for name, path in MODULES.items() for other in iter_imports(path)]


def test_every_module_has_a_floor() -> None:
    assert len(FILES) > 20
    for module in MODULES:
        floor_of(module)


def test_imports_point_down() -> None:
    up = [
        f"{name} imports {other}"
        for name, other in list_imports()
        if floor_of(other) > floor_of(name)
    ]
    assert up == []


def test_there_is_no_cycle() -> None:
    below: dict[str, set[str]] = {name: set() for name in MODULES}
    for name, other in list_imports():
        if name != other and other != "stream":
            below[name].add(other)
    while below:
        free = {name for name, others in below.items() if not others & below.keys()}
        assert free, f"a cycle among {sorted(below)}"
        for name in free:
            del below[name]


def test_sources_transformers_and_sinks_do_not_know_each_other() -> None:
    kinds = ("stream.sources", "stream.transformers", "stream.sinks")
    for name, other in list_imports():
        mine = [kind for kind in kinds if name.startswith(kind)]
        theirs = [kind for kind in kinds if other.startswith(kind)]
        assert not mine or not theirs or mine == theirs, f"{name} imports {other}"


@pytest.mark.parametrize("room", ["stream.pipeline", "stream.process", "stream.files"])
def test_who_knows_no_record(room: str) -> None:
    inside = [name for name in MODULES if name == room or name.startswith(f"{room}.")]
    assert inside
    for name in inside:
        known = {
            other for other in iter_imports(MODULES[name]) if other.startswith("stream.records")
        }
        assert known == set(), name


def test_verify_does_not_know_the_recorder() -> None:
    for name, other in list_imports():
        assert not (name.startswith("stream.verify") and other.startswith("stream.observe")), name


def test_only_main_imports_the_command_line() -> None:
    for name, other in list_imports():
        if other == "stream.cli" or other.startswith("stream.cli."):
            assert name == "stream.__main__" or name.startswith("stream.cli"), name


def test_records_need_msgspec_only() -> None:
    for name, path in MODULES.items():
        if not name.startswith("stream.records"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            roots = []
            if isinstance(node, ast.Import):
                roots = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                roots = [node.module.split(".")[0]]
            outside = {root for root in roots if root not in sys.stdlib_module_names}
            assert outside <= {"msgspec", "stream"}, f"{name} imports {outside}"


def test_names_are_nouns() -> None:
    for module, path in MODULES.items():
        assert not NO_NAMES & set(module.split(".")), module
        assert path.stem == path.stem.lower()


def test_a_module_exports_what_it_promises() -> None:
    for module, path in MODULES.items():
        doc = ast.get_docstring(ast.parse(path.read_text()))
        assert doc, module
        assert doc[0].strip(), module


def modules_loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_command_line_starts_light() -> None:
    loaded = modules_loaded_by("stream.cli.app")
    assert "stream.cli.app" in loaded
    heavy = {"anyio", "msgspec", "asyncio", "aiofiles", "jsonschema_rs", "rich"}
    assert sorted(heavy & loaded) == []


@pytest.mark.parametrize("module", ["stream.codec", "stream.matrix.plan", "stream.files.targets"])
def test_what_comes_before_the_loop_does_not_load_it(module: str) -> None:
    assert not {"anyio", "asyncio"} & modules_loaded_by(module)


def test_what_is_public_has_a_docstring() -> None:
    """A class or a function, also inside of another one."""
    named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    bare = [
        f"{module}: {node.name}"
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, named) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert bare == []


def test_sizes() -> None:
    """A function is a screen, a module has a handful of others to know, a type has one meaning."""
    types = Counter[str]()
    for module, path in MODULES.items():
        assert len({other for other in iter_imports(path) if other in MODULES} - {module}) <= 16, (
            module
        )
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 71, f"{module}.{node.name}"
            elif isinstance(node, ast.ClassDef):
                types[node.name.lstrip("_")] += 1
    assert [name for name, count in types.items() if count > 1] == []
