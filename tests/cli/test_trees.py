"""Probe trees of all kinds: published ones, odd paths, links, helpers of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.command import CAPABILITY, Place, probe_text, write_script

#: how every published probe finds its helper
PUBLISHED = """#!/usr/bin/env bash
set -euo pipefail
script_dir="$(cd "$(dirname "${BASH_SOURCE[0]}")" >/dev/null 2>&1 && pwd)"
repo_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
probe_name="published"
primary_capability_id="CAPABILITY"
"$repo_root/bin/emit-record" --run-mode "$FENCE_RUN_MODE" --probe-id "$probe_name" \\
  --probe-version 1 --primary-capability-id "$primary_capability_id" --command true \\
  --category fs --verb read --target / --status success --payload-raw-field dir "$script_dir"
""".replace("CAPABILITY", CAPABILITY)


@pytest.fixture
def published(place: Place) -> Path:
    folder = place.root / "published" / "probes"
    folder.mkdir(parents=True)
    write_script(folder / "published.sh", PUBLISHED)
    return folder


def test_a_published_tree_runs_unmodified(place: Place, published: Path) -> None:
    for words, cwd in (
        ([published], None),
        (["published/probes"], place.root),
        (["../published/probes"], place.workspace),
        (["."], published),
        (["../probes/"], published),
    ):
        done = place.stream("matrix", "--probes", *words, cwd=cwd)
        assert (done.code, done.ids) == (0, ["published"]), words
    assert [path.name for path in published.parent.iterdir()] == ["probes"]
    assert [path.name for path in published.iterdir()] == ["published.sh"]


@pytest.mark.parametrize("name", ["with space", "ünïcode ☂", "new\nline", "-dash", "qu'ot\"e$(x)"])
def test_odd_paths(place: Place, name: str) -> None:
    folder = place.root / name / "probes"
    folder.mkdir(parents=True)
    write_script(folder / "published.sh", PUBLISHED)
    workspace = place.root / name / "work"
    workspace.mkdir()
    done = place.stream("matrix", f"--probes={folder}", f"--workspace={workspace}")
    assert (done.code, done.ids) == (0, ["published"])
    assert done.records[0]["run"]["workspace_root"] == str(workspace)


def test_names_that_are_not_utf_8(place: Place) -> None:
    root = os.fsencode(place.root) + b"/\xff"
    os.makedirs(root + b"/probes")  # noqa: PTH103
    folder = Path(os.fsdecode(root)) / "probes"
    write_script(folder / os.fsdecode(b"bad\xff.sh"), PUBLISHED)
    write_script(folder / "published.sh", PUBLISHED)
    done = place.stream("matrix", "--probes", folder, "--workspace", folder)
    assert (done.code, done.ids) == (1, ["bad\ufffd", "published"])
    assert done.records[1]["run"]["workspace_root"].endswith("/\ufffd/probes")
    assert place.stream("matrix", "--probes", folder, "--list").code == 0
    assert place.stream("gate", "--probes", folder).code == 1


def test_a_link_to_the_folder(place: Place, published: Path) -> None:
    link = place.root / "link"
    link.symlink_to(published)
    done = place.stream("matrix", "--probes", link)
    assert (done.code, done.ids) == (0, ["published"])


JSON_HELPER = """#!/usr/bin/env python3
import json, os, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
capability = words["--primary-capability-id"]
json.dump({
    "schema_version": "boundary_event_v1", "schema_key": "cfbo-v1",
    "capabilities_schema_version": "linux_agent_v1",
    "stack": {"sandbox_mode": None, "os": "elsewhere"},
    "probe": {"id": words["--probe-id"], "version": "1", "primary_capability_id": capability,
        "secondary_capability_ids": []},
    "run": {"mode": "baseline", "workspace_root": os.getcwd(), "command": "true"},
    "operation": {"category": "fs", "verb": "read", "target": "/", "args": {}},
    "result": {"observed_result": "success", "raw_exit_code": 0, "errno": None, "message": "own",
        "error_detail": None},
    "payload": {"stdout_snippet": None, "stderr_snippet": None, "raw": {}},
    "capability_context": {"primary": {"id": capability, "category": "filesystem",
        "layer": "os_sandbox"}, "secondary": []},
}, sys.stdout, indent=int(os.environ["INDENT"]) or None)
"""


@pytest.mark.parametrize("indent", ["0", "2"])
def test_a_tree_with_a_helper_of_its_own(place: Place, published: Path, indent: str) -> None:
    """It is used, plain JSON is what it writes, and a link to the folder changes nothing."""
    helper = published.parent / "bin" / "emit-record"
    helper.parent.mkdir()
    write_script(helper, JSON_HELPER)
    link = place.root / "link"
    link.symlink_to(published)
    for folder in (published, link):
        done = place.stream("matrix", "--probes", folder, env={"INDENT": indent})
        assert (done.code, done.err) == (0, "1 cell = 1 record: 1 success\n")
        assert done.out.count(b"\n") == 1
        assert done.records[0]["result"]["message"] == "own"


def test_a_tree_with_a_catalog_of_its_own(place: Place, published: Path) -> None:
    catalogs = published.parent / "catalogs"
    catalogs.mkdir()
    bundled = Path(__file__).parents[2] / "catalogs" / "linux_agent_v1.json"
    catalog = json.loads(bundled.read_text())
    catalog["catalog"]["key"] = "own_catalog"
    (catalogs / "own.json").write_text(json.dumps(catalog))
    (catalogs / "defaults.json").write_text('{"catalog": "catalogs/own.json"}')
    done = place.stream("matrix", "--probes", "../probes", cwd=published)
    assert done.records[0]["capabilities_schema_version"] == "own_catalog"


def test_links_that_lead_out_are_refused(place: Place, published: Path) -> None:
    outside = write_script(place.root / "outside.sh", probe_text("outside", "emit\n"))
    (published / "outside.sh").symlink_to(outside)
    done = place.stream("matrix", "--probes", published)
    assert (done.code, done.out) == (2, b"")
    assert "outside.sh: a link that leads outside the probe folder" in done.err


@pytest.mark.parametrize("target", ["loop.sh", "nowhere.sh", "/dev/null"])
def test_links_that_lead_nowhere(place: Place, published: Path, target: str) -> None:
    (published / "loop.sh").symlink_to(target)
    done = place.stream("matrix", "--probes", published)
    if target == "/dev/null":
        assert done.code == 2
    else:
        assert (done.code, done.ids) == (1, ["loop", "published"])
        assert done.records[0]["payload"]["raw"]["harness"]["reason"] == "spawn-failed"
        assert place.stream("gate", "--probes", published, "loop").code == 1


def test_a_link_within_the_folder(place: Place, published: Path) -> None:
    (published / "alias.sh").symlink_to("published.sh")
    done = place.stream("matrix", "--probes", published)
    assert (done.code, done.ids) == (1, ["alias", "published"])
    assert done.records[0]["payload"]["raw"]["harness"]["reason"] == "wrong-cell"


def test_a_fifo_that_is_called_like_a_probe(place: Place, published: Path) -> None:
    os.mkfifo(published / "pipe.sh")
    done = place.stream("matrix", "--probes", published)
    assert (done.code, done.ids) == (1, ["pipe", "published"])
    assert place.stream("gate", "--static", "--probes", published).code == 1


def test_folders_without_probes(place: Place, published: Path) -> None:
    for folder, sentence in (
        (published.parent, "did you mean"),
        (place.tmp, "no probes in it"),
        (place.root / "absent", "no such file"),
        (published / "published.sh", "not a directory"),
    ):
        done = place.stream("matrix", "--probes", folder)
        assert (done.code, done.out) == (2, b"")
        assert sentence in done.err


def test_one_probe(place: Place, published: Path) -> None:
    """stream probe: by id, by path, by name in the current folder."""
    for words, cwd in (
        (["published", "--probes", published], None),
        ([published / "published.sh"], None),
        (["./published.sh"], published),
        (["published.sh"], published),
    ):
        done = place.stream("probe", *words, "--workspace", place.workspace, cwd=cwd)
        assert (done.code, done.ids, done.err) == (0, ["published"], "")
    write_script(published / "published.sh", "#!/usr/bin/env bash\nexit 3\n")
    done = place.stream("probe", published / "published.sh")
    assert (done.code, done.ids) == (1, ["published"])
    assert done.err == "stream: published (baseline): the probe exited with status 3\n"
    assert place.stream("probe", "no_such_probe").code == 2
