"""stream gate: each rule is found where it alone is broken, with its place."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stream.boundary.scripts import Script
from stream.matrix import gate
from tests.cli.command import STREAM, Done, Place, write_script

GOOD = """#!/usr/bin/env bash
# A probe that keeps the whole contract.
set -euo pipefail
probe_name="NAME"
primary_capability_id="cap_fs_write_temp"

"${BASH_SOURCE[0]%/*}/../bin/emit-record" \\
  --run-mode "$FENCE_RUN_MODE" \\
  --probe-name "$probe_name" \\
  --probe-version "1" \\
  --primary-capability-id "$primary_capability_id" \\
  --command ":" \\
  --category "fs" \\
  --verb "write" \\
  --target "here" \\
  --status "denied" \\
  --secondary-capability-id "cap_fs_write_outside_workspace" \\
  --secondary-capability-id "cap_fs_write_system_roots" \\
  --errno "EACCES" \\
  --raw-exit-code "1" \\
  --operation-arg "a" "b" \\
  --operation-arg "c" "d" \\
  --payload-raw-field "e" "f"
"""
HELPER = '"${BASH_SOURCE[0]%/*}/../bin/emit-record" \\\n'
CAPABILITY = 'primary_capability_id="cap_fs_write_temp"'
MODE = '--run-mode "$FENCE_RUN_MODE"'
REQUIRED = {
    "--run-mode": '"$FENCE_RUN_MODE"',
    "--probe-name": '"$probe_name"',
    "--probe-version": '"1"',
    "--primary-capability-id": '"$primary_capability_id"',
    "--command": '":"',
    "--category": '"fs"',
    "--verb": '"write"',
    "--target": '"here"',
    "--status": '"denied"',
}
Rule = tuple[str, str, str, str]


def make_required_rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for flag, value in REQUIRED.items():
        name, message = flag.strip("-").replace("-", "_"), f"Missing required flag: {flag}"
        given = f"  {flag} {value} \\\n"
        rules[f"missing_{name}"] = (given, "", "bad-emission", message)
        rules[f"empty_{name}"] = (given, f'  {flag} "" \\\n', "bad-emission", message)
    return rules


#: probe -> (what is replaced, by what, the rule, what its message holds)
STATIC: dict[str, Rule] = {
    "shebang": ("#!/usr/bin/env bash", "#!/bin/bash", "shebang", "#!/usr/bin/env bash"),
    "shebang_space": ("env bash\n", "env bash \n", "shebang", "first line"),
    "strict_missing": ("set -euo pipefail\n", "", "strict-mode", "set -euo pipefail"),
    "strict_late": ("set -euo pipefail\n", ":\nset -euo pipefail\n", "strict-mode", "first"),
    "strict_less": ("set -euo pipefail", "set -eu", "strict-mode", "first command"),
    "syntax": ('"f"\n', '"f"\nif true; then\n', "syntax", "bash cannot parse it"),
    "name_wrong": ('"NAME"', '"other"', "probe-name", "probe_name is other"),
    "name_computed": ('probe_name="NAME"', 'x="NAME"\nprobe_name=$x', "probe-name", "literal"),
    "capability_none": (
        CAPABILITY,
        'primary_capability_id="${X-cap_fs_write_temp}"',
        "capability",
        "not assigned",
    ),
    "capability_odd": ("cap_fs_write_temp", "cap_nope", "capability", "cap_nope is not in"),
    "needs_odd": (f"{CAPABILITY}\n", f'{CAPABILITY}\nneeds="target"\n', "needs", "is target, wh"),
    "needs_computed": (
        f"{CAPABILITY}\n",
        f"{CAPABILITY}\nneeds=${{X-targets}}\n",
        "needs",
        "literal: none",
    ),
    "effect_odd": (f"{CAPABILITY}\n", f"{CAPABILITY}\neffect=write:x\n", "effect", "is write:x,"),
    "mode_written": ('"$FENCE_RUN_MODE"', '"baseline"', "run-mode", "is written out"),
    "mode_bare": (MODE, "--run-mode baseline", "run-mode", "FENCE_RUN"),
    "mode_quoted": (MODE, '"--run-mode" "baseline"', "run-mode", "written out"),
    "mode_ansi": (MODE, "--run-mode $'baseline'", "run-mode", "written out"),
    "mode_below": (MODE, "--run-mode \\\n'baseline'", "run-mode", "written out"),
    "mode_computed": (MODE, '--run-mode "$(echo baseline)"', "run-mode", "written out"),
    "mode_computed_bare": (MODE, "--run-mode $(echo baseline)", "run-mode", "written out"),
    "mode_listed": (
        f"{HELPER}  {MODE}",
        f'mode=(\n  --run-mode\n  baseline\n)\n{HELPER}  "${{mode[@]}}"',
        "run-mode",
        "written out",
    ),
    "mode_changed": (
        f"{CAPABILITY}\n\n",
        f"{CAPABILITY}\nFENCE_RUN_MODE=baseline\n",
        "run-mode",
        "written out",
    ),
    "mode_kept": (
        f"{CAPABILITY}\n\n{HELPER}  {MODE}",
        f'{CAPABILITY}\nmode="baseline"\n{HELPER}  --run-mode "$mode"',
        "run-mode",
        "written out",
    ),
}
DYNAMIC: dict[str, Rule] = {
    **make_required_rules(),
    "wrong_name": ('--probe-name "$probe_name"', "--probe-name x", "wrong-cell", "probe x"),
    "wrong_mode": ('"$FENCE_RUN_MODE"', '"${X-other}"', "wrong-cell", "mode other"),
    "wrong_capability": (
        '"$primary_capability_id" \\', "cap_fs_write_sysfs \\", "wrong-cell", "cap_fs_write_sysfs",
    ),
    "secondary_odd": ("cap_fs_write_outside_workspace", "cap_no", "bad-emission", "cap_no"),
    "status_odd": ('--status "denied"', '--status "ok"', "bad-emission", "Unknown status: ok"),
    "exit_code_odd": ('--raw-exit-code "1"', '--raw-exit-code "x"', "bad-emission", "integer"),
    "flag_unknown": ("--errno", "--error-number", "bad-emission", "Unknown flag: --error-number"),
    "flag_repeated": ("--errno", '--errno "EPERM" --errno', "repeated-flag", "--errno is given 2"),
    "flag_alias": ('--command ":"', "--command : --probe-id NAME", "repeated-flag", "--probe-name"),
    "args_odd": ('--operation-arg "a" "b"', "--operation-args '[1]'", "bad-emission", "object"),
    "args_broken": ('--operation-arg "a" "b"', "--operation-args '{'", "bad-emission", "malformed"),
    "payload_odd": ('--payload-raw-field "e" "f"', "--payload-raw 7", "bad-emission", "object"),
    "payload_large": (
        '"e" "f"', '"e" "$(printf %5000s)"', "size", "payload.raw is 5",
    ),
    "args_large": ('"a" "b"', '"a" "$(printf %5000s)"', "size", "operation.args is 5"),
    "noise": ("cap_fs_write_temp\"\n", "cap_fs_write_temp\"\necho hello\n", "noise", "stdout"),
    "exit_status": ('"f"\n', '"f"\nexit 7\n', "exit-status", "status 7"),
    "two_calls": ('"f"\n', f'"f"\n{HELPER} --x >/dev/null\n', "emit-calls", "called 2 times"),
    "no_emit": (HELPER, ": \\\n", "no-record", "wrote no record"),
    "no_call": (HELPER, "STREAM_EMIT_LOG= " + HELPER, "emit-calls", "called 0 times"),
    "left_process": (
        '"f"\n', '"f"\nsetsid perl -e "sleep 1000" "$TMPDIR" &\n', "left-processes", "perl",
    ),
    "left_file": ("set -euo pipefail\n", "set -euo pipefail\n: >left\n", "leftovers", "left (0 b"),
    "left_folder": ("pipefail\n", "pipefail\nmkdir left\n", "leftovers", "left/"),
    "left_change": ("pipefail\n", "pipefail\necho >>README.md\n", "leftovers", "README.md"),
    "left_at_home": ("pipefail\n", "pipefail\n: >~/left\n", "leftovers", "home/left (0 b"),
    "left_hook": ("pipefail\n", "pipefail\n: >.git/hooks/h\n", "leftovers", ".git/hooks/h"),
    "denial": ('--errno "EACCES"', '--errno "ENOENT"', "denial", "errno ENOENT"),
    "denial_of_nothing": ('--errno "EACCES"', '--message "no"', "denial", "errno None"),
    "hangs": ('"f"\n', '"f"\nexec perl -e "sleep 1000" "$TMPDIR"\n', "timed-out", "after 2 s"),
    "killed": ('"f"\n', '"f"\nkill -9 $$\n', "killed", "SIGKILL"),
}  # fmt: skip
LINES = {
    "capability_none": 5,
    "capability_odd": 5,
    "mode_bare": 8,
    "mode_quoted": 8,
    "mode_ansi": 8,
    "mode_below": 8,
    "mode_changed": 8,
    "mode_kept": 8,
    "mode_listed": 8,
    "mode_computed": 8,
    "mode_computed_bare": 8,
    "mode_written": 8,
    "effect_odd": 6,
    "name_computed": 5,
    "name_wrong": 4,
    "needs_computed": 6,
    "needs_odd": 6,
    "shebang": 1,
    "shebang_space": 1,
    "strict_late": 3,
    "strict_less": 3,
    "strict_missing": 3,
    "syntax": 25,
}
RULES = {**STATIC, **DYNAMIC}


@pytest.fixture(scope="module")
def folder(shared: Place) -> Path:
    folder = shared.root / "tree" / "probes"
    folder.mkdir(parents=True)
    for name, (old, new, _, _) in {**STATIC, **DYNAMIC}.items():
        assert old in GOOD, name
        write_script(folder / f"{name}.sh", GOOD.replace(old, new, 1).replace("NAME", name))
    write_script(folder / "good.sh", GOOD.replace("NAME", "good"))
    write_script(folder / "not_executable.sh", GOOD.replace("NAME", "not_executable"), 0o644)
    twice = GOOD.replace("NAME", "two_emits").replace(HELPER, f"x() {{\n{HELPER}  ", 1)
    write_script(folder / "two_emits.sh", twice.rstrip() + "\n}\nx\nx\n")
    (folder / "a_folder.sh").mkdir()
    return folder


RULES |= {
    "not_executable": ("", "", "executable", "chmod +x"),
    "two_emits": ("", "", "several-records", "2 records"),
    "a_folder": ("", "", "readable", "not a file"),
}


@pytest.fixture(scope="module")
def run(shared: Place, folder: Path) -> Done:
    return shared.stream("gate", "--probes", folder, "--timeout", "2")


@pytest.fixture(scope="module")
def findings_by_probe(run: Done) -> dict[str, list[Any]]:
    by_probe: dict[str, list[Any]] = {}
    for finding in run.records:
        by_probe.setdefault(Path(finding["source"]).stem, []).append(finding)
    return by_probe


@pytest.mark.parametrize("probe", RULES)
def test_each_rule(probe: str, findings_by_probe: dict[str, list[Any]], folder: Path) -> None:
    _, _, rule, message = RULES[probe]
    rules = {finding["rule"] for finding in findings_by_probe[probe]}
    if probe in ("name_wrong", "capability_odd"):  # its records cannot be right either
        rules -= {"gate.wrong-cell", "gate.bad-emission"}
    assert rules == {f"gate.{rule}"}
    (finding,) = (f for f in findings_by_probe[probe] if f["rule"] == f"gate.{rule}")
    assert message in finding["message"]
    assert finding["source"] == str(folder / f"{probe}.sh")
    assert finding.get("line") == LINES.get(probe)


def test_the_good_one_is_good(
    run: Done, findings_by_probe: dict[str, list[Any]], shared: Place
) -> None:
    assert run.code == 1
    assert "good" not in findings_by_probe
    assert set(findings_by_probe) == set(RULES)
    assert "… and" in run.err
    assert f"gate: {len(RULES) + 1} probes, " in run.err
    valid = shared.stream("validate", "-", data=run.out)
    assert (valid.code, valid.out) == (0, run.out)


def test_static_runs_nothing(shared: Place, folder: Path) -> None:
    done = shared.stream("gate", "--static", folder)
    probes = {Path(finding["source"]).stem for finding in done.records}
    assert (done.code, probes) == (1, {*STATIC, "not_executable", "a_folder"})


def test_paths(shared: Place, folder: Path) -> None:
    for words in (["good", "--probes", folder], [folder / "good.sh"], ["good.sh"], ["./good.sh"]):
        done = shared.stream("gate", *words, cwd=folder)
        assert (done.code, done.out, done.err) == (0, b"", "gate: 1 probe, 0 findings\n")
    done = shared.stream("gate", folder / "good.sh", folder / "shebang.sh")
    assert (done.code, [json.loads(done.out)["rule"]]) == (1, ["gate.shebang"])
    for words in (["nope"], [folder / "nope.sh"], [folder / "good.sh", "/elsewhere/x.sh"]):
        done = shared.stream("gate", *words)
        assert (done.code, done.out) == (2, b"")
        assert done.err.startswith("stream: ")


def test_the_bundled_probes_pass(place: Place) -> None:
    done = place.stream("gate")
    assert (done.code, done.out) == (0, b""), done.err


@pytest.mark.parametrize("name", ["stream-probe-left-$$", "x.left_in_shared"])
def test_leftovers_in_shared_folders(place: Place, name: str) -> None:
    """Only what is surely the probe's: others write there as well."""
    # In mounts of their own, or another run of this test would find them.
    as_root = ["--map-root-user"] if os.geteuid() else []
    apart = ["unshare", *as_root, "--mount", "sh", "-c"]
    mount = "mount -t tmpfs none /var/tmp"
    if subprocess.run([*apart, mount], check=False, capture_output=True).returncode:
        pytest.skip("needs a mount namespace")
    write = f'for f in "/var/tmp/{name}" "/var/tmp/someone-else.$$"; do : >"$f"; done\n'
    script = GOOD.replace("NAME", "left_in_shared").replace("pipefail\n", f"pipefail\n{write}", 1)
    folder = place.root / "shared"
    folder.mkdir()
    write_script(folder / "left_in_shared.sh", script)
    write_script(folder / "next_one.sh", GOOD.replace("NAME", "next_one"))
    script = f'{mount}; "$@"; code=$?; ls /var/tmp >&2; exit $code'
    done = place.stream("gate", "--probes", folder, argv0=[*apart, script, "sh", STREAM])
    others, its = done.err.splitlines()[-2:]
    assert others.startswith("someone-else.")
    assert its.startswith(name.removesuffix("$$"))
    (finding,) = done.records
    assert (finding["rule"], Path(finding["source"]).stem) == ("gate.leftovers", "left_in_shared")
    assert "someone-else" not in finding["message"]
    assert done.code == 1


def test_a_file_of_another_run_that_ends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen while its process ran, and asked for when that was over."""
    made = tmp_path / "stream-probe-x-1"
    made.touch()

    def remove_and_fail(number: str) -> bool:
        made.unlink()
        return False

    monkeypatch.setattr(gate, "TEMPORARY", [str(tmp_path)])
    monkeypatch.setattr(gate, "_is_running", remove_and_fail)
    script = Script("p", tmp_path / "p.sh", None, None)
    assert gate._shared_leftovers(script) == set()


def test_the_users_home_is_not_touched(place: Place) -> None:
    """Without a workspace of the user's own, probes get a scratch home as well."""
    home = place.root / "my home"
    home.mkdir()
    done = place.stream("gate", "fs_home_dotfile_write", env={"HOME": str(home)})
    assert (done.code, done.out) == (0, b"")
    assert list(home.iterdir()) == []


def test_a_mode_with_a_fallback_is_passed_on(place: Place) -> None:
    """As published probes do it."""
    mode = 'run_mode="${FENCE_RUN_MODE:-baseline}"\n'
    text = GOOD.replace("NAME", "falls_back").replace("$FENCE_RUN_MODE", "${run_mode}")
    folder = place.root / "tree" / "probes"
    folder.mkdir(parents=True)
    write_script(folder / "falls_back.sh", text.replace(CAPABILITY, mode + CAPABILITY))
    done = place.stream("gate", folder)
    assert (done.code, done.out) == (0, b""), done.err


def test_a_script_that_is_no_probe_is_found_and_not_run(place: Place) -> None:
    folder = place.root / "tree" / "probes"
    folder.mkdir(parents=True)
    write_script(folder / "good.sh", GOOD.replace("NAME", "good"))
    ran = place.root / "ran"
    path = write_script(folder / "deploy.sh", f'#!/usr/bin/env bash\n# emit-record\n: >"{ran}"\n')
    for words, probes in (([folder], "2 probes"), ([path], "1 probe"), (["--static", folder], "2")):
        done = place.stream("gate", *words)
        assert [finding["rule"] for finding in done.records] == ["gate.no-probe"]
        assert done.records[0]["source"] == str(path)
        assert f"gate: {probes}" in done.err
        assert done.code == 1
    done = place.stream("gate", folder / "good.sh")
    assert (done.code, done.out) == (0, b""), done.err
    assert not ran.exists()


@pytest.mark.parametrize("command", ["probe", "gate"])
def test_what_is_no_probe(place: Place, command: str) -> None:
    (place.workspace / "x.txt").touch()
    for name, message in (
        ("./nope.sh", "no such file"),
        ("./nope", "no such file"),
        ("./x.txt", "its name does not end in .sh"),
    ):
        done = place.stream(command, name)
        assert (done.code, done.err) == (2, f"stream: {name}: {message}\n")


def test_names_of_several_folders(place: Place) -> None:
    paths = []
    for number in (1, 2):
        folder = place.root / f"tree{number}" / "probes"
        folder.mkdir(parents=True)
        paths.append(write_script(folder / "good.sh", GOOD.replace("NAME", "good")))
    done = place.stream("gate", "fs_tmp_write", *paths)
    assert (done.code, done.err) == (0, "gate: 3 probes, 0 findings\n")
    done = place.stream("gate", paths[0].parent, paths[1].parent, paths[0])
    assert (done.code, done.err) == (0, "gate: 2 probes, 0 findings\n")


def test_a_deep_tree_that_a_probe_leaves(place: Place) -> None:
    dig = "perl -e 'chdir $ENV{HOME}; for (1 .. 1500) { mkdir q(d); chdir q(d) }'\n"
    folder = place.root / "deep"
    folder.mkdir()
    text = GOOD.replace("NAME", "digs").replace("pipefail\n", f"pipefail\n{dig}", 1)
    write_script(folder / "digs.sh", text)
    done = place.stream("gate", "--probes", folder)
    assert (done.code, [finding["rule"] for finding in done.records]) == (1, ["gate.leftovers"])
