"""The stand-in Internet from outside: what it counts, what it bears, how it ends, and why there
may be none."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

from stream.errors import InternetError
from stream.process.table import open_pidfd
from stream.process.tree import Reaper, start_tree
from stream.targets.internet import MOST_OF_ONE, StandInInternet, open_internet
from tests.cli.command import PATIENCE
from tests.targets.visiting import NONCES, client_words, run_inside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces need Linux")

LINE = "show(said('192.0.2.80', 7, word + b'\\n'))"
#: what opens it in a process of its own
OPEN = """
import anyio
from stream.errors import InternetError
from stream.targets.internet import open_internet
async def main():
    try:
        async with open_internet() as internet:
            print(*internet.prefix("/"), flush=True)
            await anyio.sleep_forever()
    except InternetError as error:
        print(error)
anyio.run(main)
"""


def pid_in(words: list[str]) -> int:
    """Return the process of the servers, as the words of a prefix name it."""
    return int(words[words.index("--target") + 1])


@pytest.mark.anyio
async def test_every_arrival_is_counted() -> None:
    """As often as it came, each with its nonce, also where many come at the same time."""
    nonces = [next(NONCES) for _ in range(8)]
    script = "for _ in range(5): said('192.0.2.9', 7, word + b'\\n'), echoed('192.0.2.9', word)"
    async with open_internet() as internet:
        async with anyio.create_task_group() as clients:
            for nonce in nonces:
                clients.start_soon(run_inside, internet, script, nonce)
        await internet.sync()
        for nonce in nonces:
            arrived = Counter((a.kind, a.address, a.port) for a in internet.arrivals(nonce))
            assert arrived == {("tcp", "192.0.2.9", 7): 5, ("udp", "192.0.2.9", 7): 5}
            assert {a.nonce for a in internet.arrivals(nonce)} == {nonce}
        assert internet.arrivals("0" * 12) == []


@pytest.mark.anyio
async def test_what_nobody_waited_for_is_counted() -> None:
    """All that was sent while the servers stood still, the sync as well: it is answered last."""
    nonce = next(NONCES)
    async with open_internet() as internet:
        servers = pid_in(internet.prefix("/"))
        os.kill(servers, signal.SIGSTOP)
        assert await run_inside(internet, "send_and_end(nonce)", nonce) == ""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(internet.sync)
            await anyio.wait_all_tasks_blocked()
            os.kill(servers, signal.SIGCONT)
        kinds = Counter(a.kind for a in internet.arrivals(nonce))
        assert kinds == {"http": 1, "udp": 80, "connect": 1, "tcp": 1}


@pytest.mark.anyio
async def test_syncs_at_the_same_time() -> None:
    async with open_internet() as internet, anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(internet.sync)


@pytest.mark.parametrize("abuse", ["send_garbage", "leave_half_open", "never_read", "reset"])
@pytest.mark.anyio
async def test_others_are_served(abuse: str) -> None:
    """Whoever abuses the servers keeps its connections meanwhile."""
    nonce = next(NONCES)
    script = f"{abuse}()\nshow('done')\nsys.stdin.read()"
    async with open_internet() as internet:
        process = await anyio.open_process(client_words(internet, script), stderr=None)
        async with process as client:
            assert client.stdin is not None
            assert client.stdout is not None
            assert await client.stdout.receive() == b"done"
            assert await run_inside(internet, LINE, nonce) == f"ok {nonce}\n"
            await internet.sync()
            assert [a.kind for a in internet.arrivals(nonce)] == ["tcp"]
            place = Path(f"/proc/{pid_in(internet.prefix('/'))}")
            status = (place / "status").read_text().split()
            assert int(status[status.index("VmHWM:") + 1]) < 30_000  # kB
            assert len(list((place / "fd").iterdir())) < 600
            await client.stdin.aclose()


@pytest.mark.anyio
async def test_a_datagram_whose_answer_would_reach_a_server(needs_root: None) -> None:
    """It gets none: the two would answer each other without end."""
    nonce = next(NONCES)
    async with open_internet() as internet:
        assert await run_inside(internet, "send_from_port(7, word)", nonce) == ""
        await internet.sync()
        await internet.sync()
        assert [a.kind for a in internet.arrivals(nonce)] == ["udp"]


@pytest.mark.anyio
async def test_a_flood_that_does_not_end() -> None:
    """Others are counted meanwhile, and what is kept is bounded."""
    old, nonce = next(NONCES), next(NONCES)
    async with open_internet() as internet:
        await run_inside(internet, LINE, old)
        await internet.sync()
        assert len(internet.arrivals(old)) == 1
        async with await anyio.open_process(client_words(internet, "flood()")) as client:
            with anyio.fail_after(PATIENCE):
                while internet.arrivals(old):  # the oldest is forgotten
                    await internet.sync()
            assert await run_inside(internet, LINE, nonce) == f"ok {nonce}\n"
            await internet.sync()
            assert [a.kind for a in internet.arrivals(nonce)] == ["tcp"]
            client.kill()
        script = f"for _ in range(3 * {MOST_OF_ONE}): echoed('192.0.2.1', word)"
        await run_inside(internet, script, nonce)
        await internet.sync()
        assert len(internet.arrivals(nonce)) == MOST_OF_ONE


@pytest.mark.anyio
async def test_a_folder_with_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a 'b' $c\n-d"
    folder.mkdir()
    async with open_internet() as internet:
        assert await run_inside(internet, "show(os.getcwd())", "-", str(folder)) == str(folder)


@pytest.mark.anyio
async def test_a_process_tree_inside(tmp_path: Path) -> None:
    """The servers are none of its strays, and it is as alone as it would be without them."""
    nonce = next(NONCES)
    async with open_internet() as internet:
        assert Reaper.get().is_idle()
        ask = f"exec 3<>/dev/tcp/192.0.2.5/7; echo {nonce} >&3; cat <&3"
        words = [*internet.prefix(str(tmp_path)), "bash", "-c", f"pwd; {ask}; setsid sleep 1000 &"]
        tree = start_tree(words, env={"PATH": os.environ["PATH"]}, cwd="/")
        assert tree.is_alone
        assert tree.leader.wait(PATIENCE) == 0
        assert os.read(tree.pipes[0], 4096).decode() == f"{tmp_path}\nok {nonce}\n"
        Reaper.get().end_all_trees([tree])
        assert Reaper.get().end_strays() == []
        await internet.sync()


@pytest.mark.anyio
async def test_servers_that_are_killed(tmp_path: Path) -> None:
    """Whoever waits learns of it, and nothing is started outside in their place."""
    async with open_internet() as internet:
        words = internet.prefix("/")
        os.kill(pid_in(words), signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(InternetError, match="has ended: somebody killed"):
                await internet.sync()
        touch = [*words, "touch", str(tmp_path / "made")]
        done = await anyio.run_process(touch, check=False, stderr=subprocess.DEVNULL)
        assert done.returncode != 0
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_servers_end_with_us(number: signal.Signals) -> None:
    """Whatever ended us, and all of our process group."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    words = [sys.executable, "-c", OPEN]
    with subprocess.Popen(words, stdout=pipe, stderr=null, text=True, process_group=0) as ours:
        assert ours.stdout is not None
        servers = open_pidfd(pid_in(ours.stdout.readline().split()))
        assert servers is not None
        os.killpg(ours.pid, number)
        ours.wait(PATIENCE)
        assert select.select([servers], [], [], PATIENCE)[0]
        os.close(servers)


async def why_there_is_none() -> str:
    with pytest.raises(InternetError) as caught:
        async with open_internet():
            pass
    return str(caught.value)


@pytest.mark.anyio
async def test_no_nsenter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = "it needs nsenter, of util-linux, on the PATH"
    assert await why_there_is_none() == f"no stand-in Internet here: {reason}"


@pytest.mark.anyio
async def test_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert await why_there_is_none() == "no stand-in Internet here: no such file or directory"


def start_pretender(says: str) -> subprocess.Popen[bytes]:
    """Start servers that are none, in our own namespaces."""
    words, pipe = ["sh", "-c", f"{says}; exec cat"], subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)


@pytest.mark.anyio
async def test_servers_that_are_in_no_namespace_of_their_own() -> None:
    """Whatever they say: nothing is ever started in the network that we are in."""
    with start_pretender("echo ready") as pretender:
        with pytest.raises(InternetError, match="its net namespace is the one outside"):
            await StandInInternet(pretender, ["nsenter"]).become_ready()
        pretender.kill()


_TOO_FEW = "namespaces: forbidden here: one of user.max_*_namespaces is too small"
_NOBODY = "exec setpriv --bounding-set -all"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (f"echo 0 >/proc/sys/user/max_user_namespaces; {_NOBODY}", _TOO_FEW),
        ("echo 0 >/proc/sys/user/max_net_namespaces; exec env", _TOO_FEW),
        (
            f"mount --rbind / /mnt; {_NOBODY.replace('exec', 'exec chroot /mnt')}",
            "namespaces: forbidden here: this takes root, or user namespaces of ordinary users",
        ),
        ("exec setpriv --bounding-set -net_admin", "the network: operation not permitted"),
    ],
)
def test_what_the_system_forbids(words: str, why: str) -> None:
    around = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{words} "$@"', "sh"]
    if subprocess.run([*around, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace can be made here")
    done = subprocess.run([*around, sys.executable, "-c", OPEN], capture_output=True, check=True)
    assert done.stdout.decode() == f"no stand-in Internet here: {why}\n"
