"""Run probes in modes, with targets that are prepared and checked from outside of the sandbox.

Everything of one run lies in one folder, in the home folder of the user that probes run as: where
work usually is, and not below a temporary folder, which many sandboxes leave writable.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from anyio import Lock, create_task_group, create_unix_listener, move_on_after, to_thread
from msgspec import Struct, field
from msgspec.structs import replace

from stream.boundary.modes import MeasuredModes, Mode, first_version_line
from stream.boundary.scripts import HELPERS, Cell, Staging
from stream.errors import InternetError, OutputError, SpawnError, UsageError, os_reason, reporting
from stream.files.trees import remove_tree
from stream.process.capture import Captured, capture, follow_program, not_started
from stream.process.tree import start_tree
from stream.process.users import User
from stream.records.boundary import SandboxMode
from stream.records.modes import KernelView, OutsideView
from stream.targets.folders import SHARED_EFFECTS, Slot, end_shared_writes
from stream.targets.internet import StandInInternet, open_internet
from stream.targets.leftovers import remove_new_leftovers, surroundings
from stream.targets.survivors import end_survivors
from stream.targets.victim import Victim

FALLBACKS = ("/srv", "/opt", "/var/tmp", "/tmp")  # noqa: S108
STDOUT_LIMIT, STDERR_LIMIT = 4 << 20, 4096  #: bytes that are kept
MOST_SOCKET_PATH = 100  #: bytes of the path of a socket
VERSION_PATIENCE = 20.0  #: seconds for a sandbox to say its version
_IS_PROXY = re.compile(r"_proxy$", re.IGNORECASE)
_NAME = re.compile(r"\.stream-(\d+)-\w+")


class CallWatch(Protocol):
    """Sees the system calls of cells, and tells those of one from those of others."""

    def expect(self, script: str) -> Any:
        """Prepare for a cell that is about to be started, and return what stands for it."""

    def begin(self, expected: Any, pid: int) -> None:
        """Take the process that a cell was started with, before anything else is awaited."""

    async def end(self, begun: Any) -> KernelView:
        """Return what was seen of a cell, whose processes have ended."""


class MeasuredCell(Struct, frozen=True):
    """The end of a cell, and what was seen of it from outside."""

    captured: Captured
    outside: OutsideView
    workspace: str
    sandbox_mode: SandboxMode | None
    harness: tuple[str, ...]  #: folders in which nothing of the workspace lies


class Leftover(Struct, frozen=True):
    """Something that a cell left in its folders, and that was removed."""

    mode: str
    probe: str
    path: str


class Targets(Struct):
    """The targets of a run, and the modes that probes run in."""

    base: Path
    user: User
    modes: Mapping[str, Mode]
    staging: Staging
    internet: StandInInternet | None = None
    no_internet: str | None = None  #: why there is no stand-in Internet
    calls: CallWatch | None = None  #: of a kernel feed, where there is one
    leftovers: list[Leftover] = field(default_factory=list)
    left_outside: list[str] = field(default_factory=list)  #: mounts and control groups
    _slots: list[Slot] = field(default_factory=list)
    _victims: list[Victim] = field(default_factory=list)
    _alone: Lock = field(default_factory=Lock)  #: for modes that take one probe at a time
    _unix_arrivals: set[str] = field(default_factory=set)
    _versions: dict[str, str | None] = field(default_factory=dict)

    async def measure(self, cell: Cell, index: int, timeout: float) -> MeasuredCell:
        """Run a cell in a slot, and look for its effects."""
        is_alone = self.modes[cell.mode].document.alone
        async with self._alone if is_alone else nullcontext():
            return await self._measure_cell(cell, index, timeout)

    async def _measure_cell(self, cell: Cell, index: int, timeout: float) -> MeasuredCell:
        """Run a cell in a slot that is free, and whose mode is."""
        slot, victim = self._slots[index], self._victims[index]
        mode, nonce = self.modes[cell.mode], secrets.token_hex(6)
        places = self._places(slot, mode)
        effects: set[str] = set()
        is_checked = False
        kernel: KernelView | None = None
        try:
            await self.make_state(cell, index)
            words, env = self.command_line(cell, index, nonce)
            watched = self.calls and self.calls.expect(self._script(cell)[-1])
            tree = start_tree(words, env=env, cwd=places["workspace"])
            if self.calls is not None:
                self.calls.begin(watched, tree.leader.pid)
        except (SpawnError, OutputError) as error:
            got = not_started(str(error))
        else:
            got = await follow_program(
                tree, timeout=timeout, stdout_limit=STDOUT_LIMIT, stderr_limit=STDERR_LIMIT
            )
            if self.calls is not None:
                kernel = await self.calls.end(watched)
            if cell.script.effect == "outlive":
                was_ended = any(nonce in name for name in got.stragglers)
                if await end_survivors(nonce) or was_ended:
                    effects.add("outlive")
                    got.stragglers = []  # the sandbox's own processes may live on with it
            if cell.script.effect in SHARED_EFFECTS:
                effects |= await to_thread.run_sync(end_shared_writes, nonce)
            found = await to_thread.run_sync(slot.view, nonce)
            effects |= found.effects | await victim.effects() | await self._arrivals(nonce)
            self.leftovers += [Leftover(cell.mode, cell.script.id, path) for path in found.left]
            await to_thread.run_sync(slot.restore)
            is_checked = self._can_measure(cell)
        return MeasuredCell(
            got,
            OutsideView(
                sandbox=mode.sandbox(self._versions.get(cell.mode)),
                user=self.user.name,
                effect=cell.script.effect,
                is_checked=cell.script.effect is not None and is_checked,
                seen=tuple(sorted(effects)),
                token=slot.token,
                kernel=kernel,
            ),
            places["workspace"],
            mode.document.sandbox_mode,
            (places["kit"], places["tmp"]),
        )

    def _script(self, cell: Cell) -> list[str]:
        """Return the words that run the probe of a cell."""
        return self.staging.script_command(cell.script)

    def _can_measure(self, cell: Cell) -> bool:
        """Tell whether what the probe needs is there."""
        return cell.script.needs != "stand-in" or self._is_inside(self.modes[cell.mode])

    def _is_inside(self, mode: Mode) -> bool:
        """Tell whether a mode is started inside of the stand-in's network."""
        can_start = os.geteuid() == 0 or not mode.document.setuid
        return self.internet is not None and mode.document.network and can_start

    def _places(self, slot: Slot, mode: Mode) -> dict[str, str]:
        kit = {"kit": str(self.base / "kit"), "helpers": str(self.base / "kit" / "bin")}
        return {**slot.places(mode.name), **kit}

    async def make_state(self, cell: Cell, index: int) -> None:
        """Write the settings of the mode of a cell into its slot. Raise OutputError."""
        slot, mode = self._slots[index], self.modes[cell.mode]
        settings = mode.settings_files(self._places(slot, mode))
        await to_thread.run_sync(slot.make_state, mode.name, settings)

    def command_line(self, cell: Cell, index: int, nonce: str) -> tuple[list[str], dict[str, str]]:
        """Return the words and the environment that start the probe of a cell in its mode."""
        slot, mode = self._slots[index], self.modes[cell.mode]
        places = self._places(slot, mode)
        words = mode.command(self._script(cell), places, is_root=self.user.uid == 0)
        words = [*self.user.switch, *words]
        if self.internet is not None and self._is_inside(mode):
            words = [*self.internet.prefix(places["workspace"]), *words]
        env = self._environment(cell, slot, index, nonce)
        return words, {**env, **mode.environment(places)}

    def _environment(self, cell: Cell, slot: Slot, index: int, nonce: str) -> dict[str, str]:
        """Return the environment of a probe: the caller's, its places, and its targets."""
        places = slot.places(cell.mode)
        env = {name: value for name, value in cell.env.items() if name not in _OF_THE_CALLER}
        env |= self.user.environment
        env |= {
            "HOME": places["home"],
            "PWD": places["workspace"],
            "TMPDIR": places["tmp"],
            "FENCE_WORKSPACE_ROOT": places["workspace"],
            "FENCE_NONCE": nonce,
            "FENCE_OUTSIDE": places["outside"],
            "FENCE_SENTINEL": f"{places['workspace']}/.stream-sentinel",
        }
        declared = self.modes[cell.mode].document.sandbox_mode
        if declared is not None:
            env["FENCE_SANDBOX_MODE"] = declared
        pid = self._victims[index].pid
        if pid is not None:
            env["FENCE_VICTIM_PID"] = str(pid)
        if slot.socket.exists():
            env["FENCE_OUTSIDE_SOCKET"] = str(slot.socket)
        if self._is_inside(self.modes[cell.mode]):
            # The caller's proxies are not in there.
            env = {name: value for name, value in env.items() if not _IS_PROXY.search(name)}
            env["FENCE_STAND_IN"] = "1"
        return env

    async def _arrivals(self, nonce: str) -> set[str]:
        """Find what arrived with a nonce: in the stand-in Internet, and at the sockets."""
        found = {"arrive:unix"} if nonce in self._unix_arrivals else set()
        self._unix_arrivals.discard(nonce)
        if self.internet is not None:
            try:
                await self.internet.sync()
                found |= {f"arrive:{one.kind}" for one in self.internet.arrivals(nonce)}
            except InternetError as error:
                self.internet, self.no_internet = None, str(error)
        return found

    async def ask_versions(self) -> None:
        """Ask each sandbox for its version, as the user that probes run as."""
        slot = self._slots[0]

        async def ask(mode: Mode) -> None:
            """Ask one sandbox."""
            places = self._places(slot, mode)
            words = [word.format_map(places) for word in mode.document.version]
            env = {**os.environ, **self.user.environment, "HOME": places["home"]}
            got = await capture(
                [*self.user.switch, *words],
                env={**env, **mode.environment(places)},
                cwd="/",
                timeout=VERSION_PATIENCE,
                stdout_limit=4096,
                stderr_limit=4096,
            )
            printed = bytes(got.stdout.head) or bytes(got.stderr.head)
            if got.exit_code == 0:
                self._versions[mode.name] = first_version_line(printed)

        async with create_task_group() as tasks:
            for mode in self.modes.values():
                if mode.document.version:
                    await to_thread.run_sync(slot.make_state, mode.name, {})
                    tasks.start_soon(ask, mode)

    async def serve_sockets(self, tasks: Any) -> None:
        """Listen on the socket of each slot that has a path short enough."""

        async def answer(stream: Any) -> None:
            """Count the line that comes, and answer it."""
            async with stream:
                with suppress(Exception), move_on_after(2.0):
                    line = await stream.receive(256)
                    self._unix_arrivals.add(line.decode(errors="replace").strip())
                    await stream.send(b"ok\n")

        for slot in self._slots:
            path = slot.socket
            if len(os.fsencode(path)) < MOST_SOCKET_PATH:
                listener = await create_unix_listener(path, mode=0o777)
                tasks.start_soon(listener.serve, answer)


#: variables that describe the caller, and not the user that probes run as
_OF_THE_CALLER = ("SUDO_USER", "SUDO_UID", "SUDO_GID", "SUDO_COMMAND", "MAIL", "OLDPWD")


@asynccontextmanager
async def open_targets(
    measured: MeasuredModes, staging: Staging, slots: int
) -> AsyncIterator[Targets]:
    """Prepare the targets of a run; on exit, everything of them is removed."""
    user = measured.user
    if not user.is_caller and shutil.which("setpriv") is None:
        raise UsageError("to run probes as another user takes setpriv, of util-linux")
    with _base_folder(user) as base:
        async with AsyncExitStack() as stack:
            kit = await to_thread.run_sync(_copy_kit, staging, base)
            targets = Targets(base, user, {mode.name: mode for mode in measured.modes}, kit)
            try:
                targets.internet = await stack.enter_async_context(open_internet())
            except InternetError as error:
                targets.no_internet = str(error)
            tasks = await stack.enter_async_context(create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            for index in range(slots):
                slot = Slot(base / str(index), user)
                await to_thread.run_sync(slot.prepare)
                victim = Victim(user, slot.token, os.environ)
                await victim.start()
                stack.callback(victim.end)
                targets._slots.append(slot)
                targets._victims.append(victim)
            await targets.serve_sockets(tasks)
            await targets.ask_versions()
            with _noting_leftovers(targets):
                yield targets


@contextmanager
def _noting_leftovers(targets: Targets) -> Iterator[None]:
    """Note the mounts and control groups that sandboxes left, and remove the mounts."""
    inside = targets.internet
    pid, enter = ("self", []) if inside is None else (inside.pid, inside.enter)
    before = surroundings(pid)
    try:
        yield
    finally:
        targets.left_outside += remove_new_leftovers(before, surroundings(pid), enter)


@contextmanager
def _base_folder(user: User) -> Iterator[Path]:
    """Make the folder of a run, in the first place that allows it. Raise OutputError."""
    base = _make_base_folder(user)
    try:
        yield base
    finally:
        with suppress(OutputError):
            remove_tree(base)


def _make_base_folder(user: User) -> Path:
    reason = "there is no folder for it"
    for place in (user.home, *FALLBACKS):
        if place is None or not Path(place).is_dir():
            continue
        _remove_left_folders(Path(place))
        try:
            base = Path(tempfile.mkdtemp(prefix=f".stream-{os.getpid()}-", dir=place))
            base.chmod(0o755)
            if not user.is_caller:
                os.chown(base, user.uid, user.gid)
        except OSError as error:
            reason = f"{place}: {os_reason(error)}"
        else:
            return base
    raise OutputError(f"no place for the targets of the probes: {reason}")


def _remove_left_folders(place: Path) -> None:
    """Remove the folders of runs that were killed before they could."""
    for path in place.glob(".stream-*-*"):
        found = _NAME.fullmatch(path.name)
        if found and not Path("/proc", found[1]).exists() and not path.is_symlink():
            with suppress(OutputError):
                remove_tree(path)


def _copy_kit(staging: Staging, base: Path) -> Staging:
    """Copy the probes and their helpers to where every user can read them."""
    kit = base / "kit"
    with reporting(kit, OutputError):
        shutil.copytree(staging.folder, kit / "probes")
        shutil.copytree(HELPERS, kit / "bin", ignore=shutil.ignore_patterns("__pycache__"))
        for path in (kit, *kit.rglob("*")):
            path.chmod(0o755)
    return replace(staging, folder=kit / "probes", root=None, ours=(*staging.ours, kit))
