"""Policies: what settings of each kind promise, and the errors that name a line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.boundary.descriptors import find_catalogs
from stream.boundary.policies import read_policies
from stream.boundary.policy_rules import TARGETS, covers, places_in_slots
from stream.errors import InputError
from stream.records.policies import Policy

SETTINGS = Path(__file__).parents[1] / "data" / "policy"
PLACES = places_in_slots("/home/dev")
KNOWN = find_catalogs(None).capability_ids()


def read(*paths: Path) -> Policy:
    return read_policies([*map(str, paths)], PLACES, KNOWN)


def read_text(folder: Path, text: str, name: str = "policy") -> Policy:
    path = folder / name
    path.write_text(text)
    return read(path)


def promises(policy: Policy) -> dict[str, tuple[str, int]]:
    return {one.capability: (one.promise, one.setting.line) for one in policy.promises}


def left_over(policy: Policy) -> list[tuple[str, int]]:
    return [(one.name, one.setting.line) for one in policy.unmeasured]


def test_every_target_is_of_a_known_capability() -> None:
    assert {name for targets in TARGETS.values() for name in targets} <= {*KNOWN}


def test_the_settings_of_claude() -> None:
    policy = read(SETTINGS / "claude.json")
    assert promises(policy) == {
        "cap_fs_read_home_keys": ("deny", 13),
        "cap_fs_read_workspace_tree": ("allow", 26),
        "cap_fs_read_git_metadata": ("allow", 26),
        "cap_fs_read_system_roots": ("allow", 26),
        "cap_fs_write_workspace_tree": ("allow", 21),
        "cap_fs_write_git_hooks": ("deny", 15),
        "cap_fs_write_git_metadata": ("deny", 15),
        "cap_fs_write_outside_workspace": ("deny", 25),
        "cap_fs_write_home_dotfiles": ("deny", 25),
        "cap_fs_write_system_roots": ("deny", 25),
        "cap_fs_write_temp": ("allow", 25),
        "cap_net_outbound_allowed": ("allow", 9),
        "cap_net_outbound_any": ("ask", 29),
        "cap_net_metadata": ("ask", 29),
        "cap_net_unix_socket": ("deny", 21),
    }
    assert left_over(policy) == [
        ("permissions.deny: Read(./.env)", 14),
        ("permissions.deny: Bash(curl:*)", 16),
        ("permissions.deny: mcp__files__*", 16),
        ("sandbox.filesystem.denyRead: ~/.aws/credentials", 26),
        ("permissions.ask: Bash(git push:*)", 11),
        ("permissions.allow: Bash(npm run test:*)", 7),
        ("permissions.allow: Edit(./src/**)", 8),
        ("additionalDirectories: ../docs", 18),
        ("sandbox.filesystem.allowWrite: ~/.kube", 25),
        ("sandbox.network.allowedDomains: github.com", 29),
        ("sandbox.network.allowedDomains: *.npmjs.org", 29),
        ("$schema", 2),
        ("model", 3),
        ("permissions.defaultMode", 5),
        ("sandbox.excludedCommands", 23),
        ("sandbox.network.allowLocalBinding", 30),
        ("hooks", 33),
    ]


def test_the_settings_of_srt() -> None:
    policy = read(SETTINGS / "srt.json")
    assert promises(policy) == {
        "cap_fs_read_home_keys": ("deny", 10),
        "cap_fs_read_workspace_tree": ("allow", 9),
        "cap_fs_read_git_metadata": ("allow", 9),
        "cap_fs_read_system_roots": ("allow", 9),
        "cap_fs_write_workspace_tree": ("allow", 13),
        "cap_fs_write_git_hooks": ("deny", 14),
        "cap_fs_write_git_metadata": ("deny", 14),
        "cap_fs_write_outside_workspace": ("deny", 13),
        "cap_fs_write_home_dotfiles": ("deny", 13),
        "cap_fs_write_system_roots": ("deny", 13),
        "cap_fs_write_temp": ("allow", 13),
        "cap_net_outbound_allowed": ("allow", 3),
        "cap_net_outbound_any": ("deny", 3),
        "cap_net_metadata": ("deny", 4),
        "cap_net_unix_socket": ("allow", 5),
        "cap_proc_user_namespaces": ("deny", 19),
    }
    assert left_over(policy) == [
        ("filesystem.denyRead: /home/dev/.aws", 11),
        ("credentials.files: ~/.netrc", 17),
        ("filesystem.denyWrite: .env", 14),
        ("network.allowedDomains: *.allowed.example.test", 3),
        ("network.allowedDomains: github.com:443", 3),
        ("network.allowLocalBinding", 6),
    ]


def test_the_settings_of_codex() -> None:
    policy = read(SETTINGS / "codex.toml")
    assert promises(policy) == {
        "cap_fs_read_home_keys": ("allow", 12),
        "cap_fs_read_workspace_tree": ("allow", 12),
        "cap_fs_read_git_metadata": ("allow", 12),
        "cap_fs_read_system_roots": ("allow", 12),
        "cap_fs_write_workspace_tree": ("allow", 12),
        "cap_fs_write_git_hooks": ("deny", 12),
        "cap_fs_write_git_metadata": ("deny", 12),
        "cap_fs_write_outside_workspace": ("deny", 12),
        "cap_fs_write_home_dotfiles": ("deny", 12),
        "cap_fs_write_temp": ("deny", 20),
        "cap_net_outbound_allowed": ("allow", 19),
        "cap_net_outbound_any": ("allow", 19),
        "cap_net_metadata": ("allow", 19),
        "cap_net_dns": ("allow", 19),
    }
    assert left_over(policy) == [
        ("sandbox_workspace_write.writable_roots: /opt/cache", 22),
        ("sandbox_workspace_write.writable_roots: /usr", 22),
        ("model", 1),
        ("approval_policy", 2),
        ("instructions", 6),
        ("sandbox_mode", 9),
        ("profiles.work.model_reasoning_effort", 13),
        ("profiles.ci", 15),
        ("projects", 27),
    ]


@pytest.mark.parametrize(
    ("text", "writes", "connects"),
    [
        ('sandbox_mode = "read-only"', "deny", "deny"),
        ('sandbox_mode = "workspace-write"', "allow", "deny"),
        ('sandbox_mode = "danger-full-access"', "allow", "allow"),
        ('default_permissions = ":workspace"', "allow", "deny"),
        (
            'sandbox_mode = "read-only"\nsandbox_workspace_write.network_access = true',
            "deny",
            "deny",
        ),
        (
            'sandbox_mode = "workspace-write"\nsandbox_workspace_write = { network_access = true }',
            "allow",
            "allow",
        ),
    ],
)
def test_the_sandbox_modes_of_codex(tmp_path: Path, text: str, writes: str, connects: str) -> None:
    found = promises(read_text(tmp_path, text))
    assert found["cap_fs_write_workspace_tree"][0] == writes
    assert found["cap_net_outbound_any"][0] == connects


def test_a_profile_that_is_not_built_in_promises_nothing(tmp_path: Path) -> None:
    policy = read_text(tmp_path, 'default_permissions = "mine"\n[permissions.mine]\nx = 1\n')
    assert promises(policy) == {}
    assert left_over(policy) == [("default_permissions", 1), ("permissions", 2)]


def test_a_sandbox_that_is_not_enabled_promises_nothing(tmp_path: Path) -> None:
    text = '{"sandbox": {"enabled": false,\n"filesystem": {"denyRead": ["~/.ssh"]}}}'
    policy = read_text(tmp_path, text)
    assert promises(policy) == {}
    assert left_over(policy) == [("sandbox.filesystem", 2)]
    # Another file may enable it: then only what the settings name is promised.
    policy = read_text(tmp_path, text.replace('"enabled": false,', ""))
    assert promises(policy) == {"cap_fs_read_home_keys": ("deny", 2)}


@pytest.mark.parametrize(
    ("more", "promise"),
    [
        ("", "ask"),
        (', "allowUnsandboxedCommands": true', "ask"),
        (', "allowUnsandboxedCommands": false', "deny"),
    ],
)
def test_what_may_leave_the_sandbox_asks(tmp_path: Path, more: str, promise: str) -> None:
    found = promises(read_text(tmp_path, '{"sandbox": {"enabled": true%s}}' % more))  # noqa: UP031
    assert found["cap_fs_write_outside_workspace"] == (promise, 1)
    assert found["cap_net_unix_socket"] == (promise, 1)
    assert found["cap_fs_write_workspace_tree"] == ("allow", 1)
    assert found["cap_net_outbound_any"] == ("ask", 1)


def test_permissions_promise_without_a_sandbox(tmp_path: Path) -> None:
    text = '{"permissions": {"deny": ["Read(~/.ssh/**)",\n"Write"],\n"ask": ["WebFetch"]}}'
    found = promises(read_text(tmp_path, text))
    assert found["cap_fs_read_home_keys"] == ("deny", 1)
    assert found["cap_fs_write_outside_workspace"] == ("deny", 2)
    assert found["cap_net_outbound_any"] == ("ask", 3)
    assert "cap_fs_read_workspace_tree" not in found


def test_a_rule_for_a_part_promises_nothing_of_the_whole(tmp_path: Path) -> None:
    policy = read_text(tmp_path, '{"permissions": {"deny": ["Edit(~/.bashrc)"]}}')
    assert promises(policy) == {}
    (left,) = policy.unmeasured
    assert "it decides about no measured capability alone" in left.reason


def test_settings_that_disable_the_rules_of_files(tmp_path: Path) -> None:
    text = '{"filesystem": {"disabled": true,\n"denyRead": ["~/.ssh"], "allowWrite": []}}'
    found = promises(read_text(tmp_path, text))
    assert {*found.values()} == {("allow", 1)}
    assert "cap_fs_write_home_dotfiles" in found


@pytest.mark.parametrize(
    "text",
    [
        '[promises]\ncap_fs_write_temp = "deny"\ncap_net_dns = "ask"\n',
        '{"promises": {\n"cap_fs_write_temp": "deny",\n"cap_net_dns": "ask"}}',
        'title = "a mode"\n[promises]\ncap_fs_write_temp = "deny"\ncap_net_dns = "ask"\n',
    ],
)
def test_a_policy_of_ones_own(tmp_path: Path, text: str) -> None:
    policy = read_text(tmp_path, text)
    found = promises(policy)
    first = found["cap_fs_write_temp"][1]
    assert found == {"cap_fs_write_temp": ("deny", first), "cap_net_dns": ("ask", first + 1)}
    assert "cap_fs_write_temp" in policy.promises[0].setting.text
    assert left_over(policy) == []


BAD = {
    '[promises]\ncap_fs_write_tmp = "deny"\n': ":2: unknown capability: cap_fs_write_tmp"
    " (did you mean cap_fs_write_temp?)",
    '{"promises": {\n"cap_x": "deny"}}': ":2: unknown capability: cap_x (",
    '[promises]\n\ncap_net_dns = "no"\n': ":3: promises.cap_net_dns: expected one of allow, deny",
    "[promises]\ncap_net_dns = true\n": ":2: promises.cap_net_dns: expected a text",
    "promises = 3\n": ":1: promises: expected a table",
    '[promises]\ncap_net_dns = "deny"\n\ncap_net_dns = "allow"\n': ":4: promises.cap_net_dns: it"
    " stands in line 2 as well",
    '{"promises": {"cap_net_dns": "deny",\n"cap_net_dns": "allow"}}': ":2: promises.cap_net_dns: it"
    " stands in line 1 as well",
    '{"permissions": {"allow": ["Edit(./src/**)"],\n"deny": ["Read(x)", "Edit(src)"]}}': ":2: the"
    " policy contradicts itself: Edit(src) is denied here, and allowed in",
    '{"permissions": {"allow": ["Bash(ls:*)"],\n"deny": ["Bash(ls:*)"]}}': ":2: the policy"
    " contradicts itself: Bash(ls:*) is denied here, and allowed in",
    '{"filesystem": {"allowWrite": ["."],\n"denyWrite": ["./"]}}': ":2: the policy contradicts"
    " itself: ./ is denied here, and allowed in",
    '{"network": {"allowedDomains": ["a.test"],\n\n"deniedDomains": ["a.test"]}}': ":3: the policy"
    " contradicts itself: a.test is denied here, and allowed in",
    '{"permissions": {"deny": "Read"}}': ":1: permissions.deny: expected a list",
    '{"permissions": {"deny": [\n3]}}': ":2: permissions.deny: expected a text",
    '{"permissions": {"deny": [\n"Read(x"]}}': ":2: permissions.deny: expected a rule as",
    '{"permissions": [],\n"sandbox": 1}': ":1: permissions: expected a table",
    '{"sandbox": {\n"enabled": "yes"}}': ":2: sandbox.enabled: expected true or false",
    '{"filesystem": {"allowWrite": [\n{"literal": true}]}}': ":2: filesystem.allowWrite: expected a"
    " text, or a table with a path",
    'model = "x"\nsandbox_mode = "none"\n': ":2: sandbox_mode: expected one of read-only,",
    'model = "x"\n': ":1: not a policy",
    '{"model": "x"}': ":1: not a policy",
    "": ":1: not a policy",
    '{"promises": {\n': ":2: expecting property name",
    "[promises]\n= 3\n": ":2: invalid statement",
    '{"a": 1' + "0" * 5000 + "}": ":1: ",
    "[" * 5000: ":1: ",
}


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_used_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_text(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path}/policy{BAD[text]}"), caught.value


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    for data in (b"\n\xff", b"#" * ((1 << 20) + 1)):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"policy:2: not UTF-8|policy: larger than"):
            read(path)
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none")


def test_two_policies_that_contradict_each_other_name_both_lines(tmp_path: Path) -> None:
    one, other = tmp_path / "one.toml", tmp_path / "other.json"
    one.write_text('[promises]\ncap_fs_read_home_keys = "allow"\n')
    other.write_text('{"permissions": {\n"deny": ["Read(~/.ssh/**)"]}}')
    expected = f"{other}:2: the policy contradicts itself: cap_fs_read_home_keys is denied here,"
    for paths in ((one, other), (other, one)):
        with pytest.raises(InputError) as caught:
            read(*paths)
        assert str(caught.value).startswith(f"{expected} and allowed in {one}:2: ")
    one.write_text('[promises]\ncap_fs_read_home_keys = "ask"\n')
    assert promises(read(one, other)) == promises(read(other, one))
    assert promises(read(one, other))["cap_fs_read_home_keys"] == ("deny", 2)


@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("/", True),
        ("/home/**", True),
        ("/home/dev/.stream-run/0/home", True),
        ("/home/dev/.stream-run/0/home/.ssh/id_*", True),
        ("/home/dev/.stream-run/*/home/.s?h", True),
        ("/**/id_ed25519", True),
        ("/home/d", False),
        ("/home/*/.ssh", False),
        ("/home/dev/.stream-run/0/home/.ssh/id_rsa", False),
    ],
)
def test_a_pattern_covers_what_lies_in_it(pattern: str, covered: bool) -> None:
    assert covers("read", pattern, f"{PLACES.home}/.ssh/id_ed25519") is covered


@pytest.mark.parametrize(
    ("text", "root", "path"),
    [
        (".", "/", PLACES.workspace),
        ("./**", "/", PLACES.workspace),
        ("src/", "/", f"{PLACES.workspace}/src"),
        ("../outside/*", "/", PLACES.outside),
        ("~", "/", PLACES.home),
        ("~/.ssh/**", "/", f"{PLACES.home}/.ssh"),
        ("/", "/", "/"),
        ("/etc", "/", "/etc"),
        ("/etc", PLACES.workspace, f"{PLACES.workspace}/etc"),
        ("//etc/**", PLACES.workspace, "/etc"),
        ("//**", PLACES.workspace, "/**"),
    ],
)
def test_the_paths_of_settings(text: str, root: str, path: str) -> None:
    assert PLACES.path(text, root=root) == path


_RULES = st.lists(
    st.tuples(
        st.sampled_from(["allow", "ask", "deny"]),
        st.sampled_from(["Read", "Edit", "Read(~/.ssh/**)", "Edit(./**)", "Edit(~/**)", "Bash(x)"]),
    ),
    max_size=8,
)


@given(_RULES)
def test_a_rule_that_denies_goes_first_and_none_is_lost(rules: list[tuple[str, str]]) -> None:
    value: dict[str, list[str]] = {"allow": [], "ask": [], "deny": []}
    for promise, text in rules:
        value[promise].append(text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps({"permissions": value}, indent=1))
        if {*value["allow"]} & {*value["deny"]}:
            with pytest.raises(InputError, match="contradicts itself"):
                read(path)
            return
        policy = read(path)
    for one in policy.promises:
        assert one.setting.text.strip('"') in value[one.promise]
    if "Edit(./**)" in value["deny"]:
        assert promises(policy)["cap_fs_write_workspace_tree"][0] == "deny"
    told = {one.setting.text.strip('"') for one in policy.promises}
    told |= {one.name.partition(": ")[2] for one in policy.unmeasured}
    assert {text for _, text in rules} <= told


_KEYS = [
    *("permissions", "allow", "deny", "ask", "additionalDirectories", "sandbox", "enabled"),
    *("filesystem", "disabled", "allowWrite", "denyRead", "credentials", "files", "path"),
    *("network", "allowedDomains", "allowAllUnixSockets", "promises", "cap_net_dns", "x"),
]
_TEXTS = st.sampled_from(
    ["Read", "Edit(**", "Edit(*?[)", "~", "//", "", "*", "deny", "a/../..", ":"]
)
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(_KEYS), _ANY, min_size=1))
def test_settings_of_any_shape_are_read_or_refused_with_a_line(value: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps(value, indent=1))
        lines = len(path.read_text().splitlines())
        try:
            policy = read(path)
        except InputError as error:
            place = str(error).partition(": ")[0]
            assert 1 <= int(place.rpartition(":")[2]) <= lines
            return
    settings = [one.setting for one in policy.promises]
    settings += [one.setting for one in policy.unmeasured]
    assert all(1 <= setting.line <= lines for setting in settings)
    assert settings or not any(value.values()), "nothing is ignored silently"
