"""How a run ends that does not end well: readers that go, full disks, signals."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import PATIENCE, SLEEP, STREAM, Done, Place


def test_reader_that_goes_away(place: Place) -> None:
    """`stream matrix | head -1`"""
    folder = place.write_probes(a='emit --message "$(printf %300s)"\n', emit="")
    process = place.start("matrix", "--probes", folder, "--repeat", "2000")
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"{")
    process.stdout.close()
    done = place.finish(process)
    assert (done.code, done.err) == (141, "")


def test_reader_of_listen_that_goes_away(place: Place) -> None:
    one = place.stream("matrix", "--probes", place.write_probes(a="")).out
    (place.root / "many").write_bytes(one * 20_000)
    process = place.start("listen", place.root / "many")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    done = place.finish(process)
    assert (done.code, done.err) == (141, "")


@pytest.mark.parametrize("words", [["--list"], ["--probe", "a"]])
def test_reader_that_was_never_there(place: Place, words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        done = place.stream("matrix", "--probes", place.write_probes(a=""), *words, stdout=stdout)
    assert (done.code, done.err) == (141, "")


def test_a_slow_reader_slows_the_probes(place: Place) -> None:
    """Each probe writes a byte into a fifo. When nothing was read from stdout and no further
    byte comes, only as many have run as there is room for."""
    cells = 400
    fifo = place.make_fifo("started")
    folder = place.write_probes(
        a=f"printf . >{fifo}\nemit --message \"$(printf '%3000s')\"\n", emit=""
    )
    started = os.open(fifo, os.O_RDWR)
    process = place.start("matrix", "--probes", folder, "--repeat", str(cells), "--jobs", "4")
    ran = 0
    while select.select([started], (), (), 1.0 if ran else PATIENCE)[0]:
        ran += len(os.read(started, 1000))
    assert 0 < ran < cells // 2
    done = place.finish(process)
    while select.select([started], (), (), 0)[0]:
        ran += len(os.read(started, 1000))
    os.close(started)
    assert (done.code, len(done.records), ran) == (0, cells, cells)


def test_what_waits_for_a_slow_probe_is_bounded(place: Place) -> None:
    """120 probes write 4 MB each and wait, in cell order, for one that hangs."""
    noise = "perl -e 'print q(x) x 4_000_000'\n"
    folder = place.write_probes(a=SLEEP, **{f"b{n:03}": noise for n in range(120)})
    done = place.run_measured("matrix", "--probes", folder, "--timeout", "3", "--jobs", "2")
    assert (done.code, len(done.records)) == (1, 121)
    assert done.peak < 200_000_000


def test_a_pipe_that_does_not_block(place: Place) -> None:
    """Another process may have made it so; a full pipe is no failure then either."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    folder = place.write_probes(a='emit --message "$(printf %3000s)"\n', emit="")
    process = place.start("matrix", "--probes", folder, "--repeat", "100", stdout=write)
    os.close(write)
    with os.fdopen(read, "rb") as lines:
        assert len(lines.readlines()) == 100
    assert place.finish(process).code == 0


@pytest.mark.parametrize(
    "words", [["matrix"], ["matrix", "--list"], ["doctor"], ["helpers"], ["--help"], ["--version"]]
)
def test_stdout_is_full(place: Place, words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = place.stream(*words, stdout=full)
    assert (done.code, done.err) == (2, "stream: stdout: no space left on device\n")


def test_standard_streams_that_are_closed(place: Place) -> None:
    """No file of ours gets their numbers."""
    folder = place.write_probes(a="echo oops >&2\n")
    run = ("bash", "-c", '"$@" <&- 2>&-', "closed", STREAM)
    done = place.stream("matrix", "--probes", folder, argv0=run)
    assert (done.code, done.ids) == (0, ["a"])
    run = ("bash", "-c", '"$@" >&-', "closed", STREAM)
    done = place.stream("matrix", "--probes", folder, argv0=run)
    assert (done.code, done.err) == (2, "stream: stdout: bad file descriptor\n")
    done = place.stream("matrix", "--probes", folder, "-o", "out", argv0=run)
    assert done.code == 0
    assert len((place.workspace / "out").read_bytes().splitlines()) == 1
    run = ("bash", "-c", '"$@" <&-', "closed", STREAM)
    done = place.stream("validate", "-", argv0=run)
    assert (done.code, done.err) == (2, "stream: (stdin): bad file descriptor\n")
    run = ("bash", "-c", '"$@" >&- 2>&- <&-', "closed", STREAM)
    assert place.stream("matrix", "--probes", folder, argv0=run).code == 2


@pytest.mark.usefixtures("needs_root")
def test_a_full_disk(place: Place) -> None:
    disk = place.root / "disk"
    disk.mkdir()
    (place.root / "kept").mkdir()
    folder = place.write_probes(a='emit --message "$(printf %1000s)"\n', emit="")
    script = (
        'mount -t tmpfs -o size=64k none "$0" && { "$@"; code=$?;'
        ' cp -r "$0/." "$0/../kept"; exit $code; }'
    )
    unshared = ("unshare", "-m", "bash", "-c", script, str(disk), STREAM)
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no private mount namespace")
    done = place.stream(
        "matrix", "--probes", folder, "--repeat", "200", "-o", disk / "out", argv0=unshared
    )
    assert done.code == 2
    outcome = done.err.splitlines()
    assert f"stream: {disk}/out: no space left on device" in outcome
    assert len(outcome) == 2
    assert [path.name for path in (place.root / "kept").iterdir()] == ["out.partial"]
    data = (place.root / "kept" / "out.partial").read_bytes()
    assert data.endswith(b"\n")
    assert len([json.loads(line) for line in data.splitlines()]) > 20


def test_a_signal_from_the_first_probe(place: Place) -> None:
    """It may come before there is a loop to hear it: probes start before that."""
    folder = place.write_probes(a=f"kill -TERM $PPID\n{SLEEP}", b=SLEEP)
    done = place.stream("matrix", "--probes", folder, "-o", "out")
    assert (done.code, done.out) == (143, b"")
    assert done.err.splitlines()[-1] == "stream: interrupted"
    assert {path.name for path in place.workspace.iterdir()} <= {"out.partial"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_there_is_a_loop(place: Place, number: signal.Signals) -> None:
    script = f"""
import os, sys, typer
from contextlib import contextmanager
from stream.cli.runner import run_prepared
@contextmanager
def prepare():
    os.kill(os.getpid(), {number.value})
    yield
    print("cleaned up")
async def work(prepared):
    print("went on")
    return 0
try:
    run_prepared(prepare, work, lambda: print("asked to stop"))
except typer.Exit as ending:
    sys.exit(ending.exit_code)
"""
    done = place.stream(argv0=(sys.executable, "-c", script))
    outcome = (done.code, done.out, done.err)
    assert outcome == (128 + number, b"asked to stop\ncleaned up\n", "stream: interrupted\n")


def test_an_output_without_a_place_is_seen_before_a_probe_runs(place: Place) -> None:
    folder = place.write_probes(a=f"touch {place.root}/ran\n")
    (place.workspace / "taken.partial").mkdir()
    os.mkfifo(place.workspace / "fifo.partial")
    (place.workspace / "busy.partial").write_text("of another run\n")
    missing = "no such file or directory"
    with (place.workspace / "busy.partial").open() as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        for words, outcome in (
            (["-o", "none/out"], f"none/out: {missing}"),
            (["-o", "out", "--reject", "none/out"], f"none/out: {missing}"),
            (["-o", ".."], "..: is a directory"),
            (["-o", "taken"], "taken.partial: it is no regular file, and is not replaced"),
            (["-o", "fifo"], "fifo.partial: it is no regular file, and is not replaced"),
            (["-o", "/proc/out"], f"/proc/out: {missing}"),
            (["-o", "busy"], "busy.partial: another run is writing it"),
        ):
            done = place.stream("matrix", "--probes", folder, *words)
            assert (done.code, done.err) == (2, f"stream: {outcome}\n")
    assert not (place.root / "ran").exists()
    assert {path.name for path in place.workspace.iterdir()} == {
        "taken.partial",
        "fifo.partial",
        "busy.partial",
    }
    assert (place.workspace / "busy.partial").read_text() == "of another run\n"


@pytest.mark.parametrize("flag", ["-o", "--reject"])
def test_nothing_runs_before_a_fifo_has_a_reader(place: Place, flag: str) -> None:
    folder = place.write_probes(a=f"touch {place.root}/ran\n")
    process = place.start("matrix", "--probes", folder, flag, place.make_fifo("unread"))
    while len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 2:
        assert process.poll() is None  # a thread of its own waits for a reader
    process.terminate()
    assert place.finish(process).code == 143
    assert not (place.root / "ran").exists()


def test_a_failure_before_anyone_watches(place: Place) -> None:
    """The first probes run; what should watch them cannot be had."""
    folder = place.write_probes(a=SLEEP, b=f'trap "" TERM\n{SLEEP}{SLEEP}')
    broken = place.root / "broken"
    broken.mkdir()
    (broken / "anyio.py").write_text("raise RuntimeError('not to be had')\n")
    done = place.stream("matrix", "--probes", folder, env={"PYTHONPATH": str(broken)})
    assert done.code == 1
    assert done.err.splitlines()[-1] == "RuntimeError: not to be had"
    assert not place.find_left()
    place.error_texts.clear()  # a traceback it is, for what nobody can foresee


def test_an_output_file_is_replaced_when_it_is_whole(place: Place) -> None:
    out = place.root / "out"
    out.write_text("old")
    fifo = place.make_fifo("running")
    recorded = f'until [[ -s "{out}.partial" ]]; do :; done\n'
    folder = place.write_probes(a="", b=f'{recorded}echo >"{fifo}"\n{SLEEP}')
    refused = place.stream("matrix", "--probes", folder, "-o", out)
    assert (refused.code, refused.out) == (2, b"")
    assert refused.err == f"stream: {out}: it is there already; --force replaces it\n"
    process = place.start("matrix", "--probes", folder, "-o", out, "--force")
    fifo.read_text()
    assert out.read_text() == "old"
    process.terminate()
    done = place.finish(process)
    assert (done.code, done.out) == (143, b"")
    assert out.read_text() == "old"
    assert f"stream: what was recorded until then is in {out}.partial\n" in done.err
    (record,) = map(json.loads, Path(f"{out}.partial").read_bytes().splitlines())
    assert record["probe"]["id"] == "a"
    done = place.stream("matrix", "--probes", folder, "--probe", "a", "-o", out, "--force")
    assert (done.code, done.out) == (0, b"")
    assert json.loads(out.read_bytes()) == record
    assert not Path(f"{out}.partial").exists()


def test_an_output_takes_the_place_of_a_link(place: Place) -> None:
    """What that leads to is not ours; a link to a device or to an open file is a name of it."""
    victim, link = place.root / "victim", place.root / "link"
    victim.write_text("precious\n")
    folder = place.write_probes(a="")
    for target in (victim, place.root / "nowhere"):
        link.symlink_to(target)
        assert place.stream("matrix", "--probes", folder, "-o", link).code == 2
        assert link.is_symlink()
        assert place.stream("matrix", "--probes", folder, "-o", link, "--force").code == 0
        assert (link.is_symlink(), link.read_bytes().count(b"\n")) == (False, 1)
        assert victim.read_text() == "precious\n"
        link.unlink()
    done = place.stream("matrix", "--probes", folder, "-o", "/dev/stdout")
    assert (done.code, done.ids) == (0, ["a"])
    assert Path("/dev/stdout").is_symlink()
    assert place.stream("matrix", "--probes", folder, "-o", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_what_a_shell_has_opened_is_written_to(place: Place, name: str) -> None:
    """It is a file, is there, and is what the user means; what is in it already stays."""
    (place.workspace / "link").symlink_to("/dev/stdout")
    kept = place.root / "kept"
    with kept.open("a") as file:
        file.write("before\n")
        file.flush()
        done = place.stream("matrix", "--probes", place.write_probes(a=""), "-o", name, stdout=file)
    assert done.code == 0, done.err
    before, record = kept.read_bytes().splitlines()
    assert before == b"before"
    assert json.loads(record)["probe"]["id"] == "a"
    for number in (3, 6, 9, 1 << 40):  # those that stream opens for itself among them
        folder = place.root / "tree" / "probes"
        done = place.stream("matrix", "--probes", folder, "-o", f"/dev/fd/{number}")
        assert done.code == 2


def test_what_an_output_grows_in_is_made_anew(place: Place) -> None:
    """Somebody put a link there: what it leads to is not ours."""
    victim, out = place.root / "victim", place.root / "out"
    victim.write_text("precious\n")
    Path(f"{out}.partial").symlink_to(victim)
    done = place.stream("matrix", "--probes", place.write_probes(a=""), "-o", out)
    assert (done.code, victim.read_text()) == (0, "precious\n")
    assert out.read_bytes().count(b"\n") == 1
    assert not Path(f"{out}.partial").is_symlink()


def test_a_quiet_matrix(place: Place) -> None:
    folder = place.write_probes(a="")
    done = place.stream("matrix", "-q", "--probes", folder, "-o", place.root / "out")
    assert (done.code, done.out, done.err) == (0, b"", "")
    done = place.stream("matrix", "-q", "--probes", place.write_probes(tree="b", b="exit 3\n"))
    assert (done.code, len(done.records)) == (1, 1)
    assert "exited with status 3" in done.err


def interrupt_run(
    place: Place, number: signal.Signals, command: tuple[str, ...] = ("matrix",), times: int = 1
) -> Done:
    """A run that is hit while a probe is known to be running."""
    fifo = place.make_fifo("running")
    folder = place.write_probes(
        a="", b=f'trap "" TERM INT HUP\nmkdir "$TMPDIR/x"\necho >"{fifo}"\n{SLEEP}{SLEEP}'
    )
    process = place.start(*command, "--probes", folder)
    fifo.read_text()
    for _ in range(times):
        process.send_signal(number)
    return place.finish(process)


@pytest.mark.parametrize(
    ("command", "expected"),
    [("listen", "2 records of 1 probe"), ("validate", "2 in = 2 out"), ("check", "2 in = 2 out")],
)
def test_a_reader_reads_its_writer_to_the_end(place: Place, command: str, expected: str) -> None:
    """Ctrl-C goes to both: what the writer prints before it ends is read, and reported."""
    record = place.stream("matrix", "--probes", place.write_probes(a="")).out
    process = place.start(command, "-", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(record)
    process.stdin.flush()
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    done = place.finish(process, record)
    assert done.code == 130
    assert expected in (first + done.out).decode() + done.err
    assert done.err.splitlines()[-1] == "stream: interrupted"


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals(place: Place, number: signal.Signals, times: int) -> None:
    """The impatient, who signal again, do not break the clean-up."""
    done = interrupt_run(place, number, times=times)
    assert done.code == 128 + number
    assert done.err.splitlines()[-1] == "stream: interrupted"
    assert "Traceback" not in done.err
    assert not place.find_left()


@pytest.mark.parametrize("words", [[], ["--as-completed"], ["--raw"]])
def test_what_had_finished_is_kept(place: Place, words: list[str]) -> None:
    """The first cell hangs, the others are done and wait for it: an interrupt loses none."""
    fifo = place.make_fifo("running")
    bodies = {f"b{n:02}": "" for n in range(20)}
    folder = place.write_probes(a=SLEEP, **bodies, c=f"echo >{fifo}\n{SLEEP}")
    process = place.start("matrix", "--probes", folder, "--jobs", "2", "-o", "out", *words)
    fifo.read_text()
    process.send_signal(signal.SIGINT)
    done = place.finish(process)
    assert (done.code, done.out) == (130, b"")
    what = "20 raw emissions" if words == ["--raw"] else "20 records: 20 success"
    assert done.err.splitlines() == [
        f"stopped: 20 of 22 cells = {what}",
        "stream: what was recorded until then is in out.partial",
        "stream: interrupted",
    ]
    assert [path.name for path in place.workspace.iterdir()] == ["out.partial"]
    lines = (place.workspace / "out.partial").read_bytes().splitlines()
    probes = [json.loads(line)["probe"] for line in lines]
    ids = [probe if words == ["--raw"] else probe["id"] for probe in probes]
    assert ids == sorted(bodies) or (words == ["--as-completed"] and sorted(ids) == sorted(bodies))


def test_nothing_had_finished(place: Place) -> None:
    """It may come before there is a loop to hear it, and then nothing was begun."""
    done = interrupt_run(place, signal.SIGINT, ("matrix", "--jobs=1", "--probe=b"))
    *more, last = done.err.splitlines()
    assert more in ([], ["stopped: 0 of 1 cells = 0 records"])
    assert last == "stream: interrupted"


@pytest.mark.parametrize("command", [("gate",), ("probe", "b")])
def test_signals_to_other_commands(place: Place, command: tuple[str, ...]) -> None:
    done = interrupt_run(place, signal.SIGTERM, command)
    assert (done.code, done.out, done.err) == (143, b"", "stream: interrupted\n")


def test_a_signal_while_nobody_reads(place: Place) -> None:
    """A pipe of one page is full after the first record."""
    fifo = place.make_fifo("started")
    folder = place.write_probes(
        a=f"printf . >{fifo}\nemit --message \"$(printf '%3000s')\"\n", emit=""
    )
    started = os.open(fifo, os.O_RDWR)
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    process = place.start("matrix", "--probes", folder, "--repeat=50", "--jobs=1", stdout=write)
    os.close(write)
    for _ in range(8):
        assert os.read(started, 1) == b"."
    process.terminate()
    assert place.finish(process).code == 143
    os.close(started)
    os.close(read)


def test_a_signal_while_a_fifo_has_no_reader(place: Place) -> None:
    folder = place.write_probes(a="")
    process = place.start("matrix", "--probes", folder, "-o", place.make_fifo("unread"))
    while len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 2:
        assert process.poll() is None  # a thread of its own waits for a reader
    process.terminate()
    assert place.finish(process).code == 143


def test_signals_that_were_ignored_stay_so(place: Place) -> None:
    """nohup stream …"""
    fifo, go = place.make_fifo("running"), place.make_fifo("go")
    folder = place.write_probes(a=f'echo >"{fifo}"\nread -r _ <"{go}"\n')
    nohup = ("bash", "-c", 'trap "" HUP; exec "$@"', "nohup", STREAM)
    process = place.start("matrix", "--probes", folder, argv0=nohup)
    fifo.read_text()
    process.send_signal(signal.SIGHUP)
    go.write_text("on\n")
    assert place.finish(process).code == 0


def test_a_killed_run_leaves_whole_lines(place: Place) -> None:
    fifo = place.make_fifo("running")
    folder = place.write_probes(a="", b="", c=f'echo $$ >"{fifo}"\nread -r _ <"{fifo}"\n')
    process = place.start("matrix", "--probes", folder, "-o", "out", "--jobs", "1")
    probe = int(fifo.read_text())
    process.kill()
    assert place.finish(process).code == -signal.SIGKILL
    os.kill(probe, signal.SIGKILL)
    assert not (place.workspace / "out").exists()
    lines = (place.workspace / "out.partial").read_bytes().split(b"\n")
    for line in lines[:-1]:
        json.loads(line)
    subprocess.run(["rm", "-rf", *place.tmp.iterdir()], check=True)  # SIGKILL cannot clean up


def test_where_send_is_refused(place: Place) -> None:
    """Threads wake asyncio by send(2) when they are done: without it nothing must wait forever."""
    launcher = (sys.executable, str(Path(__file__).parents[1] / "no_send.py"), STREAM)
    done = place.stream("matrix", "--probes", place.write_probes(a=""), "-o", "out", argv0=launcher)
    assert done.code == 0, done.err
    done = place.stream("validate", "out", argv0=launcher)
    assert done.code == 0, done.err
