"""A whole run folder, as a recorder leaves it: a real workspace, a real diff, real digests."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from stream.records.run import MANIFEST, RUN
from tests.transformers.runs import Event, Run, encode_run, good_run

FILES = {
    "stdout_log": "artifacts/claude_stdout.txt",
    "stderr_log": "artifacts/claude_stderr.txt",
    "diff": "artifacts/fs_diff.patch",
    "command_log": "artifacts/command_logs.jsonl",
}


class Folder:
    """Changed as a test likes, then written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace = root / "workspace"
        self.artifacts = root / "artifacts"
        self.workspace.mkdir(parents=True)
        self.artifacts.mkdir()
        self.run: Run = good_run()
        self.metadata: Event = {
            "schema": RUN,
            "run_id": self.run[0]["session"]["run_id"],
            "session_id": "add_tests",
            "profile": "poc",
            "started": "2026-03-04T05:06:01Z",
            "stream_version": "0.1.0",
            "system": "Linux 6.12.0 x86_64",
            "agent_id": "claude-code",
            "agent_version": "2.1.326",
            "argv": ["claude", "-p", "add tests"],
            "environment": "local",
            "capture_mode": "full",
            "workspace_mode": "copy",
            "workspace": "workspace",
            "source": "/srv/project",
            "constraints": ["output.json_only", "style.no_emojis"],
        }
        (root / FILES["stdout_log"]).write_bytes(b"{}\n")
        (root / FILES["stderr_log"]).write_bytes(b"")
        (root / FILES["command_log"]).write_bytes(b"{}\n")
        (root / FILES["diff"]).write_bytes(self._change())

    def write(self) -> Path:
        """Events and documents, with the digests of what is there now."""
        self.write_metadata()
        for one in self.run:
            for item in one["agent_action"]["artifacts"]:
                if item["type"] in FILES:
                    item["hash"] = f"sha256:{digest(self.root / FILES[item['type']])}"
        self.write_events()
        self.write_manifest()
        return self.root

    def write_metadata(self) -> None:
        (self.root / "metadata.json").write_text(json.dumps(self.metadata))

    def write_events(self) -> None:
        (self.root / "events.jsonl").write_bytes(
            b"".join(b"%s\n" % x for x in encode_run(self.run))
        )

    def write_manifest(self, **changes: Any) -> None:
        names = ["metadata.json", *(f"artifacts/{path.name}" for path in self.listed())]
        files = [
            {"path": name, "bytes": (self.root / name).stat().st_size}
            | {"sha256": digest(self.root / name)}
            for name in names
        ]
        begun = b"".join((self.root / "events.jsonl").read_bytes().splitlines(True)[:-1])
        events = {"bytes": len(begun), "sha256": hashlib.sha256(begun).hexdigest()}
        manifest = {"schema": MANIFEST, "run_id": self.metadata["run_id"]}
        manifest |= {"events": events, "files": files}
        text = json.dumps(manifest | changes)
        (self.artifacts / "manifest.json").write_text(text)

    def listed(self) -> list[Path]:
        return sorted(p for p in self.artifacts.iterdir() if p.name != "manifest.json")

    def item(self, kind: str) -> Event:
        """An artifact among the events."""
        items = [item for one in self.run for item in one["agent_action"]["artifacts"]]
        return next(item for item in items if item["type"] == kind)

    def _change(self) -> bytes:
        """What an agent does to the workspace, as git shows it."""
        home = self.root / "history"
        (self.workspace / "kept.txt").write_text("one\r\ntwo\r\n")
        (self.workspace / "gone.bin").write_bytes(bytes(range(256)))
        self._git(home, "init", "-q")
        self._git(home, "add", "-A")
        self._git(home, "commit", "-qm", "before")
        (self.workspace / "kept.txt").write_bytes(b"one\r\n2 $Id: 5 $\r\n")
        (self.workspace / "gone.bin").unlink()
        (self.workspace / "new file").write_bytes(bytes(range(255, -1, -1)))
        (self.workspace / "link").symlink_to("/etc/hostname")
        self._git(home, "add", "-A")
        patch = self._git(home, "diff", "--cached", "--binary", "--full-index", "HEAD")
        subprocess.run(["rm", "-r", str(home)], check=True)
        return patch

    def _git(self, home: Path, *words: str) -> bytes:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false"]
        env = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        where = [f"--git-dir={home}", f"--work-tree={self.workspace}"]
        argv = ["git", *where, *who, *words]
        done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=True)
        return done.stdout


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
