"""Names of a run without what another run names otherwise, and no file that a user named lost."""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.compare.names import (
    RULES,
    NameRule,
    ProvenNames,
    RunNames,
    agree_on_names,
    is_word_ending,
)

RECORDED = Path(__file__).parent.parent / "data/agents/names"
FOLDER = "/home/user/project/runs/20261119-133539-952b64"
WORKSPACE = f"{FOLDER}/workspace"
WAYS = {
    "moved": ["exclusive", "rename"],
    "first": ["mkdir"],
    "made": ["create"],
    "changed": ["write"],
}


def make_names(
    ways: dict[str, list[str]], processes: Collection[int] = (), **more: Any
) -> RunNames:
    known = {
        "run_id": FOLDER.rpartition("/")[2],
        "folder": FOLDER,
        "subfolders": ("workspace", ".wrappers"),
        "workspace": WORKSPACE,
    }
    found = RunNames(**{**known, "ways": ways, **more})
    found.collect_proofs(ways, lambda asked: ProvenNames(set(processes) & set(asked.numbers)))
    return found


def name_path(path: str, *ways: str, processes: Collection[int] = (), **more: Any) -> str:
    return make_names({path: [*ways]}, processes, **more).path_name(path)


# --- five identical runs of real agents ----------------------------------------------------------


def read_recorded(line: bytes, **more: Any) -> tuple[RunNames, set[str]]:
    run = json.loads(line)
    ways = {**run["paths"], **more}
    found = RunNames(
        run_id=run["run_id"],
        folder=run["folder"],
        subfolders=("workspace", ".wrappers"),
        workspace=run["workspace"],
        ways=ways,
    )
    values = [*ways, *run["execs"]]
    found.collect_proofs(
        values, lambda asked: ProvenNames(set(run["processes"]) & set(asked.numbers))
    )
    return found, found.path_names(values)


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini"])
def test_identical_runs_of_a_real_agent_have_the_same_names(agent: str) -> None:
    lines = (RECORDED / f"{agent}.ndjson").read_bytes().splitlines()
    runs = [set(json.loads(line)["paths"]) for line in lines]
    assert len(lines) == 5
    assert all(one - other for one, other in combinations(runs, 2)), "as they are, they differ"
    first, *others = (read_recorded(line)[1] for line in lines)
    assert all(other == first for other in others)
    assert len(first) > 10


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini"])
@pytest.mark.parametrize(
    "path",
    [
        "/home/user/report.md",
        "/home/user/report-2026.md",
        "/tmp/agent/budget",
        "/tmp/agent/sha256sum",
        "/etc/passwd",
        "/home/user/.ssh/id_ed25519",
        "/proc/1/environ",
    ],
)
def test_what_else_such_a_run_did_stays_a_difference(agent: str, path: str) -> None:
    for line in (RECORDED / f"{agent}.ndjson").read_bytes().splitlines():
        _, values = read_recorded(line)
        for ways in (["read"], ["create", "exclusive", "write"], ["mkdir"]):
            assert read_recorded(line, **{path: ways})[1] - values == {path}


def test_what_was_replaced_is_counted_by_value_and_rule() -> None:
    lines = (RECORDED / "claude.ndjson").read_bytes().splitlines()
    found, values = read_recorded(lines[0])
    assert set(found.used) == {"pid", "random", "run", "time", "uuid", "hash"}
    assert found.used["pid"] == 13
    assert "(run)/workspace/hello.txt.tmp.(pid).(random)" in values
    assert "/home/user/.claude/projects/(run)-workspace/(uuid).jsonl" in values


# --- each rule -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}: {rule.example}")
def test_a_rule_finds_its_example_and_leaves_its_counter_example_alone(rule: NameRule) -> None:
    found = make_names({f"/x/{rule.example}": WAYS[rule.proof]})
    assert f"({rule.name})" in found.path_name(f"/x/{rule.example}")
    assert rule.name in found._named_path(f"/x/{rule.example}").rules
    for ways in WAYS.values():
        assert name_path(f"/x/{rule.counter}", *ways) == f"/x/{rule.counter}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}: {rule.example}")
def test_a_rule_needs_its_proof(rule: NameRule) -> None:
    path = f"/x/{rule.example}"
    for ways in ([], ["read"], ["unknown"], ["read", "unknown"]):
        assert name_path(path, *ways) == path
    weaker = {
        "moved": ["exclusive"],
        "first": ["create", "write"],
        "made": ["write", "unlink"],
        "changed": ["read"],
    }
    assert f"({rule.name})" not in name_path(path, *weaker[rule.proof])
    assert make_names({}, workspace="").path_name(path) == path


def test_a_folder_that_the_run_named_has_no_other_name_for_what_is_in_it() -> None:
    folder = "/tmp/gemini-shell-2YYklp"
    found = make_names({folder: ["mkdir"], f"{folder}/notes": ["read"]})
    assert found.path_name(f"{folder}/notes") == "/tmp/gemini-shell-(random)/notes"
    assert found.path_name(f"{folder}/bin/x") == "/tmp/gemini-shell-(random)/bin/x"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/tmp/socks/20956.sock", "/tmp/socks/(pid).sock"),
        ("/tmp/x-20956-20957", "/tmp/x-(pid)-20957"),
        ("/tmp/x20956", "/tmp/x20956"),
        ("/tmp/4711", "/tmp/4711"),
        ("/tmp/99.log", "/tmp/99.log"),
        ("/srv/2024.csv", "/srv/2024.csv"),
        ("/proc/20956/environ", "/proc/(pid)/environ"),
        ("/proc/20956/task/7/comm", "/proc/(pid)/task/(tid)/comm"),
        ("/proc/99/maps", "/proc/(pid)/maps"),
        ("/newroot/proc/20956/uid_map", "/newroot/proc/(pid)/uid_map"),
        ("/proc/1/environ", "/proc/1/environ"),
        ("/proc/20957/mem", "/proc/20957/mem"),
    ],
)
def test_a_process_is_one_of_the_run(path: str, shown: str) -> None:
    assert name_path(path, "write", processes={20956, 99, 2024}) == shown
    is_proc = "/proc/" in path
    assert name_path(path, "read", processes={20956, 99, 2024}) == (shown if is_proc else path)


def test_a_socket_that_becomes_a_file_is_made() -> None:
    path = "/tmp/01a1f405-2745-7593-937f-fad64de2a27b.sock"
    assert name_path(path, "bind") == "/tmp/(uuid).sock"
    assert name_path(path, "read") == path


def test_a_port_is_one_of_the_runs_own() -> None:
    ends = ["127.0.0.1:43211", "127.0.0.1:8080", "10.0.0.1:50123", "[::1]:43212"]
    for number, shown in (
        *((43211, "(port)"), (43212, "(port)")),
        *((8080, "8080"), (50123, "50123"), (43213, "43213")),
    ):
        path = f"/tmp/server-{number}.lock"
        assert name_path(path, "create", endpoints=ends) == f"/tmp/server-{shown}.lock"
        assert name_path(path, "read", endpoints=ends) == path


@pytest.mark.parametrize(
    ("served", "callers", "free_ports", "shown"),
    [
        ([43211], [50123], 1, {"127.0.0.1:(served)", "127.0.0.1:(port)"}),
        ([43211, 50051], [50123], 1, None),
        ([43211], [50123], 0, None),
        ([43211], [], 1, None),
        ([8080], [50123], 1, {"127.0.0.1:8080", "127.0.0.1:(port)"}),
    ],
)
def test_a_server_of_the_run_has_asked_for_any_port_and_was_come_to(
    served: list[int], callers: list[int], free_ports: int, shown: set[str] | None
) -> None:
    ends, came = ([f"127.0.0.1:{port}" for port in ports] for ports in (served, callers))
    found = make_names({}, endpoints=[*ends, *came], proven=ProvenNames(free_ports=free_ports))
    found.collect_proofs([], lambda _: ProvenNames(callers=came, free_ports=free_ports))
    assert found.endpoint_names == (shown or {*ends, *("127.0.0.1:(port)" for _ in came)})


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (WORKSPACE, "(run)/workspace"),
        (f"{WORKSPACE}/a", "(run)/workspace/a"),
        (f"{WORKSPACE}2/a", "/home/user/project/runs/(run)/workspace2/a"),
        (f"/newroot{WORKSPACE}/a", "/newroot/(run)/workspace/a"),
        ("/h/-home-user-project-runs-20261119-133539-952b64-workspace/x", "/h/(run)-workspace/x"),
        ("/h/home_user_project_runs_20261119_133539_952b64", "/h/(run)"),
        ("/h/%2Fhome%2Fuser%2Fproject%2Fruns%2F20261119-133539-952b64", "/h/(run)"),
        ("/var/log/20261119-133539-952b64.log", "/var/log/(run).log"),
        ("/h/home-user-project-runs", "/h/home-user-project-runs"),
        (FOLDER, "/home/user/project/runs/(run)"),
    ],
)
def test_the_runs_own_folder_is_found_in_every_form(path: str, shown: str) -> None:
    for ways in ([], ["read"], ["write"]):
        assert name_path(path, *ways) == shown


def test_a_short_name_of_a_run_may_be_a_word() -> None:
    path = "/srv/main/data"
    assert name_path(path, "mkdir", run_id="main", folder="/runs/main", workspace="/w") == path


@pytest.mark.parametrize("before", ["", "/newroot"])
def test_but_not_where_it_is_the_runs_own_folder(before: str) -> None:
    for path in ("/runs/main", "/runs/main/x"):
        shown = path.replace("main", "(run)")
        found = name_path(
            f"{before}{path}", "read", run_id="main", folder="/runs/main", workspace="/w"
        )
        assert found == f"{before}{shown}"


@pytest.mark.parametrize("top", ["/proc/self/fd", "/proc/thread-self/fd", "/dev/fd"])
def test_the_number_of_an_open_folder_means_nothing(top: str) -> None:
    uuid = "c9cf8bd6-1982-497c-a93b-ddea69ae9a93"
    behind, opened, here = f"{top}/15/{uuid}", f"/srv/{uuid}", f"{top}/7/{uuid}"
    found = make_names({behind: ["mkdir"], opened: ["read"], here: ["mkdir"]})
    places = {behind: {opened}, here: {f"{WORKSPACE}/{uuid}"}}
    found.collect_proofs(
        [],
        lambda asked: ProvenNames(open_folder_paths={path: places[path] for path in asked.behind}),
    )
    assert found.path_name(behind) == f"{top}/(fd)/(uuid)"
    assert found.path_name(opened) == "/srv/(uuid)"
    assert found.path_name(here) == f"{top}/(fd)/{uuid}", "in the workspace, a name is the user's"
    assert make_names({opened: ["read"]}).path_name(opened) == opened
    assert found.path_name(f"{top}/2") == f"{top}/2"


def test_a_day_is_left_out_where_the_run_made_what_lies_beneath() -> None:
    path = "/h/sessions/2026/11/19/s.jsonl"
    assert name_path(path, "create") == "/h/sessions/(day)/s.jsonl"
    assert name_path(path, "read") == path
    assert name_path(f"{WORKSPACE}/2026/11/19/s", "create") == "(run)/workspace/2026/11/19/s"


def test_the_form_that_fits_most_names_is_theirs() -> None:
    """Two of these begin with the same two letters, by chance."""
    sides = []
    for endings in (["ab3x9q2k", "zq81mn0p"], ["ab77qw1z", "k2k9x3p4"]):
        paths = {f"/tmp/x-{ending}": ["mkdir"] for ending in endings}
        sides.append(make_names(paths, proven=ProvenNames(private={*paths})))
        sides[-1].collect_proofs([], lambda asked: ProvenNames(private=asked.made))
    agree_on_names(sides)
    assert [side.path_names(side.private_paths) for side in sides] == [{"/tmp/x-(random)"}] * 2


@pytest.mark.parametrize(
    "ending",
    [
        *("monday", "claude", "script", "strings", "length", "February", "sha256", "FooBar"),
        *("foo_bar1", "20261119", "build1", "rhythm", "x86"),
    ],
)
def test_a_word_that_ends_a_name(ending: str) -> None:
    assert is_word_ending(ending)


@pytest.mark.parametrize(
    "ending", ["8AcE7p", "YPWnJl", "jrkfusb0", "x7kq2p", "3k3__f_i", "2761049158", "FxQabe"]
)
def test_no_word_that_ends_a_name(ending: str) -> None:
    assert not is_word_ending(ending)


# --- what no rule may do -------------------------------------------------------------------------

pieces = st.sampled_from(
    [
        *(rule.example for rule in RULES),
        *("a", "20956", "20956.sock", "tmp", "2026", "11", "19", "home", "é", "(pid)", "x-y_z.1"),
    ]
)
paths = st.lists(pieces, min_size=1, max_size=6).map("/".join)
ways = st.lists(st.sampled_from(["read", "write", "create", "exclusive", "mkdir", "rename_to"]))


@given(paths, st.sampled_from(["/srv/", "/home/user/", ""]))
def test_what_was_only_read_has_its_own_name(path: str, before: str) -> None:
    whole = f"{before}{path}"
    assert name_path(whole, "read", processes={20956}) == whole


@given(paths, ways, st.booleans())
def test_in_the_workspace_names_are_the_users(path: str, done: list[str], is_here: bool) -> None:
    """Whether it is a copy in the run's folder or the user's own."""
    root = "/srv/mine" if is_here else WORKSPACE
    found = name_path(f"{root}/{path}", *done, processes={20956}, workspace=root)
    assert found == f"{'/srv/mine' if is_here else '(run)/workspace'}/{path}"


def test_but_a_temporary_file_of_a_process_of_the_run_is_the_agents() -> None:
    path = f"{WORKSPACE}/deep/a.txt.tmp.20956.0ea42bd3f3b3"
    shown = "(run)/workspace/deep/a.txt.tmp.(pid).(random)"
    assert name_path(path, "create", "exclusive", processes={20956}) == shown
    assert name_path(path, "create", processes={4711}) == path.replace(FOLDER, "(run)")
    assert name_path(path, "read", processes={20956}) == path.replace(FOLDER, "(run)")


@given(st.lists(st.tuples(paths, ways), max_size=8))
def test_the_order_of_paths_does_not_matter(listed: list[tuple[str, list[str]]]) -> None:
    known = {f"/{path}": done for path, done in listed}
    forth, back = make_names(known, {20956}), make_names(known, {20956})
    assert [forth.path_name(path) for path in known] == [
        back.path_name(path) for path in reversed(known)
    ][::-1]
    assert forth.path_names(known) == back.path_names(known)
    assert forth.used == back.used


def test_a_path_of_any_depth() -> None:
    path = "/a" * 2000
    assert name_path(path, "create") == path


@pytest.mark.parametrize("name", ["\N{SUPERSCRIPT TWO}", "9" * 5000, f"x.tmp.{'9' * 5000}.abcdef"])
@pytest.mark.parametrize("folder", ["/srv", "/proc", WORKSPACE])
def test_what_is_no_number_of_a_process(folder: str, name: str) -> None:
    known = make_names({f"{folder}/{name}": ["create"]}, endpoints=[f"127.0.0.1:{name}"])
    assert known.path_name(f"{folder}/{name}").endswith(f"/{name}")
    assert known.endpoint_names == {f"127.0.0.1:{name}"}
