"""Each call is seen once, with what it was given, what it reached and how it ended."""

from __future__ import annotations

import errno
import json
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stream.sources.kernel import loader
from stream.transformers.kernel_lines import named_path, second_named_path
from stream.transformers.normalize import Normalize
from tests.core.properties import feed
from tests.kernel.rig import ROOT, Recorded, describe_event, expected, run_program
from tests.sweeping import first_of

pytestmark = pytest.mark.usefixtures("kernel_feed", "loaded")
LEGACY = platform.machine() == "x86_64"  # younger machines never had these calls
O_BOTH = os.O_CREAT | os.O_RDWR
NOENT, BADF, FAULT = -errno.ENOENT, -errno.EBADF, -errno.EFAULT


#: The best of the objects that this kernel takes is the one that every run tries.
TAKEN = loader.OBJECTS[tuple(map(int, platform.release().split(".")[:2])) < (6, 9) :]


@pytest.fixture(params=first_of(*TAKEN))
def loaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the objects: what they report is the same."""
    name: str = request.param
    monkeypatch.setattr(loader, "OBJECTS", (name,))
    return name


def check_and_list(recorded: Recorded) -> list[dict[str, Any]]:
    """What the program did between its start and its end; the counters must be right."""
    assert recorded.capture.cgroup == "clean", recorded.capture
    assert recorded.is_balanced
    assert recorded.capture.dropped == recorded.capture.misses == recorded.capture.lost_forks == 0
    assert recorded.capture.unknown_loss == ""
    assert recorded.gaps == []
    events = [describe_event(event) for event in recorded.events]
    assert events[0]["call"] == "exec"
    assert events[-1]["call"] == "exit"
    return events[1:-1]


def test_opens(calls: Path, place: Path) -> None:
    sub, given = str(place / "sub"), str(place / "given")
    create = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    temporary = os.O_TMPFILE | os.O_RDWR
    folder = os.O_PATH | os.O_DIRECTORY
    seen = check_and_list(run_program(place, calls, "opens"))
    unnamed = seen[-6]
    assert unnamed.pop("resolved").startswith(f"{place}/#")
    assert seen == [
        expected("openat", 3, "sub", resolved=sub, flags=folder),
        *(
            [
                expected("open", 4, "given", resolved=given),
                expected("open", NOENT, "none", base=str(place), flags=os.O_WRONLY),
                expected("creat", 5, "created", resolved=f"{place}/created", flags=create)
                | {"mode": 0o600},
            ]
            if LEGACY
            else []
        ),
        expected("openat", 6, "link", resolved=sub, flags=os.O_DIRECTORY),
        expected("openat", NOENT, "none", base=sub, flags=os.O_RDWR | os.O_APPEND),
        expected("openat", 7, "../given", resolved=given),
        expected("openat", 8, "/dev/null", resolved="/dev/null", flags=os.O_WRONLY | os.O_TRUNC),
        expected("openat", 9, ".", flags=temporary, mode=0o600, marks=["unreachable"]),
        expected("openat2", 10, "two", resolved=f"{place}/two", flags=O_BOTH, mode=0o640)
        | {"resolve": 4},
        expected("openat2", NOENT, "none/x", base=sub, flags=O_BOTH, mode=0o640, resolve=4),
        expected("openat2", -errno.EINVAL, "x", base=sub, flags=O_BOTH),
        expected("openat", 11, "/", resolved="/"),
        expected("openat", BADF, "x"),
    ]


def test_changes(calls: Path, place: Path) -> None:
    sub, given = str(place / "sub"), str(place / "given")
    here, there = {"base": str(place)}, {"base": sub}
    to_here, to_there = {"to_base": str(place)}, {"to_base": sub}
    seen = check_and_list(run_program(place, calls, "changes"))
    assert seen[:2] == [
        expected("openat", 3, "sub", resolved=sub, flags=os.O_PATH | os.O_DIRECTORY),
        expected("openat", 4, "given", resolved=given, flags=os.O_RDWR),
    ]
    legacy = [
        expected("mkdir", 0, "d1", **here, mode=0o700),
        expected("rmdir", 0, "d1", **here),
        expected("mknod", 0, "n1", **here, mode=stat.S_IFIFO | 0o600),
        expected("rename", 0, "n1", **here, to_path="n2", **to_here),
        expected("link", 0, "n2", **here, to_path="n3", **to_here),
        expected("symlink", 0, "../target", to_path="s1", **to_here),
        expected("chmod", 0, "n3", **here, mode=0o640),
        expected("chown", 0, "n3", **here, uid=1, gid=2),
        expected("lchown", 0, "s1", **here, uid=3),
        expected("unlink", 0, "n2", **here),
        expected("unlink", NOENT, "none", **here),
    ]
    first = legacy if LEGACY else []
    assert seen[2 : 2 + len(first)] == first
    last = seen[2 + len(first) :]
    follow, empty, no_follow, remove = 0x400, 0x1000, 0x100, 0x200
    symlink_mode = last[9].pop("ret")  # of a symlink: some kernels refuse it
    assert symlink_mode in (0, -errno.EOPNOTSUPP)
    assert last == [
        expected("mkdirat", 0, "d2", **there, mode=0o750),
        expected("mknodat", 0, "f", **there, mode=stat.S_IFREG | 0o644),
        expected("renameat", 0, "f", **there, to_path="f2", **to_here),
        expected("renameat2", 0, "f2", **here, to_path="f3", **to_there, flags=1),
        expected("linkat", 0, "f3", **there, to_path="f4", **to_here, flags=follow),
        expected("linkat", 0, "", resolved=given, to_path="f5", **to_there, flags=empty),
        expected("symlinkat", 0, "/nowhere", to_path="s2", **to_there),
        expected("fchmod", 0, resolved=given, mode=0o4711),
        expected("fchmodat", 0, "f3", **there, mode=0o600),
        expected("fchmodat2", None, "s2", **there, mode=0o600, flags=no_follow),
        expected("fchown", 0, resolved=given, uid=5, gid=6),
        expected("fchownat", 0, "f3", **there, gid=7),
        expected("fchownat", 0, "", resolved=given, uid=8, gid=9, flags=empty),
        expected("truncate", 0, "given", **here, size=1 << 33),
        expected("ftruncate", 0, resolved=given, size=5),
        expected("ftruncate", -errno.EINVAL, resolved=given, size=-1),
        expected("ftruncate", BADF, size=1),
        expected("unlinkat", 0, "f3", **there),
        expected("rmdir", 0, "d2", **there, flags=remove),
    ]


def test_peers(calls: Path, place: Path) -> None:
    one, two = "127.0.0.2:77", "127.0.0.3:78"
    seen = check_and_list(run_program(place, calls, "peers"))
    assert seen[5].pop("ret") in (-errno.EINPROGRESS, -errno.ECONNREFUSED)
    assert seen == [
        expected("sendto", 1, peer=one),
        expected("sendmsg", 5, peer=two),
        expected("sendmmsg", 2, peer=one),
        expected("sendmmsg", 2, peer=two),
        expected("connect", 0, peer=one),
        # two sends to whom it is connected name nobody
        expected("connect", None, peer=two),
        expected("connect", 0, peer="[::1]:79"),
        expected("connect", NOENT, peer=f"unix:{place}/nobody.sock"),
        expected("connect", -errno.ECONNREFUSED, peer="unix:@hidden"),
        expected("connect", FAULT, marks=["fault"]),
    ]


def test_peers_that_are_read_otherwise_than_they_look(calls: Path, place: Path) -> None:
    one, two = "127.0.0.2:40077", "127.0.0.3:78"
    seen = check_and_list(run_program(place, calls, "peers_oddly"))
    local = f"unix:{place}/sub/nobody.sock"
    assert seen == [
        expected("bind", 0, peer=one),
        expected("sendto", 1, peer="127.0.0.4:79"),
        expected("sendto", -errno.EINVAL),
        expected("connect", 0, peer=one),
        expected("sendmmsg", 40, peer=two),
        expected("sendmmsg", 40, peer=two),
        expected("sendmmsg", -errno.EINVAL, peer="127.0.0.3:0"),
        expected("sendmmsg", 1, peer=one),
        expected("sendmmsg", None, peer="127.0.0.3:0"),
        expected("connect", 0, peer=one),
        expected("connect", 0, peer="127.0.0.1:40077"),
        expected("connect", NOENT, peer=local),
        expected("sendto", NOENT, peer=local),
        expected("connect", 0, peer="unspec"),
    ]


@pytest.mark.skipif(not LEGACY, reason="of x86-64 only")
def test_half_of_a_number_is_the_call(calls: Path, place: Path) -> None:
    recorded = run_program(place, calls, "halves")
    foreign = "1 calls were made in a way that is not followed on this machine"
    assert recorded.capture.unknown_loss in ("", foreign)  # not all kernels have the x32 way
    assert recorded.event_at("given").resolved == f"{place}/given"
    assert recorded.capture.unknown_loss or recorded.event_at("made").call == "mkdir"


def test_a_call_that_a_signal_interrupts_has_no_result(calls: Path, place: Path) -> None:
    """Whoever was to be reached may have been."""
    seen = check_and_list(run_program(place, calls, "interrupted"))
    connects = [one for one in seen if one["call"] == "connect"]
    [peer] = {one["peer"] for one in connects}
    assert peer.startswith("127.0.0.1:")
    assert connects[2:] == [expected("connect", None, peer=peer)] * 2
    opens = [one for one in seen if one.get("path") == "fifo" and one["call"] == "openat"]
    assert opens == [expected("openat", None, "fifo", base=str(place))] * 2


def test_a_thread_cannot_say_whom_another_has_reached(calls: Path, place: Path) -> None:
    reader, writer = os.pipe()
    recorded = run_program(place, calls, "misled", stdout=writer)
    os.close(writer)
    with os.fdopen(reader) as output:
        count, port = output.read().split(" to ")
    connects = recorded.events_of("connect")
    reached = [event.peer for event in connects if event.ret == 0]
    assert reached == [f"127.0.0.1:{int(port)}"] * int(count)
    assert len(connects) == 500


def test_an_open_whose_descriptor_got_another_file_has_a_mark(calls: Path, place: Path) -> None:
    """It is never among the reads that are left out."""
    recorded = run_program(place, calls, "exchanged")
    opened = recorded.events_at("given")
    assert len(opened) == 300
    assert {(*event.marks,) for event in opened} == {("shared_files",)}
    assert recorded.events_at("/dev/null")[0].marks == []
    transformer = Normalize()
    feed(transformer, [*opened])
    assert transformer.events == 300


@pytest.mark.parametrize("depth", [0, 150])
def test_a_path_was_there_at_some_time(programs: Path, place: Path, depth: int) -> None:
    """Of folders that are renamed meanwhile, no name is made up of two, nor a path of two paths."""
    opens = 20_000
    recorded = run_program(place, programs / "renamed", opens, depth)
    assert recorded.code == 0
    assert recorded.is_balanced
    a, b, c, d = (letter * 22 for letter in "abcd")
    pairs = [(a, c), (b, c), (b, d)]
    there = {"/".join([str(place), above, *["m"] * depth, below, "f"]) for above, below in pairs}
    seen = [event for event in recorded.events_at("f") if event.flags == 0]
    assert len(seen) + recorded.capture.dropped >= opens
    assert {event.resolved for event in seen} - {None} <= there
    assert sum(event.resolved is None for event in seen) < len(seen) // 10
    assert {(*event.marks,) for event in seen if event.resolved is None} <= {("walk_cut",)}


def test_names_of_every_length(place: Path) -> None:
    """Those of up to 39 letters lie in the kernel in another place than the longer ones."""
    lengths = [*range(1, 61), 127, 255]
    script = (
        "import os, sys\n"
        "for n in map(int, sys.argv[1:]):\n"
        "    name = ('abcdefghij' * 26)[:n]\n"
        "    os.mkdir(name)\n"
        "    os.close(os.open(f'{name}/{name}', os.O_CREAT | os.O_WRONLY))\n"
        "    os.close(os.open(f'{name}/{name}', os.O_RDONLY))\n"
    )
    recorded = run_program(place, sys.executable, "-ISc", script, *lengths)
    assert recorded.code == 0
    names = [("abcdefghij" * 26)[:length] for length in lengths]
    for name in names:
        opened = recorded.events_at(f"{name}/{name}")
        assert [event.resolved for event in opened] == [f"{place}/{name}/{name}"] * 2


@pytest.mark.parametrize("kind", ["shared", "private"])
def test_what_a_child_mounts_among_its_own_may_come_back(
    calls: Path, place: Path, kind: str
) -> None:
    """Else it concerns the child alone. In a namespace where nobody else mounts anything."""
    program = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from tests.kernel.rig import run_program\n"
        "recorded = run_program(Path(sys.argv[1]), sys.argv[2], 'propagated')\n"
        "before, after = (recorded.event_at(f'sub/{n}') for n in ('before', 'x/key'))\n"
        "print(json.dumps([before.marks, after.ret, after.marks]))\n"
    )
    (place / "given-folder").mkdir()
    (place / "given-folder/key").touch()
    steps = "mount -t tmpfs none sub && mkdir sub/x && mount --make-$0 sub && cd $1 && exec $2 -c"
    argv = ["unshare", "--mount", "sh", "-c", f'{steps} "$3" $4 $5', kind, str(ROOT)]
    argv += [sys.executable, program, str(place), str(calls)]
    done = subprocess.run(argv, cwd=place, capture_output=True, text=True)
    assert done.stderr == ""
    came_back = [[], 3, ["other_mounts"]]
    assert json.loads(done.stdout) == (came_back if kind == "shared" else [[], NOENT, []])


def test_odd_paths(calls: Path, place: Path) -> None:
    here = str(place)
    seen = check_and_list(run_program(place, calls, "odd"))
    assert len(seen[0]["path"]) == 4095
    assert seen[0] == expected("openat", seen[0]["ret"], "/" * 4092 + "tmp", resolved="/tmp")
    assert seen[1] == expected(
        "openat", -errno.ENAMETOOLONG, "x" * 4096, base=here, marks=["truncated"]
    )
    assert seen[2:9] == [
        expected("openat", FAULT, marks=["fault"]),
        expected("openat", NOENT, "", base=here),
        expected("openat", 4, 'a\n"q\\\\\\xff\\xfe\x01', flags=os.O_CREAT, mode=0o600)
        | {"resolved": f'{here}/a\n"q\\\\\\xff\\xfe\x01'},
        expected("renameat", FAULT, "given", base=here, marks=["fault"]),
        expected("mkdirat", FAULT, mode=0o700, marks=["fault"]),
        expected("execve", FAULT, marks=["fault"]),
        expected("openat", 5, "gone", resolved=f"{here}/gone", flags=O_BOTH, mode=0o600),
    ]
    gone = {"resolved": f"{here}/gone", "marks": ["unreachable"]}
    assert seen[9:] == [
        expected("unlinkat", 0, "gone", base=here),
        expected("openat", 6, "/proc/self/fd/5", **gone),
        expected("fchmod", 0, mode=0o644, **gone),
        expected("openat", 9, "/proc/self/fd/7", flags=os.O_NONBLOCK, marks=["unreachable"]),
    ]


def test_paths_by_what_a_process_has_itself(calls: Path, place: Path) -> None:
    """What only looks like it is not marked, and neither is a link that is meant itself."""
    recorded = run_program(place, calls, "views")
    seen = check_and_list(recorded)
    pid = recorded.events[0].pid
    here, sub, moved = ({"base": f"{place}{name}"} for name in ("", "/sub", "/moved"))
    thread = {"base": f"{place}/given-to-thread"}
    assert seen[3:12] == [
        expected("openat", 5, "/proc/self/fd/14/a", resolved=f"{place}/sub/a")
        | {"flags": os.O_CREAT | os.O_WRONLY, "mode": 0o600},
        expected("renameat", 0, "/proc/self/fd/14/a", **sub, to_path="/proc/thread-self/fd/14/b")
        | {"to_base": f"{place}/sub"},
        expected("renameat", 0, "given", **here, to_path="/dev/fd/14/../moved")
        | {"to_base": f"{place}/sub"},
        expected("linkat", 0, "/dev/fd/14//./b", **sub, to_path="c", to_base=str(place)),
        expected("linkat", 0, "/proc/self/fd/15", **moved, to_path="d", to_base=str(place))
        | {"flags": 0x400},
        expected("linkat", -errno.EXDEV, "/proc/self/fd/15", to_path="e", to_base=str(place)),
        expected("symlinkat", 0, "/proc/self/fd/14/b", to_path="/proc/self/cwd/s")
        | {"to_base": str(place)},
        expected("fchmodat", 0, "/proc/self/fd/15", **moved, mode=0o600),
        expected("truncate", -errno.ENOTDIR, "/dev/fd/15/", **moved, size=3),
    ]
    of_another = seen[17].pop("ret")
    assert of_another in (NOENT, -errno.EACCES)
    assert seen[12:] == [
        expected("unlinkat", -errno.EPERM, "/proc/self/fd/15"),
        expected("unlinkat", 0, "/proc/self/fd/14/b", **sub),
        expected("mkdirat", 0, "/proc/self/cwd/made", **here, mode=0o700),
        expected("openat", NOENT, "/proc/self/root/no/where", base="/"),
        expected("openat", NOENT, f"/proc/{pid}/fd/14/none", **sub),
        expected("openat", None, "/proc/1/fd/14/none"),
        expected("openat", NOENT, "/proc/self/fd/99/x"),
        expected("openat", NOENT, "/proc/self/fd/014/x"),
        expected("openat", NOENT, "/proc/self/fd/14x/x"),
        expected("openat", NOENT, "/proc/self/fd/4294967310/x"),
        expected("openat", -errno.ENOTDIR, "/proc/self/fdinfo/14/x"),
        expected("openat", NOENT, "/proc/self/cwdx/x"),
        expected("openat", NOENT, "/proc/self/fd//x"),
        expected("openat", -errno.ELOOP, "/proc/self/fd/15", flags=os.O_NOFOLLOW),
        expected("openat", -errno.ENOTDIR, "/proc/self/fd/15", **moved, flags=os.O_DIRECTORY),
        expected("openat2", NOENT, "/proc/self/fd/14/none", **sub, resolve=16),
        expected("openat", 6, "given-to-thread", resolved=f"{place}/given-to-thread")
        | {"flags": os.O_PATH | os.O_DIRECTORY},
        expected("openat", NOENT, "/proc/thread-self/fd/20/none", **thread),
        expected("openat", NOENT, "/proc/self/fd/20/none"),
    ]


def test_another_root(calls: Path, place: Path) -> None:
    """A path that begins with a slash starts there; and where nothing leads above, neither does
    what is claimed."""
    recorded = run_program(place, calls, "roots")
    jail = {"base": f"{place}/sub"}
    own = {"marks": ["other_root"]}
    assert check_and_list(recorded) == [
        expected("mkdirat", 0, "/in", **jail, mode=0o700, **own),
        expected("renameat", 0, "in", **jail, to_path="/../moved", to_base=f"{place}/sub", **own),
        expected("symlinkat", 0, "/etc/passwd", to_path="/lib", to_base=f"{place}/sub", **own),
        expected("openat", NOENT, "/usr/lib/none", **jail, **own),
        expected("openat", NOENT, "/proc/self/fd/0/none", **jail, **own),
        expected("fchmodat", 0, "../../moved", **jail, mode=0o711, **own),
        expected("execve", NOENT, "/bin/none", **jail, **own),
        expected("rmdir", 0, "//./moved", **jail, flags=0x200, **own),
    ]
    assert [named_path(event) for event in recorded.events[1:-1]] == [
        f"{place}/sub/in",
        f"{place}/sub/in",
        None,
        f"{place}/sub/usr/lib/none",
        f"{place}/sub/proc/self/fd/0/none",
        None,
        f"{place}/sub/bin/none",
        f"{place}/sub/moved",
    ]
    assert [second_named_path(event) for event in recorded.events[2:4]] == [
        f"{place}/sub/moved",
        f"{place}/sub/lib",
    ]


def test_mounts_of_its_own(calls: Path, place: Path) -> None:
    """What a path leads to there, its text does not show."""
    elsewhere = {"marks": ["other_mounts"]}
    assert check_and_list(run_program(place, calls, "mounts")) == [
        expected("mkdirat", 0, f"{place}/sub/x", mode=0o700, **elsewhere),
        expected("rmdir", 0, "sub/x", base=str(place), flags=0x200, **elsewhere),
        expected("execve", NOENT, "/bin/none", **elsewhere),
    ]


def test_a_mount_that_lies_nowhere(calls: Path, place: Path) -> None:
    (place / "sub/lib").mkdir()
    (place / "sub/lib/secret").touch()
    """What is called /lib/secret in it may be any file: it has no name."""
    seen = check_and_list(run_program(place, calls, "nowhere"))
    marks = ["unreachable", "other_mounts"]
    assert seen[-1] == expected("openat", 4, "lib/secret", marks=marks)


def test_a_file_by_its_handle(calls: Path, place: Path) -> None:
    recorded = run_program(place, calls, "handles")
    if recorded.code == 77:
        pytest.skip("this file system has no handles")
    assert check_and_list(recorded)[1:] == [
        expected("open_by_handle_at", 4, resolved=f"{place}/sub", flags=os.O_DIRECTORY),
        expected("open_by_handle_at", FAULT, flags=os.O_RDWR),
    ]


def test_paths_deeper_than_what_is_followed(calls: Path, place: Path) -> None:
    recorded = run_program(place, calls, "deep")
    check_and_list(recorded)
    within, beyond = recorded.events_at("leaf")
    assert within.resolved == f"{place}{'/d' * 100}/leaf"
    assert within.marks == []
    assert (beyond.ret, beyond.resolved, beyond.marks) == (4, None, ["walk_cut"])
    failed = recorded.event_at("none")
    assert (failed.ret, failed.base, failed.marks) == (NOENT, None, ["walk_cut"])


@pytest.mark.skipif(not LEGACY, reason="32-bit calls are followed on x86-64 only")
def test_32_bit_calls(calls: Path, place: Path) -> None:
    here = {"base": str(place), "marks": ["compat"]}
    moved = {"to_path": "moved", "to_base": str(place)}
    back = {"to_path": "given", "to_base": str(place)}
    given = {"resolved": str(place / "given"), "marks": ["compat"]}
    create = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    peer = {"peer": "127.0.0.2:77", "marks": ["compat"]}
    assert check_and_list(run_program(place, calls, "compat")) == [
        expected("open", 5, "given", **given),
        expected("creat", 6, "moved", flags=create, mode=0o600)
        | {"resolved": f"{place}/moved", "marks": ["compat"]},
        expected("openat", 7, "given", **given, flags=O_BOTH, mode=0o640),
        expected("chown", 0, "given", **here, gid=7),
        expected("lchown", 0, "given", **here, gid=70000),
        expected("truncate", 0, "given", **here, size=9),
        expected("truncate", 0, "given", **here, size=(2 << 32) + 5),
        expected("rename", 0, "given", **here, **moved),
        expected("link", 0, "moved", **here, **back),
        expected("unlink", 0, "moved", **here),
        expected("symlink", 0, "given", **moved, marks=["compat"]),
        expected("renameat", 0, "moved", **here, **back),
        expected("unlinkat", 0, "given", **here),
        expected("mkdir", 0, "given", **here, mode=0o700),
        expected("rmdir", 0, "given", **here),
        expected("mknod", 0, "given", **here, mode=stat.S_IFIFO | 0o600),
        expected("chmod", 0, "given", **here, mode=0o611),
        expected("connect", 0, **peer),
        expected("connect", 0, **peer),
        expected("sendto", 1, **peer),
        expected("sendmsg", 0, **peer),
        expected("sendmsg", 0, **peer),
        expected("execve", NOENT, "moved", **here),
    ]


def test_execs(calls: Path, place: Path) -> None:
    script = place / "script"
    script.write_text("#!/bin/true an argument\n")
    script.chmod(0o755)
    recorded = run_program(place, calls, "execs")
    events = check_and_list(recorded)
    here = {"base": str(place)}
    failed = [one for one in events if one["call"] in ("execve", "execveat")]
    assert failed == [
        expected("execve", NOENT, "none", **here),
        expected("execveat", NOENT, "none", base=str(place / "sub"), flags=0x100),
        expected("execveat", BADF, "", flags=0x1000),
    ]
    first, by_descriptor, by_script = recorded.events_of("exec")
    assert first.path == first.resolved == str(calls)
    assert first.argv == [str(calls), "execs"]
    assert (by_descriptor.path, by_descriptor.resolved) == ("/dev/fd/4", str(calls))
    assert by_descriptor.base == str(calls)
    assert by_descriptor.argv == ["first", "a\\xff b", ""]
    assert (by_script.path, by_script.base) == ("script", str(place))
    assert by_script.resolved == str(Path("/bin/true").resolve())
    assert by_script.argv == ["/bin/true", "an argument", "script", "a\\xff b", ""]


def test_long_arguments(place: Path) -> None:
    word = "x" * 5000
    first, last = run_program(place, "/bin/sh", "-c", "exec true $0 $0 $0 $0", word).events_of(
        "exec"
    )
    assert first.argv == ["/bin/sh", "-c", "exec true $0 $0 $0 $0", word]
    assert last.argv is not None
    assert (last.argv[:4], last.marks) == (["true", word, word, word], ["truncated"])
    assert sum(len(one) + 1 for one in last.argv) - 1 == 16383


def test_threads_that_open_and_execute(calls: Path, place: Path) -> None:
    recorded = run_program(place, calls, "thread")
    check_and_list(recorded)
    first, second = recorded.events_of("exec")
    opened = recorded.event_at("from-thread")
    assert opened.pid == first.pid != opened.tid
    assert (first.marks, second.marks) == ([], ["thread_exec"])
    assert second.pid == second.tid == first.pid
    assert len(recorded.events_of("exit")) == 1


def test_families(calls: Path, place: Path) -> None:
    """A daemon is still of the tree; every process ends once, with what wait returns."""
    recorded = run_program(place, calls, "families")
    check_and_list(recorded)
    forks, exits = recorded.events_of("fork"), recorded.events_of("exit")
    root = recorded.events[0].pid
    assert len(forks) == 3
    assert {fork.child for fork in forks} | {root} == {end.pid for end in exits}
    daemon = recorded.event_at("from-daemon").pid
    by_pid = {end.pid: end.status for end in exits}
    assert by_pid[daemon] == 3 << 8
    assert sorted(by_pid.values()) == [0, 0, 9, 3 << 8]


def test_the_last_of_two_threads_ends_the_process_once(calls: Path, place: Path) -> None:
    recorded = run_program(place, calls, "endings")
    check_and_list(recorded)
    ended = [end.pid for end in recorded.events_of("exit")]
    assert len(ended) == len(set(ended)) == 301


def test_a_call_that_was_killed_has_no_result(calls: Path, place: Path) -> None:
    recorded = run_program(place, calls, "blocked")
    check_and_list(recorded)
    [opened] = [event for event in recorded.events_of("openat") if event.path == "fifo"]
    assert (opened.ret, opened.resolved, opened.base) == (None, None, str(place))
    assert 9 in [end.status for end in recorded.events_of("exit")]


def test_what_was_reached_is_recorded_whatever_the_path_became(calls: Path, place: Path) -> None:
    (place / "flip-A").write_text("A")
    (place / "flip-B").write_text("B")
    recorded = run_program(place, calls, "race")
    assert recorded.code == 0
    opened = [event for event in recorded.events_of("openat") if "flip" in (event.path or "")]
    read = [event for event in recorded.events_of("openat") if "read-" in (event.path or "")]
    assert len(opened) == len(read) == 3000
    assert [event.resolved for event in opened] == [
        f"{place}/flip-{(event.path or '')[-1]}" for event in read
    ]


def test_a_path_that_was_changed_during_the_call(calls: Path, place: Path) -> None:
    recorded = run_program(place, calls, "changed")
    opened = recorded.event_at("innocent")
    assert (opened.ret, opened.resolved) == (3, f"{place}/fifo")


def test_attributes(calls: Path, place: Path) -> None:
    """Whatever comes of them: a file system may take none."""
    seen = check_and_list(run_program(place, calls, "attributes"))
    given = f"{place}/given"
    here: dict[str, Any] = {"base": str(place)}
    sub: dict[str, Any] = {"base": f"{place}/sub"}
    for one in seen:
        if "xattr" in one["call"] and one.pop("ret") == -errno.ENOSYS:
            pytest.skip("needs Linux 6.13")
        one.pop("ret", None)
    no_follow, empty = 0x100, 0x1000
    assert seen[2:] == [
        expected("setxattr", path="given", name="user.a", size=1, **here),
        expected("lsetxattr", path="none", name="user.b", size=1, **here),
        expected("fsetxattr", resolved=given, name="user.c", size=2, flags=1),
        expected("removexattr", path="given", name="user.a", **here),
        expected("lremovexattr", path="none", name="user.b", **here),
        expected("fremovexattr", resolved=given, name="user.c"),
        expected("setxattrat", path="../given", name="user.d", flags=no_follow, **sub),
        expected("removexattrat", path="", name="user.d", flags=empty, resolved=given),
        expected("utimensat", path="none", flags=no_follow, **sub),
        expected("utimensat", resolved=given),
        expected("open_tree", path="../given", resolved=given),
        expected("open_tree", path="sub", flags=1, **here),
        expected("mq_open", path="stream-calls"),
        expected("mq_unlink", path="stream-calls"),
    ]


def test_processes_that_are_reached_into(calls: Path, place: Path) -> None:
    """One of the run's own is no doubt."""
    recorded = run_program(place, calls, "reaches")
    seen = [one for one in check_and_list(recorded) if one["call"] not in ("fork", "exit")]
    [child] = [event.child for event in recorded.events_of("fork")]
    if seen[0]["ret"] < 0:
        pytest.skip("ptrace is forbidden here")
    assert seen == [
        expected("ptrace", 0, flags=0x4206, target=child),
        expected("process_vm_readv", 8, target=child),
        expected("process_vm_writev", 8, target=recorded.events[0].pid),
        expected("pidfd_getfd", 4, resolved="/dev/null", target=child),
        expected("pidfd_getfd", BADF),
    ]


def test_who_comes(calls: Path, place: Path) -> None:
    """Also where the program does not ask; nobody let in is nobody who came."""
    seen = [
        one
        for one in check_and_list(run_program(place, calls, "guests"))
        if one["call"] != "openat"
    ]
    first, second = (line.split() for line in (place / "ports").read_text().splitlines())
    door = f"{place}/sub/door"
    assert [one.pop("ret") >= 0 for one in seen] == [True] * len(seen)
    assert seen == [
        expected("bind", peer="127.0.0.5:0"),
        expected("bind", peer="[::]:0"),
        expected("bind", path="sub/door", resolved=door, base=str(place)),
        expected("bind", peer="127.0.0.6:0"),
        expected("connect", peer=f"127.0.0.5:{first[0]}"),
        expected("accept4", peer=f"127.0.0.6:{first[1]}"),
        expected("bind", peer="127.0.0.6:0"),
        expected("connect", peer=f"127.0.0.5:{second[0]}"),
        expected("accept4", peer=f"127.0.0.6:{second[1]}"),
        expected("connect", peer=f"unix:{door}"),
        expected("accept4", peer=f"unix:{door}"),
    ]


def test_io_uring(calls: Path, place: Path, loaded: str) -> None:
    recorded = run_program(place, calls, "uring")
    seen = check_and_list(recorded)
    if recorded.code == 77:  # it is forbidden here: that was seen, and there is no hole
        assert [one["call"] for one in seen] == ["io_uring_setup"]
        assert recorded.capture.uring == "unused"
        return
    assert seen.pop(0) == expected("io_uring_setup", 3)
    if loaded == "stream":
        assert (seen, recorded.capture.uring) == ([], "hole")
        return
    here, to_here = {"base": str(place), "marks": ["uring"]}, {"to_base": str(place)}
    large = 0o100000  # which the kernel adds
    create = os.O_CREAT | os.O_WRONLY | large
    assert seen == [
        expected("openat", 5, "given", **here, flags=large),
        expected("openat2", 6, "by-ring", **here, flags=create, mode=0o600),
        expected("connect", 0, peer="127.0.0.3:88", marks=["uring"]),
        expected("mkdirat", 0, "ring-dir", **here, mode=0o700),
        expected("symlinkat", 0, "target", to_path="ring-link", **to_here, marks=["uring"]),
        expected("linkat", 0, "given", **here, to_path="ring-hard", **to_here),
        expected("renameat2", 0, "ring-hard", **here, to_path="ring-moved", **to_here),
        expected("unlinkat", 0, "ring-moved", **here),
        expected("rmdir", 0, "ring-dir", **here, flags=0x200),
        expected("renameat2", 0, "/proc/self/cwd/by-ring", **here)
        | {"to_path": "/proc/self/cwd/moved", **to_here},
        expected("openat", NOENT, "none", **here, flags=large),
    ]
    assert recorded.capture.uring == "seen"
    for case in ("uring_send", "uring_attribute", "uring_accept"):  # which are not followed
        assert run_program(place, calls, case).capture.uring == "hole"
