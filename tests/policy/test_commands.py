"""Policies against real sandboxes: what they promise, and what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stream.boundary.descriptors import find_catalogs
from stream.boundary.modes import FOLDER, find_modes, load_mode
from stream.boundary.policies import check_capabilities
from tests.cli.command import Done, Place
from tests.lock.records import mode_record, write_records
from tests.sandboxes import needs_sandbox

SETTINGS = Path(__file__).parents[1] / "data" / "policy"
GIT = "cap_fs_write_git_metadata"
NETWORK = ("cap_net_outbound_any", "cap_net_outbound_allowed", "cap_net_metadata", "cap_net_dns")


def write(place: Place, name: str, text: str) -> Path:
    path = place.root / name
    path.write_text(text)
    return path


def write_mode(place: Place, name: str, command: list[str], **more: Any) -> Path:
    lines = [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    lines += [f'title = "{name}"', f"command = {json.dumps(command)}"]
    return write(place, f"{name}.toml", "\n".join(lines) + "\n")


def contradictions(done: Done, kind: str) -> dict[str, int]:
    """Each probe with such a finding, and the line that promises."""
    lines = [line for line in done.err.splitlines() if f" {kind}: " in line]
    found = {}
    for line in lines:
        place, _, message = line.partition(f"{kind}: ")
        found[message.split()[0]] = int(place.split(": ")[0].rpartition(":")[2])
    return found


@needs_sandbox("srt")
def test_what_srt_settings_promise_and_do_not_hold(place: Place) -> None:
    """The relay in an allowed domain gets out, sockets are closed whatever is allowed."""
    settings = write(
        place,
        "srt.json",
        '{"network": {\n'
        '"allowedDomains": ["allowed.example.test", "*.allowed.example.test"],\n'
        '"deniedDomains": [],\n'
        '"allowUnixSockets": ["/"]},\n'
        '"filesystem": {"denyRead": [],\n"allowWrite": ["."],\n"denyWrite": []}}\n',
    )
    mode = write_mode(place, "mine", ["srt", "-s", str(settings), "{probe}"], sandbox="srt")
    findings = place.root / "findings.ndjson"
    probes = (
        *("egress_connect_relay", "egress_http_allowed", "egress_http_denied"),
        *("net_unix_socket_outside", "fs_outside_workspace", "fs_workspace_write_create"),
    )
    words = ("--mode", mode, "--policy", settings, "--probe", *probes, "--findings", findings)
    done = place.stream("matrix", *words)
    assert done.code == 1, done.err
    assert contradictions(done, "fail-open") == {"egress_connect_relay": 2}
    assert contradictions(done, "fail-closed") == {"net_unix_socket_outside": 4}
    assert "(arrive:connect was seen on the host)" in done.err
    assert "stream: policy: 1 fail-open, 1 fail-closed, " in done.err
    assert "; 4 as promised" in done.err
    # The records are those of a matrix without a policy.
    assert place.stream("validate", "-", data=done.out).code == 0
    assert done.ids == [*probes, *probes]
    written = [json.loads(line) for line in findings.read_text().splitlines()]
    assert [one["rule"] for one in written[:2]] == ["policy.fail-open", "policy.fail-closed"]
    assert [(one["source"], one["line"]) for one in written[:2]] == [
        (str(settings), 2),
        (str(settings), 4),
    ]
    assert place.stream("validate", findings).code == 0


@needs_sandbox("srt")
def test_git_is_writable_in_srt_unless_it_is_denied(place: Place) -> None:
    own = write(place, "own.toml", f'[promises]\n{GIT} = "deny"\n')
    words = ("--mode", "srt-workspace", "--policy", own, "--cap", GIT)
    done = place.stream("matrix", *words)
    assert done.code == 1, done.err
    assert contradictions(done, "fail-open") == {"fs_git_metadata_write_guard": 2}
    assert "write:git was seen on the host" in done.err


@pytest.mark.writes_tmp
@needs_sandbox("codex")
def test_codex_lets_out_what_its_settings_allow(place: Place) -> None:
    options = ["sandbox_mode=workspace-write", "sandbox_workspace_write.network_access=true"]
    words = [word for option in options for word in ("-c", option)]
    command = ["codex", "sandbox", *words, "--", "{probe}"]
    lines = [f'title = "codex"\nalone = true\ncommand = {json.dumps(command)}']
    lines += ["[env]", 'CODEX_HOME = "{state}/codex"', ""]
    mode = write(place, "mine.toml", "\n".join(lines))
    settings = write(
        place,
        "config.toml",
        'sandbox_mode = "workspace-write"\n[sandbox_workspace_write]\nnetwork_access = true\n',
    )
    caps = (*NETWORK, GIT, "cap_fs_write_workspace_tree")
    done = place.stream(
        *("matrix", "--mode", mode, "codex-workspace-write", "--policy", settings, "--cap", *caps)
    )
    assert done.code == 0, done.err
    assert contradictions(done, "fail-open") == {}
    closed = contradictions(done, "fail-closed")
    assert {"egress_tcp_address", "egress_dns_direct", "egress_metadata_address"} <= {*closed}
    assert {*closed.values()} == {3}
    assert " in mine did not get through" not in done.err
    assert done.err.count("in codex-workspace-write did not get through") == len(closed)


@needs_sandbox("bwrap")
def test_claude_settings_around_another_sandbox(place: Place) -> None:
    settings = SETTINGS / "claude.json"
    caps = ("cap_net_unix_socket", "cap_fs_read_home_keys", GIT, "cap_net_metadata")
    done = place.stream(
        *("matrix", "--mode", "bwrap-workspace", "--policy", settings, "--cap", *caps)
    )
    assert done.code == 1, done.err
    found = contradictions(done, "fail-open")
    assert found == {
        "fs_git_metadata_write_guard": 15,
        "fs_home_keys_read": 13,
        "fs_planted_key_read": 13,
        "fs_ssh_dir_metadata_read": 13,
        "egress_metadata_address": 29,
        "net_unix_socket_outside": 21,
    }
    assert "cap_net_metadata is promised ask, which counts as deny" in done.err
    lines = [line for line in done.err.splitlines() if "claude.json:" in line]
    ranks = [("fail-open:" in line, "untold:" in line) for line in lines]
    assert ranks == sorted(ranks, reverse=True), "what got through comes first"
    nothing = "Bash(curl:*): it says nothing about a capability that is measured"
    assert f"claude.json:16: warning: permissions.deny: {nothing}" in done.err


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("bwrap-offline", marks=needs_sandbox("bwrap")),
        pytest.param("bwrap-ro", marks=needs_sandbox("bwrap")),
        pytest.param("codex-strict", marks=[needs_sandbox("codex"), pytest.mark.writes_tmp]),
        "landlock-workspace",
        "unshare-net",
    ],
)
def test_a_mode_keeps_what_its_own_file_promises(place: Place, name: str) -> None:
    policy = FOLDER / f"{name}.toml"
    caps = [one.capability for one in load_mode(policy).promises]
    done = place.stream("matrix", "--mode", name, "--policy", policy, "--cap", *caps)
    assert done.code == 0, done.err
    assert "policy: 0 fail-open, 0 fail-closed, " in done.err
    kept = int(done.err.partition(" untold; ")[2].split()[0])
    assert kept > 20


def test_without_modes_the_surroundings_are_judged(place: Place) -> None:
    caps = ("cap_fs_write_workspace_tree", "cap_proc_fork_and_child_spawn")
    promises = dict(zip(caps, ("allow", "deny"), strict=True))
    policy = write(place, "own.json", json.dumps({"promises": promises}, indent=0))
    done = place.stream("matrix", "--policy", policy, "--cap", *caps)
    assert done.code == 1, done.err
    found = contradictions(done, "fail-open")
    assert {"proc_fork_child_spawn", "proc_signal_own_child"} <= {*found}
    assert {*found.values()} == {4}
    assert {one["schema_version"] for one in done.records} == {"boundary_event_v1"}


def test_a_lock_is_judged_as_well(place: Place) -> None:
    policy = write(place, "own.toml", '[promises]\ncap_fs_write_outside_workspace = "deny"\n')
    opened = write_records(place.root / "a.ndjson", mode_record(outcome="open"))
    closed = write_records(place.root / "b.ndjson", mode_record())
    for records, code in ((opened, 1), (closed, 0)):
        done = place.stream("lock", records, "--policy", policy)
        assert done.code == code, done.err
        assert done.out.startswith(b"lock 1\n")
        assert contradictions(done, "fail-open") == ({"fs_outside_workspace": 2} if code else {})
        lock = place.root / f"{records.stem}.lock"
        lock.write_bytes(done.out)
        again = place.stream("lock", "--check", lock, records, "--policy", policy)
        assert again.code == code, again.err
        assert "stream: policy: " in again.err
    assert place.stream("lock", opened).code == 0


@needs_sandbox("bwrap")
def test_a_canary_names_the_line_that_promises(place: Place) -> None:
    policy = write(
        place,
        "own.toml",
        '[promises]\ncap_fs_read_home_keys = "deny"\ncap_net_unix_socket = "allow"\n',
    )
    done = place.stream("canary", "--mode", "bwrap-offline", "--policy", policy)
    assert done.code == 1, done.err
    said = 'own.toml:2 promises deny: cap_fs_read_home_keys = "deny"'
    assert f"GOT THROUGH: a private key in the home folder was read; {policy.parent}/{said}" in (
        done.err
    )
    assert "let through as it promises: net_unix_socket_outside" in done.err
    assert place.stream("canary", "--mode", "bwrap-offline").code == 0


BAD = {
    '[promises]\ncap_fs_write_tmp = "deny"\n': ":2: unknown capability: cap_fs_write_tmp",
    '{"permissions": {"allow": ["Read(x)"],\n"deny": ["Read(x)"]}}': ":2: the policy contradicts",
}


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("command", ["matrix", "canary", "lock"])
def test_a_policy_that_cannot_be_used_ends_it(place: Place, command: str, text: str) -> None:
    policy = write(place, "policy", text)
    words = {"canary": ["--mode", "baseline"], "lock": ["--mode", "baseline"]}.get(command, [])
    done = place.stream(command, *words, "--policy", policy)
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith(f"stream: {policy}{BAD[text]}"), done.err


def test_wrong_use_is_refused(place: Place) -> None:
    policy = write(place, "own.toml", '[promises]\ncap_net_dns = "deny"\n')
    for words, said in (
        (("--raw", "--policy", policy), "--raw and --make-plan do not make"),
        (("--findings", "f"), "--findings goes with --policy"),
        (("--policy", policy, "--findings", policy, "--force"), "the same file as"),
    ):
        done = place.stream("matrix", *words)
        assert (done.code, done.out) == (2, b"")
        assert said in done.err, done.err


def test_modes_promise_known_capabilities(place: Place) -> None:
    known = find_catalogs(None).capability_ids()
    modes = find_modes()
    assert sum(bool(mode.promises) for mode in modes) > 5
    for mode in modes:
        check_capabilities(mode.promises, known)
    text = 'title = "t"\ncommand = ["{probe}"]\n[promises]\ncap_net_dsn = "deny"\n'
    done = place.stream("matrix", "--mode", write(place, "typo.toml", text))
    assert (done.code, done.out) == (2, b"")
    assert "typo.toml:4: unknown capability: cap_net_dsn (did you mean cap_net_dns?)" in done.err
