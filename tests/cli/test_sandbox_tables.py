"""What each sandbox is known to let through and to block, measured with the real ones: as this user
and, for root, as an ordinary one."""

from __future__ import annotations

import os

import pytest

from stream.boundary.measured import outcome_of
from stream.records.modes import decode_mode_boundary
from tests.cli.command import Place
from tests.sandboxes import needs_sandbox

WRITE, OUTSIDE, TCP = "fs_workspace_write_create", "fs_outside_workspace", "egress_tcp_address"
HOOKS, TMP, UNIX = "fs_git_hooks_write_guard", "fs_tmp_write", "net_unix_socket_outside"
HOME, KEY, UDP = "fs_home_dotfile_write", "fs_planted_key_read", "egress_udp_address"
DNS, DENIED, ALLOWED = "egress_dns_lookup", "egress_http_denied", "egress_http_allowed"
RELAY, PTRACE, BIND = "egress_connect_relay", "proc_ptrace_child", "net_bind_listen_any"

OPEN, DIVERTED, CLOSED = "open", "diverted", "closed"
READ_ONLY, REFUSED, ACCESS = "closed EROFS", "closed EPERM", "closed EACCES"
CODEX = {
    **dict.fromkeys((OUTSIDE, HOME, HOOKS), READ_ONLY),
    **dict.fromkeys((TCP, UDP, BIND, PTRACE, UNIX), REFUSED),
    **dict.fromkeys((DNS, DENIED, ALLOWED, RELAY), CLOSED),
    KEY: OPEN,
}
SRT = {
    **dict.fromkeys((OUTSIDE, HOME, HOOKS, TMP), READ_ONLY),
    **dict.fromkeys((TCP, UDP, DNS, DENIED, KEY), CLOSED),
    **dict.fromkeys((ALLOWED, RELAY), OPEN),
    UNIX: REFUSED,
}
NO_NETWORK = dict.fromkeys((TCP, UDP, DNS, DENIED, ALLOWED, RELAY), CLOSED)
NETWORK = dict.fromkeys((TCP, UDP, DNS, DENIED, ALLOWED, RELAY, UNIX), OPEN)
KEPT_OUT = dict.fromkeys((OUTSIDE, HOME, TMP), READ_ONLY)
#: What a probe comes to in a mode: its outcome and, where it says more, its errno.
TABLE = {
    "bwrap-ro": {**KEPT_OUT, **NETWORK, WRITE: READ_ONLY, HOOKS: READ_ONLY, KEY: OPEN},
    "bwrap-workspace": {**KEPT_OUT, **NETWORK, WRITE: OPEN, HOOKS: OPEN, KEY: OPEN},
    "bwrap-offline": {**KEPT_OUT, **NO_NETWORK, WRITE: OPEN, UNIX: OPEN, KEY: OPEN},
    "unshare-net": {**NO_NETWORK, WRITE: OPEN, OUTSIDE: OPEN, HOME: OPEN, UNIX: OPEN},
    "landlock-ro": {**NETWORK, **dict.fromkeys((WRITE, OUTSIDE, HOME, TMP, HOOKS), ACCESS)},
    "landlock-workspace": {**NETWORK, WRITE: OPEN, OUTSIDE: ACCESS, HOME: ACCESS, TMP: ACCESS},
    "firejail-workspace": {**KEPT_OUT, **NO_NETWORK, WRITE: OPEN, KEY: OPEN},
    "gvisor": {**NO_NETWORK, **dict.fromkeys((WRITE, OUTSIDE, HOME, TMP, HOOKS), DIVERTED)},
    "codex-read-only": {**CODEX, WRITE: READ_ONLY, TMP: READ_ONLY},
    "codex-workspace-write": {**CODEX, WRITE: OPEN, TMP: OPEN},
    "codex-strict": {**CODEX, WRITE: OPEN, TMP: READ_ONLY},
    "srt-workspace": {**SRT, WRITE: OPEN},
    "srt-read-only": {**SRT, WRITE: READ_ONLY},
}
#: firejail refuses users of the system.
REFUSES = {("nobody", "firejail-workspace")}
USERS = [None, *(["nobody"] if os.geteuid() == 0 else [])]


@pytest.mark.writes_tmp
@needs_sandbox("bwrap", "codex", "srt", "firejail", "runsc")
@pytest.mark.parametrize("user", USERS)
def test_what_sandboxes_are_known_to_block(place: Place, user: str | None) -> None:
    table = {mode: row for mode, row in TABLE.items() if (user, mode) not in REFUSES}
    probes = sorted({probe for row in table.values() for probe in row})
    words = ["--mode", *table, "--probe", *probes, *(["--as", user] if user else [])]
    done = place.stream("matrix", *words)
    assert done.code == 0, done.err
    found: dict[str, dict[str, str]] = {mode: {} for mode in table}
    for record in map(decode_mode_boundary, done.out.splitlines()):
        mode, probe = record.run.mode, record.probe.id
        expected = table.get(mode, {}).get(probe)
        if expected is not None:
            errno = f" {record.result.errno}" if " " in expected else ""
            found[mode][probe] = outcome_of(record) + errno
    assert found == table
