"""Any beginning of a run that was cut off can be verified, and a full disk is reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.archive.chain import LAYERS, STEP, LayerFiles, Tally
from stream.archive.reader import Limits
from stream.records.artifacts import (
    CHAIN_FILE,
    DETAIL_FILE,
    KERNEL_FILE,
    POLICY_FILE,
    SDK_FILE,
    ChainLink,
)
from stream.records.run import EVENTS_FILE, METADATA_FILE, STDOUT_FILE
from stream.verify.layers import ChainChecker, describe_verified
from stream.verify.report import VerifyReport
from stream.verify.session import verify
from tests.archive.samples import (
    RUN,
    find_error_rules,
    make_open_event,
    make_run_files,
    ndjson,
    sha256,
    write_files,
    write_run_folder,
)

LINES = st.lists(st.integers(0, STEP * 3 // 2).map(lambda size: b"x" * size + b"\n"), max_size=8)


@given(LINES, st.data())
def test_where_links_stand_is_a_matter_of_the_layer(
    lines: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    one, other, messages = Tally("x"), Tally("x"), Tally("x")
    one.feed(whole)
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        other.feed(whole[start:end])
        messages.feed(whole[start:end], whole.count(b"\n", start, end))
    assert one.links == other.links == messages.links
    assert one.link() == other.link() == messages.link()


@given(LINES)
def test_every_link_is_a_true_beginning(lines: list[bytes]) -> None:
    whole = b"".join(lines)
    tally = Tally("x")
    tally.feed(whole)
    assert (tally.bytes, tally.lines, tally.sha256) == (len(whole), len(lines), sha256(whole))
    before = 0
    for link in tally.links:
        beginning = whole[: link.bytes]
        assert beginning.endswith(b"\n")
        assert (link.lines, link.sha256) == (beginning.count(b"\n"), sha256(beginning))
        assert link.bytes - before >= STEP
        last = beginning[:-1].rfind(b"\n") + 1
        assert last - before < STEP, "not the first line end after the step"
        before = link.bytes
    rest = whole[before:]
    assert rest.rfind(b"\n") + 1 < STEP


def make_kernel_lines(first: int, count: int) -> bytes:
    return ndjson(
        *(make_open_event(seq, f"/work/file{seq}") for seq in range(first, first + count))
    )


def write_layer_files(folder: Path, *, lines: int = 5000, closed: bool = True) -> LayerFiles:
    files = LayerFiles(folder)
    for first in range(0, lines, 100):
        files.append(KERNEL_FILE, make_kernel_lines(first, 100), 100)
    if closed:
        files.close()
    return files


def read_links(folder: Path) -> list[ChainLink]:
    data = (folder / CHAIN_FILE).read_bytes()
    return [msgspec.json.decode(line, type=ChainLink) for line in data.splitlines()]


def test_the_files_and_their_chain(tmp_path: Path) -> None:
    files = write_layer_files(tmp_path)
    data = (tmp_path / KERNEL_FILE).read_bytes()
    assert data == make_kernel_lines(0, 5000)
    kept = files.kept()[KERNEL_FILE]
    counted = (files.lines(KERNEL_FILE), kept.bytes, kept.sha256)
    assert counted == (5000, len(data), sha256(data))
    for name in LAYERS:
        assert (tmp_path / name).exists()
    links = [link for link in read_links(tmp_path) if link.layer == KERNEL_FILE]
    assert len(links) == len(data) // STEP + 1
    assert links[-1].bytes == len(data)
    assert {link.layer for link in read_links(tmp_path)} == {*LAYERS}
    assert (files.lost, files.trouble) == ({}, "")


def test_somebody_elses_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "layers").mkdir()
    (tmp_path / "target").write_bytes(b"mine\n")
    (tmp_path / KERNEL_FILE).symlink_to(tmp_path / "target")
    files = write_layer_files(tmp_path)
    assert files.lost == {KERNEL_FILE: 5000}
    assert files.trouble == f"{tmp_path / KERNEL_FILE}: file exists"
    assert (tmp_path / "target").read_bytes() == b"mine\n"


_FULL = """
import resource, signal, sys
from pathlib import Path
from tests.archive.test_chain import write_layer_files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_001, 300_001))
files = write_layer_files(Path(sys.argv[1]))
print(files.lost, files.trouble)
"""


def test_no_room_any_more(tmp_path: Path) -> None:
    """What was taken are whole lines from the beginning; what was lost is counted."""
    argv = [sys.executable, "-c", _FULL, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    data = (tmp_path / KERNEL_FILE).read_bytes()
    lines = data.count(b"\n")
    assert data == make_kernel_lines(0, lines)
    assert 299_000 < len(data) <= 300_001
    place = tmp_path / KERNEL_FILE
    assert done.stdout == f"{{'{KERNEL_FILE}': {5000 - lines}}} {place}: file too large\n"
    assert read_links(tmp_path)[-1].bytes <= len(data)


_KILLED = """
import sys
from pathlib import Path
from tests.archive.test_chain import write_layer_files
write_layer_files(Path(sys.argv[1]), closed=False)
print("now", flush=True)
sys.stdin.read()
"""


def test_links_wait_for_room(small_disk: Callable[[str], Path]) -> None:
    """What was written and filled the disk has its links as soon as there is room."""
    disk = small_disk("800k")
    room = disk / "room"
    room.write_bytes(bytes(64 << 10))
    files = LayerFiles(disk)
    files.append(KERNEL_FILE, make_kernel_lines(0, 8000), 8000)
    assert 0 < files.lines(KERNEL_FILE) < 8000
    room.unlink()
    files.close()
    tally = Tally(KERNEL_FILE)
    tally.feed((disk / KERNEL_FILE).read_bytes())
    assert len(tally.links) >= 2
    found = [link for link in read_links(disk) if link.layer == KERNEL_FILE]
    assert found == [*tally.links, tally.link()]


def test_a_link_that_there_was_half_the_room_for(small_disk: Callable[[str], Path]) -> None:
    """Its beginning is gone when it is written again, and there is no hole in its place."""
    page = os.sysconf("SC_PAGESIZE")
    disk = small_disk("16m")
    files, data = LayerFiles(disk), make_kernel_lines(0, 1100)  # more than a step
    for _ in range(50):
        files.append(KERNEL_FILE, data, 1100)
        chain = (disk / CHAIN_FILE).read_bytes()
        if -len(chain) % page < len(chain.splitlines()[-1]):
            break  # the next one reaches into another page
    size = files.kept()[KERNEL_FILE].bytes
    needed = -(-(size + len(data)) // page) + -size // page
    filler = disk / "filler"
    filler.write_bytes(bytes((os.statvfs(disk).f_bfree - needed) * page))
    files.append(KERNEL_FILE, data, 1100)
    assert files.lost == {}
    assert files.trouble == f"{disk / CHAIN_FILE}: no space left on device"
    filler.unlink()
    files.close()
    tally = Tally(KERNEL_FILE)
    tally.feed((disk / KERNEL_FILE).read_bytes())
    found = [link for link in read_links(disk) if link.layer == KERNEL_FILE]
    assert found == [*tally.links, tally.link()]


@pytest.fixture
def killed_run(tmp_path: Path) -> Path:
    """A run whose recorder was killed: no artifacts, no end of the chain."""
    whole = make_run_files()
    folder = write_files(
        tmp_path / "run", {name: whole[name] for name in (METADATA_FILE, STDOUT_FILE)}
    )
    events = whole[EVENTS_FILE].splitlines(keepends=True)
    (folder / EVENTS_FILE).write_bytes(b"".join(events[:3]))
    argv = [sys.executable, "-c", _KILLED, str(folder)]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout
        assert child.stdout.readline() == b"now\n"
        child.send_signal(signal.SIGKILL)
    return folder


def find_messages(folder: Path) -> dict[str, str]:
    return {item.rule: item.message for item in verify(folder).findings}


CUT_OFF = "the run was not recorded to its end: its last event is agent_invoked; "


def test_a_killed_run(killed_run: Path) -> None:
    """One finding names what of it can be trusted."""
    last = read_links(killed_run)[-1]
    assert 0 < (killed_run / KERNEL_FILE).stat().st_size - last.bytes < STEP + 300
    (finding,) = verify(killed_run).findings
    assert (finding.rule, finding.severity) == ("integrity.incomplete", "error")
    assert finding.message == (
        f"{CUT_OFF}the first {last.lines} lines of {KERNEL_FILE} are as they were written;"
        f" no link covers the {5000 - last.lines} lines after them"
    )


@pytest.mark.parametrize("has_chain", [True, False])
def test_a_killed_run_that_nothing_vouches_for(killed_run: Path, has_chain: bool) -> None:
    """Its recorder had not come to the first link; or the run has no kernel layer at all."""
    if has_chain:
        (killed_run / CHAIN_FILE).write_bytes(b"")
    else:
        (killed_run / CHAIN_FILE).unlink()
        (killed_run / KERNEL_FILE).unlink()
    why = "its chain has no link that fits" if has_chain else "there is no chain"
    unknown = f"nothing shows that what was recorded until then is as it was written: {why}"
    assert find_messages(killed_run) == {"integrity.incomplete": f"{CUT_OFF}{unknown}"}


@pytest.mark.parametrize("name", [EVENTS_FILE, METADATA_FILE])
def test_what_every_run_has_is_missing(killed_run: Path, name: str) -> None:
    (killed_run / name).unlink()
    assert f"there is no {name}; " in find_messages(killed_run)["integrity.incomplete"]


def test_a_run_that_ended_and_lost_its_artifacts(killed_run: Path) -> None:
    """That it was cut off is not why they are missing, nor why the chain is too short."""
    whole = write_run_folder(killed_run.parent / "whole")
    (killed_run / EVENTS_FILE).write_bytes((whole / EVENTS_FILE).read_bytes())
    os.truncate(killed_run / KERNEL_FILE, (killed_run / KERNEL_FILE).stat().st_size - 5)
    messages = find_messages(killed_run)
    assert messages.keys() == {
        *("integrity.incomplete", "integrity.unlinked", "integrity.torn", "contract.listed"),
    }
    assert "no capability-surface.json, no " in messages["integrity.incomplete"]
    more = (killed_run / KERNEL_FILE).stat().st_size - read_links(killed_run)[-1].bytes
    message = f"{KERNEL_FILE}: no link covers its last {more} bytes"
    assert messages["integrity.unlinked"] == message


def test_the_beginning_of_a_killed_run_is_vouched_for(killed_run: Path) -> None:
    path = killed_run / KERNEL_FILE
    data = bytearray(path.read_bytes())
    place = data.index(b'/work/file7"')
    data[place + 1 : place + 5] = b"mine"
    path.write_bytes(data)
    assert "are not what they were" in find_messages(killed_run)["integrity.chain"]


def encode_links(*tallies: Tally) -> bytes:
    return ndjson(*(link for tally in tallies for link in tally.links))


def tally_data(layer: str, data: bytes) -> Tally:
    tally = Tally(layer)
    tally.feed(data)
    return tally


@given(LINES, st.data())
def test_what_is_reported_as_intact_is_intact(lines: list[bytes], data: st.DataObject) -> None:
    """Wherever the layer and its chain were cut off, and whatever was changed in the layer."""
    whole = b"".join(lines)
    chain = encode_links(tally_data(KERNEL_FILE, whole))
    rest = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    if rest and data.draw(st.booleans()):
        rest[data.draw(st.integers(0, len(rest) - 1))] ^= 1
    links = ChainChecker(VerifyReport("x", Limits(), False))
    links.feed(chain[: data.draw(st.integers(0, len(chain)))])
    links.finish()
    tallies = {KERNEL_FILE: tally_data(KERNEL_FILE, bytes(rest))}
    wrong = {fault.rule for _, fault in links.compare_links(tallies, is_whole=False)}
    link = links.verified.get(KERNEL_FILE)
    if link is not None:
        beginning = whole[: link.bytes]
        assert rest.startswith(beginning)
        assert link.lines == beginning.count(b"\n")
    if rest == whole:
        assert "integrity.chain" not in wrong


def test_several_layers_that_were_cut_off() -> None:
    kernel = tally_data(KERNEL_FILE, b"x" * STEP + b"\n1\n2\n")
    detail = tally_data(DETAIL_FILE, b"x" * STEP + b"\n1\n")
    sdk, policy = tally_data(SDK_FILE, b"1\n"), tally_data(POLICY_FILE, b"")
    tallies = {tally.layer: tally for tally in (kernel, detail, sdk, policy)}
    verified = {tally.layer: tally.links[-1] for tally in (kernel, detail)}
    assert describe_verified(tallies, verified, [SDK_FILE]) == (
        f"the first 1 lines of {DETAIL_FILE} and the first 1 lines of {KERNEL_FILE} are as they"
        f" were written; no link covers the 3 lines after them and {SDK_FILE}; the last line of"
        f" {SDK_FILE} has no end"
    )


def test_a_layer_that_was_cut(killed_run: Path) -> None:
    path = killed_run / KERNEL_FILE
    *_, before, last = read_links(killed_run)
    os.truncate(path, last.bytes - 500)
    messages = find_messages(killed_run)
    assert messages.keys() == {"integrity.chain", "integrity.incomplete"}
    assert "has only" in messages["integrity.chain"]
    assert (
        f"the first {before.lines} lines of {KERNEL_FILE} are" in messages["integrity.incomplete"]
    )


def test_a_torn_last_line(killed_run: Path) -> None:
    path = killed_run / KERNEL_FILE
    os.truncate(path, path.stat().st_size - 5)
    with (killed_run / CHAIN_FILE).open("ab") as file:
        file.write(b'{"schema":"stream.ch')
    with (killed_run / EVENTS_FILE).open("ab") as file:
        file.write(b'{"event_id":"to')
    messages = find_messages(killed_run)
    assert messages.keys() == {"integrity.incomplete"}
    torn = f"; the last line of {KERNEL_FILE} has no end"
    assert messages["integrity.incomplete"].endswith(torn)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lines", 1),
        ("bytes", 5),
        ("sha256", "0" * 64),
        ("layer", SDK_FILE),
        ("layer", "layers/none.ndjson"),
    ],
)
def test_every_field_of_every_link(tmp_path: Path, field: str, value: object) -> None:
    folder = write_run_folder(tmp_path / "run")
    assert find_error_rules(folder) == set()
    chain = folder / CHAIN_FILE
    links = read_links(folder)
    for number, link in enumerate(links):
        if getattr(link, field) == value:
            continue
        changed = msgspec.structs.replace(link, **{field: value})
        chain.write_bytes(ndjson(*links[:number], changed, *links[number + 1 :]))
        assert "integrity.chain" in find_error_rules(folder), link
    chain.write_bytes(ndjson(*links))
    assert find_error_rules(folder) == set()
    assert RUN in (folder / KERNEL_FILE).read_text()


def test_links_that_are_missing_or_in_another_order(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    for name in LAYERS:
        (folder / name).unlink()
    (folder / CHAIN_FILE).unlink()
    write_layer_files(folder)
    links = read_links(folder)
    kernel = [link for link in links if link.layer == KERNEL_FILE]
    assert len(kernel) > 2
    (folder / CHAIN_FILE).write_bytes(ndjson(*kernel[:-1]))
    assert "integrity.chain" in find_error_rules(folder)
    (folder / CHAIN_FILE).write_bytes(ndjson(*reversed(kernel)))
    assert "integrity.chain" in find_error_rules(folder)
    (folder / CHAIN_FILE).write_bytes(ndjson(*links))
    assert "integrity.chain" not in find_error_rules(folder)
