"""`python -m tests.bench [NAME…]` prints the table of the README. `--check` exits 1 where a
figure misses its target.

Every pair is measured alternately and the best of several is taken: figures of one machine
at one time, good for the ratio between them and for nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from stream.boundary.scripts import BUNDLED, HELPERS, find_scripts
from tests.bench.archiving import EVENTS
from tests.bench.evidence import write_raw
from tests.bench.kernel import bench_kernel
from tests.bench.measuring import STREAM, Row, Run, race, run
from tests.bench.modes import bench_modes
from tests.bench.observing import fill_folder
from tests.transformers.runs import many_runs

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 100_000


# ---------------------------------------------------------------- matrix against xargs


def bench_matrix(scratch: Path) -> list[Row]:
    published = scratch / "published" / "probes"
    published.mkdir(parents=True)
    for number in range(50):
        script = published / f"fs_quick_{number:02}.sh"
        script.write_text(PUBLISHED.replace("@ID@", script.stem))
        script.chmod(0o755)
    return [
        *_matrix_rows(scratch, f"the {len(_plain_scripts(BUNDLED))} bundled probes", BUNDLED),
        *_matrix_rows(scratch, "published-style tree of 50 quick probes", published),
        *_matrix_rows(scratch, "the same tree 10 times, 500 cells", published, repeat=10),
    ]


def _plain_scripts(folder: Path) -> list[Path]:
    return [script.path for script in find_scripts(folder) if script.needs is None]


def _matrix_rows(scratch: Path, what: str, folder: Path, repeat: int = 1) -> list[Row]:
    """Race `stream matrix` against the same scripts under xargs, with two emit helpers: the one
    that the harness runs, its frame thrown away, and one that exits at once."""
    work = Path(tempfile.mkdtemp(dir=scratch))
    for name in ("tmp", "ws/.git/hooks"):
        (work / name).mkdir(parents=True)
    scripts = _plain_scripts(folder)
    framing = _tree_listing(work / "framing", scripts * repeat)
    idle = _tree_listing(work / "idle", scripts * repeat, emit_record="#!/bin/sh\nexit 0\n")
    env = {
        **os.environ,
        "LC_ALL": "C",
        "FENCE_RUN_MODE": "baseline",
        "FENCE_WORKSPACE_ROOT": str(work / "ws"),
        "TMPDIR": str(work / "tmp"),
        "STREAM_FRAME": "1",
    }
    command = [STREAM, "matrix", "-o", str(work / "out"), "--force", "--repeat", str(repeat)]
    command += [] if folder == BUNDLED else ["--probes", str(folder)]
    jobs = str(3 * (os.cpu_count() or 1))
    xargs = ["xargs", "-P", jobs, "-n", "1", "env"]
    ours, same, nothing = race(
        9 if repeat == 1 else 3,
        lambda: run(command, cwd=work / "ws"),
        lambda: run(xargs, env=env, cwd=work / "ws", stdin=framing),
        lambda: run(xargs, env=env, cwd=work / "ws", stdin=idle),
    )
    return [
        Row(
            f"`stream matrix`, {what}",
            f"{ours.seconds:.2f} s",
            f"`xargs -P{jobs}`, {helper}: {floor.seconds:.2f} s",
            ours.seconds / floor.seconds,
            "≤ 1.25×",
            ours.seconds / floor.seconds <= 1.25,
        )
        for helper, floor in (
            ("the same emit helper", same),
            ("emit helper that does nothing", nothing),
        )
    ]


def _tree_listing(tree: Path, scripts: list[Path], emit_record: str | None = None) -> Path:
    """Make a tree of probes and helpers, with another emit helper where one is given, and a
    file that lists its scripts in the order in which they run."""
    for name in ("probes", "bin"):
        (tree / name).mkdir(parents=True)
    for script in {*scripts}:
        (tree / "probes" / script.name).symlink_to(script)
    for helper in HELPERS.iterdir():
        (tree / "bin" / helper.name).symlink_to(helper)
    if emit_record is not None:
        helper = tree / "bin" / "emit-record"
        helper.unlink()
        helper.write_text(emit_record)
        helper.chmod(0o755)
    listing = tree / "list"
    listing.write_text("".join(f"{tree}/probes/{script.name}\n" for script in scripts))
    return listing


# What a published write probe starts: dirname for its folder, date for a time stamp, mktemp
# for its target and two scratch files, a shell of its own for the attempt, tr for what each of
# the three files holds, rm when it is done.
PUBLISHED = """#!/usr/bin/env bash
set -euo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." >/dev/null 2>&1 && pwd)
emit_record="${tree}/bin/emit-record"

probe_name="@ID@"
primary_capability_id="cap_fs_write_workspace_tree"
target=$(mktemp "${FENCE_WORKSPACE_ROOT}/.${probe_name}.XXXXXX")
line="quick $(date -u +%Y%m%dT%H%M%SZ)"
printf -v command "printf %q >> %q" "${line}" "${target}"

out=$(mktemp)
err=$(mktemp)
trap 'rm -f "${out}" "${err}" "${target}"' EXIT

status="error" errno="" message=""
exit_code=0
bash -c 'printf "%s\\n" "$1" >>"$2"' _ "${line}" "${target}" >"${out}" 2>"${err}" || exit_code=$?
stdout_text=$(tr -d '\\0' <"${out}")
stderr_text=$(tr -d '\\0' <"${err}")
contents=$(tr -d '\\0' <"${target}")
if [[ ${exit_code} -eq 0 ]]; then
  status="success" message="written"
elif [[ ${stderr_text} == *"Permission denied" ]]; then
  status="denied" errno="EACCES" message="Permission denied"
fi

"${emit_record}" \\
  --run-mode "${FENCE_RUN_MODE}" \\
  --probe-name "${probe_name}" \\
  --probe-version "1" \\
  --primary-capability-id "${primary_capability_id}" \\
  --command "${command}" \\
  --category "fs" \\
  --verb "write" \\
  --target "${target}" \\
  --status "${status}" \\
  --errno "${errno}" \\
  --message "${message}" \\
  --raw-exit-code "${exit_code}" \\
  --payload-stdout "${stdout_text}" \\
  --payload-stderr "${stderr_text}" \\
  --payload-raw-field "contents" "${contents}" \\
  --operation-args '{"write_mode":"append"}'
"""


# ------------------------------------------------------------ records against jq


def bench_records(scratch: Path) -> list[Row]:
    source = scratch / "records.ndjson"
    size = _write_records(source)
    memory = 80 << 20
    validate, listen, jq = race(
        5,
        lambda: run([STREAM, "validate", str(source)]),
        lambda: run([STREAM, "listen", str(source)]),
        lambda: run(["jq", "-c", ".", str(source)]),
    )
    rows = []
    for name, got, floor in (("validate", validate, 250_000), ("listen", listen, 150_000)):
        rate = RECORDS / got.seconds
        rows.append(
            Row(
                f"`stream {name}`, {RECORDS:,} records of {size:,} bytes",
                f"{rate:,.0f}/s, peak {got.peak / 1e6:.0f} MB",
                f"`jq -c .`: {RECORDS / jq.seconds:,.0f}/s",
                jq.seconds / got.seconds,
                f"≥ {floor:,}/s" + (", ≥ 6×" if name == "validate" else "") + ", < 80 MB",
                rate >= floor
                and got.peak < memory
                and (name != "validate" or jq.seconds / got.seconds >= 6),
            )
        )
    return rows


def _write_records(target: Path) -> int:
    """Copies of real records, each with its own id."""
    given = (ROOT / "tests" / "data" / "fencerunner" / "history55-records.ndjson").read_bytes()
    records = [msgspec.json.decode(line) for line in given.splitlines() if len(line) < 1600]
    with target.open("wb") as file:
        for number in range(RECORDS):
            record = records[number % len(records)]
            record["run"]["command"] = f"command {number}"
            file.write(msgspec.json.encode(record) + b"\n")
    return target.stat().st_size // RECORDS


# ------------------------------------------------------------ events of agent runs


def bench_check(scratch: Path) -> list[Row]:
    source = scratch / "events.jsonl"
    with source.open("wb") as file:
        for line in many_runs(-(-RECORDS // 9)):
            file.write(line + b"\n")
    size = source.stat().st_size // RECORDS
    check, jq = race(
        5,
        lambda: run([STREAM, "check", "-"], stdin=source),
        lambda: run(["jq", "-c", "."], stdin=source),
    )
    rate = RECORDS / check.seconds
    return [
        Row(
            f"`stream check -`, {RECORDS:,} events of {size:,} bytes",
            f"{rate:,.0f}/s, peak {check.peak / 1e6:.0f} MB",
            f"`jq -c .`: {RECORDS / jq.seconds:,.0f}/s",
            jq.seconds / check.seconds,
            "≥ 100,000/s, < 120 MB",
            rate >= 100_000 and check.peak < 120 << 20,
        )
    ]


# ------------------------------------------------------------ kernel evidence

DECODING = """
import sys, msgspec
from stream.records.kernel import RawCapture, RawEvent
decode = msgspec.json.Decoder(RawEvent | RawCapture).decode
encode = msgspec.json.Encoder().encode
for line in open(sys.argv[1], "rb"):
    sys.stdout.buffer.write(encode(decode(line)) + b"\\n")
"""


def bench_evidence(scratch: Path) -> list[Row]:
    source, count = scratch / "raw.ndjson", 1_000_000
    write_raw(source, count)
    ours, floor = race(
        3,
        lambda: run([STREAM, "normalize", str(source)]),
        lambda: run([sys.executable, "-c", DECODING, str(source)]),
    )
    rate, ratio = count / ours.seconds, ours.seconds / floor.seconds
    return [
        Row(
            f"`stream normalize`, {count:,} raw events",
            f"{rate:,.0f}/s, peak {ours.peak / 1e6:.0f} MB",
            f"msgspec decodes and encodes them, nothing else: {count / floor.seconds:,.0f}/s",
            ratio,
            "≥ 300,000/s, ≤ 3×, < 80 MB",
            rate >= 300_000 and ratio <= 3 and ours.peak < 80 << 20,
        )
    ]


# ------------------------------------------------------------ start-up


def bench_start(scratch: Path) -> list[Row]:
    python = sys.executable
    ours, floor = race(
        20, lambda: run([STREAM, "--help"]), lambda: run([python, "-c", "import typer"])
    )
    words = ["--run-mode", "baseline", "--probe-name", "p", "--probe-version", "1"]
    words += ["--primary-capability-id", "c", "--command", "x", "--category", "fs"]
    words += ["--verb", "write", "--target", "t", "--status", "denied", "--errno", "EACCES"]
    words += ["--message", "m", "--raw-exit-code", "1", "--payload-stderr", "denied"]
    env = {**os.environ, "STREAM_FRAME": "1"}
    emit, shell = race(
        200,
        lambda: run([str(HELPERS / "emit-record"), *words], env=env),
        lambda: run(["/bin/sh", "-c", ":"], env=env),
    )
    return [
        Row(
            "`stream --help`",
            f"{ours.seconds * 1e3:.0f} ms",
            f"`python -c 'import typer'`: {floor.seconds * 1e3:.0f} ms",
            ours.seconds / floor.seconds,
            "≤ 1.6×",
            ours.seconds / floor.seconds <= 1.6,
        ),
        Row(
            "`emit-record` under the harness",
            f"{emit.seconds * 1e3:.2f} ms",
            f"`sh -c :`: {shell.seconds * 1e3:.2f} ms",
            emit.seconds / shell.seconds,
            "≤ 2×",
            emit.seconds / shell.seconds <= 2,
        ),
    ]


# ------------------------------------------------------------ agent runs


def bench_observe(scratch: Path) -> list[Row]:
    return [
        *_bench_quick_run(scratch),
        *_bench_long_output(scratch),  # before the disk has 400,000 small files to write
        *_bench_large_workspaces(scratch),
    ]


def _run_observe(scratch: Path, *words: str | Path, **how: Any) -> Run:
    """Of a run whose folder is not removed: what was removed just before makes the next file
    dear on some file systems."""
    runs = tempfile.mkdtemp(dir=scratch, prefix="runs-")
    return run([STREAM, "observe", "-q", "--runs", runs, *map(str, words)], **how)


def _bench_quick_run(scratch: Path) -> list[Row]:
    ours, version, alone = race(
        30,
        lambda: _run_observe(scratch, "--workspace", "empty", "--", "true"),
        lambda: run([STREAM, "--version"]),
        lambda: run(["true"]),
    )
    more = ours.seconds - alone.seconds
    return [
        Row(
            "`stream observe --workspace empty -- true`, more than `true`",
            f"{more * 1e3:.0f} ms",
            f"`stream --version`: {version.seconds * 1e3:.0f} ms",
            more / version.seconds,
            "≤ 2.5×",
            more / version.seconds <= 2.5,
        )
    ]


def _bench_large_workspaces(scratch: Path) -> list[Row]:
    few, many = scratch / "few", scratch / "many"
    fill_folder(few, 20_000, 4_000)
    fill_folder(many, 200_000, 10)
    agent = ("--", "sh", "-c", "echo changed >d0/e0/f7.txt")

    def copied(source: Path) -> Run:
        return run(["cp", "-a", str(source), tempfile.mkdtemp(dir=scratch)])

    small, copy = race(
        3, lambda: _run_observe(scratch, "--source", few, *agent), lambda: copied(few)
    )
    large, copies = race(
        1, lambda: _run_observe(scratch, "--source", many, *agent), lambda: copied(many)
    )
    rows = []
    for what, mine, floor in (
        ("`stream observe`, 20,000 files, 79 MB, one is changed", small, copy),
        ("`stream observe`, 200,000 small files, one is changed", large, copies),
    ):
        ratio = mine.seconds / floor.seconds
        rows.append(
            Row(
                what,
                f"{mine.seconds:.2f} s, peak {mine.peak / 1e6:.0f} MB",
                f"`cp -a`: {floor.seconds:.2f} s",
                ratio,
                "≤ 3×, < 200 MB",
                ratio <= 3 and mine.peak < 200e6,
            )
        )
    return rows


def _bench_long_output(scratch: Path) -> list[Row]:
    agent = f"head -c {1 << 30} /dev/zero"

    def ours() -> Run:
        with tempfile.TemporaryDirectory(dir=scratch) as runs:
            words = [STREAM, "observe", "-q", "--runs", runs, "--workspace", "empty"]
            return run(["sh", "-c", f'"$@" >"{runs}/copy"', "sh", *words, "--", *agent.split()])

    def tee() -> Run:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            return run(["sh", "-c", f'{agent} | tee "{folder}/one" >"{folder}/two"'])

    os.sync()  # else what the rows before have written is brought to the disk meanwhile
    mine, floor = race(3, ours, tee)
    ratio = mine.seconds / floor.seconds
    return [
        Row(
            "`stream observe` of a command that prints 1 GiB, to a file",
            f"{mine.seconds:.2f} s, peak {mine.peak / 1e6:.0f} MB",
            f"`tee` to two files: {floor.seconds:.2f} s",
            ratio,
            "≤ 1.5×, < 80 MB",
            ratio <= 1.5 and mine.peak < 80e6,
        )
    ]


# ------------------------------------------------------------ archives


def bench_archive(scratch: Path) -> list[Row]:
    folder, target, other = scratch / "run", scratch / "a.tar.gz", scratch / "b.tar.gz"
    # By a process of its own: who is started later begins with our peak of memory.
    fill = "import sys; from tests.bench.archiving import fill_run; fill_run(sys.argv[1])"
    subprocess.run([sys.executable, "-c", fill, folder], check=True, cwd=ROOT)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    tar = 'tar cf - -C "$1" . | gzip -6 >"$2"'
    ours, piped = race(
        5,
        lambda: run([STREAM, "archive", str(folder), "-o", str(target), "--force"]),
        lambda: run(["sh", "-c", tar, "sh", str(folder), str(other)]),
    )
    verify, unpack = race(
        5,
        lambda: run([STREAM, "verify", str(target)]),
        lambda: run(["sh", "-c", 'gzip -dc "$1" | sha256sum', "sh", str(target)]),
    )
    rate = size / 1e6 / verify.seconds
    return [
        Row(
            f"`stream archive`, {EVENTS:,} kernel events, {size / 1e6:.0f} MB",
            f"{ours.seconds:.2f} s, peak {ours.peak / 1e6:.0f} MB",
            f"`tar \\| gzip -6`: {piped.seconds:.2f} s",
            piped.seconds / ours.seconds,
            "≥ 0.8× as fast, < 80 MB",
            piped.seconds / ours.seconds >= 0.8 and ours.peak < 80e6,
        ),
        Row(
            "`stream verify` of it",
            f"{rate:.0f} MB/s, peak {verify.peak / 1e6:.0f} MB",
            f"`gzip -dc \\| sha256sum`: {unpack.seconds:.2f} s",
            verify.seconds / unpack.seconds,
            "≥ 100 MB/s, < 80 MB",
            rate >= 100 and verify.peak < 80e6,
        ),
    ]


BENCHES = {
    "matrix": bench_matrix,
    "records": bench_records,
    "check": bench_check,
    "evidence": bench_evidence,
    "start": bench_start,
    "observe": bench_observe,
    "archive": bench_archive,
    "kernel": bench_kernel,
    "modes": bench_modes,  # at the end: what it loads would count as the peak of the others
}


def main() -> int:
    words = sys.argv[1:]
    check = "--check" in words
    names = [word for word in words if word != "--check"] or list(BENCHES)
    rows: list[Row] = []
    scratch = Path(tempfile.mkdtemp(prefix="stream-bench-"))
    try:
        for name in names:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            rows += BENCHES[name](scratch)
    finally:
        shutil.rmtree(scratch)
    print("| what | figure | against | ratio | target | |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        cells = [row.what, row.ours, row.against, f"{row.ratio:.2f}×", row.target]
        print("|", " | ".join(cells), "|", "" if row.met else "missed", "|")
    return 1 if check and not all(row.met for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
