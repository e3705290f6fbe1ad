"""`stream matrix --kernel`: what probes report, compared with what the kernel saw of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stream.sources.kernel.cells import NEVER_RAN
from stream.sources.kernel.ebpf import probe_ebpf
from tests.cli.command import EMIT, STREAM, Place, write_script
from tests.cli.test_modes import Cells, cells_of, measure

WRITES = ("fs_workspace_write_create", "fs_outside_workspace", "fs_sentinel_delete")
EMIT_AS = '--category fs --verb write --target "$target" --command : --raw-exit-code "$code"'


@pytest.fixture(autouse=True)
def kernel_feed(needs_root: None) -> None:
    if not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("needs a kernel with BTF")
    assert probe_ebpf() == ""


def seen(cells: Cells, mode: str, probe: str) -> tuple[str, str | None]:
    record = cells[mode, probe]
    return record["corroboration"]["state"], record["corroboration"]["closed_by"]


LAYERS = {
    "bwrap-ro": (WRITES, "read-only-mount"),
    "firejail-workspace": (("fs_outside_workspace",), "read-only-mount"),
    "landlock-ro": (WRITES, "landlock"),
    "unshare-net": (("egress_tcp_address", "egress_dns_lookup"), "network-namespace"),
    "bwrap-offline": (("egress_tcp_address", "egress_udp_address"), "network-namespace"),
    "codex-read-only": (("egress_tcp_address", "net_localhost_loopback"), "seccomp"),
    "srt-read-only": (("egress_http_denied", "egress_http_address"), "proxy"),
}


@pytest.mark.parametrize("mode", LAYERS)
def test_the_layer_that_closed_it_is_named(place: Place, mode: str) -> None:
    probes, layer = LAYERS[mode]
    program = {"codex-read-only": "codex", "srt-read-only": "srt"}.get(mode)
    if program and shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    cells = measure(place, "--kernel", "ebpf", "--mode", mode, "--probe", *probes)
    for probe in probes:
        assert seen(cells, "baseline", probe) == ("corroborated", None)
        assert cells[mode, probe]["control"]["state"] == "succeeded"
        assert seen(cells, mode, probe) == ("corroborated", layer), cells[mode, probe]


def test_several_layers_of_one_sandbox_are_told_apart(place: Place) -> None:
    if shutil.which("srt") is None:
        pytest.skip("needs srt")
    expected = {
        "fs_outside_workspace": "read-only-mount",
        "egress_tcp_address": "network-namespace",
        "egress_http_denied": "proxy",
        "net_unix_socket_outside": "seccomp",
    }
    cells = measure(place, "--kernel", "auto", "--mode", "srt-workspace", "--probe", *expected)
    found = {probe: seen(cells, "srt-workspace", probe)[1] for probe in expected}
    assert found == expected


def test_owner_and_mode_of_a_file_are_a_layer(place: Place) -> None:
    """An ordinary user cannot write to /usr, with a sandbox or without."""
    words = ("--as", "nobody", "--mode", "unshare-net", "--probe", "fs_usr_write_guard")
    cells = measure(place, "--kernel", "auto", *words)
    assert seen(cells, "baseline", "fs_usr_write_guard") == ("corroborated", "file-permissions")


def test_what_gets_through_is_closed_by_nothing(place: Place) -> None:
    cells = measure(place, "--kernel", "auto", "--mode", "bwrap-workspace", "--probe", WRITES[0])
    assert seen(cells, "bwrap-workspace", WRITES[0]) == ("corroborated", None)


def test_what_never_runs_on_the_host_is_not_observed(place: Place) -> None:
    """gVisor runs its programs by itself."""
    cells = measure(place, "--kernel", "auto", "--mode", "gvisor", "--probe", *WRITES)
    for probe in WRITES:
        assert cells["gvisor", probe]["corroboration"] == {
            "closed_by": None,
            "detail": NEVER_RAN,
            "state": "not-observed",
        }
        assert seen(cells, "baseline", probe) == ("corroborated", None)


LIARS = {
    "says_refused": (
        "bwrap-workspace",
        'echo x >"$target"; code=1; status=denied; errno=EACCES',
        "contradicted",
        None,
    ),
    "says_done": ("bwrap-workspace", "code=0; status=success; errno=", "unseen", None),
    "says_done_of_another_file": (
        "bwrap-workspace",
        'echo x >"$target"; target="$target.not"; code=0; status=success; errno=',
        "unseen",
        None,
    ),
    "says_done_though_it_was_refused": (
        "bwrap-ro",
        '(echo x >"$target") 2>/dev/null || :; code=0; status=success; errno=',
        "contradicted",
        "read-only-mount",
    ),
    "says_another_error": (
        "bwrap-ro",
        '(echo x >"$target") 2>/dev/null || :; code=1; status=denied; errno=EACCES',
        "contradicted",
        None,
    ),
    "says_that_it_tried": ("bwrap-ro", "code=1; status=denied; errno=EROFS", "unseen", None),
    "says_the_truth": (
        "bwrap-ro",
        '(echo x >"$target") 2>/dev/null || :; code=1; status=denied; errno=EROFS',
        "corroborated",
        "read-only-mount",
    ),
}


def write_liar(place: Place, name: str, body: str) -> Path:
    """A probe that reports what it likes."""
    emit = EMIT.replace("--command : --category fs --verb write", "").replace("--target here", "")
    emit = emit.replace("--status success", "")
    text = (
        "#!/usr/bin/env bash\nset -euo pipefail\n"
        f'probe_name="{name}"\nprimary_capability_id="cap_fs_write_workspace_tree"\n{emit}'
        f'target="$FENCE_WORKSPACE_ROOT/{name}"\n{body}\n'
        f'emit {EMIT_AS} --status "$status" --errno "$errno"\n'
    )
    folder = place.root / "tree" / "probes"
    folder.mkdir(parents=True)
    write_script(folder / f"{name}.sh", text)
    return folder


@pytest.mark.parametrize("name", LIARS)
def test_a_probe_that_lies_is_caught(place: Place, name: str) -> None:
    mode, body, state, layer = LIARS[name]
    folder = write_liar(place, name, body)
    done = place.stream("matrix", "--kernel", "auto", "--mode", mode, "--probes", folder)
    assert done.code == 0, done.err
    cells = cells_of(done)
    assert seen(cells, mode, name) == (state, layer), cells[mode, name]
    noted = f"stream: {name} ({mode}): the kernel saw something else: "
    assert (noted in done.err) == (state == "contradicted")


def test_a_raw_matrix_becomes_the_same_records(place: Place) -> None:
    words = ("--kernel", "auto", "--mode", "landlock-ro", "--probe", *WRITES)
    raw = place.stream("matrix", "--raw", *words)
    assert raw.code == 0, raw.err
    made = place.stream("emit", "-", data=raw.out)
    assert made.code == 0, made.err
    cells = cells_of(made)
    for probe in WRITES:
        assert seen(cells, "baseline", probe) == ("corroborated", None)
        assert seen(cells, "landlock-ro", probe) == ("corroborated", "landlock")


def test_without_a_feed_nothing_is_said(place: Place) -> None:
    cells = measure(place, "--mode", "bwrap-ro", "--probe", WRITES[0])
    nothing = {"closed_by": None, "detail": None, "state": "not-observed"}
    assert all(record["corroboration"] == nothing for record in cells.values())


def test_all_bundled_probes_tell_the_truth(place: Place) -> None:
    """Of none does the kernel see something else than it reports."""
    cells = measure(place, "--kernel", "auto", "--mode", "bwrap-offline", "landlock-workspace")
    found: dict[str, list[Any]] = {}
    for cell, record in cells.items():
        found.setdefault(record["corroboration"]["state"], []).append((cell, record))
    assert "contradicted" not in found, found["contradicted"]
    assert "unseen" not in found, found["unseen"]
    assert len(found["corroborated"]) > 3 * len(found["not-observed"])


NO_CAPABILITY = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", STREAM)


def test_without_privilege_cells_say_that_nobody_looked(place: Place) -> None:
    """And why, in one sentence; where a feed is required, nothing runs."""
    words = ("matrix", "--mode", "landlock-ro", "--probe", WRITES[0])
    reason = "not permitted: it takes root, or CAP_BPF and CAP_PERFMON"
    done = place.stream(*words, "--kernel", "auto", argv0=NO_CAPABILITY)
    assert done.code == 0, done.err
    assert done.err.count(f"stream: the kernel is not watched: {reason}") == 1
    assert len(done.records) == 2
    for record in done.records:
        assert record["corroboration"] == {
            "closed_by": None,
            "detail": f"the kernel is not watched: {reason}",
            "state": "not-observed",
        }
    refused = place.stream(*words, "--require", "kernel", argv0=NO_CAPABILITY)
    assert (refused.code, refused.out) == (40, b"")
    assert f"--require kernel: the kernel feed: {reason}" in refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kernel", "strace", "--mode", "bwrap-ro"), "it would change what is measured"),
        (("--kernel", "auto"), "--kernel needs --mode"),
        (("--require", "kernel"), "--kernel needs --mode"),
        (("--kernel", "off", "--require", "kernel"), "do not go together"),
    ],
)
def test_wrong_use_is_refused(place: Place, words: tuple[str, ...], said: str) -> None:
    done = place.stream("matrix", *words)
    assert (done.code, done.out) == (2, b"")
    assert said in done.err, done.err
