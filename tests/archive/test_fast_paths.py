"""Lines that are checked or replayed all at once, or not decoded at all, give the same result as
the long way."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from stream.archive.reader import Limits
from stream.evidence.derive import Correlation, correlate_layers
from stream.records.artifacts import (
    COMPANION_FILE,
    DETAIL_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    SDK_FILE,
    SURFACE_FILE,
    Marker,
    SdkEvent,
)
from stream.records.kernel import (
    CONNECT,
    EXEC,
    EXIT,
    FORK,
    OPEN,
    UNLINK,
    KernelDetail,
    KernelEvent,
    kind_of_event,
)
from stream.verify import artifacts, layers
from stream.verify.layers import contract_of_layer
from stream.verify.replay import LayerReplay
from stream.verify.report import VerifyReport
from stream.verify.session import verify
from tests.archive.samples import (
    ARCHIVES,
    MANIFEST,
    RUN,
    Files,
    build_tar,
    compress_tar,
    make_small_files,
    ndjson,
    read_tar,
    read_tar_items,
    write_files_as_archive,
)
from tests.archive.test_contents import iter_changed
from tests.sweeping import thorough

# ---------------------------------------------------------------- lines


@st.composite
def kernel_events(draw: st.DrawFn) -> KernelEvent:
    """Mostly as a normalizer writes them."""
    number = draw(st.sampled_from([OPEN] * 8 + [CONNECT, EXEC, UNLINK, 77]))
    event = KernelEvent(
        run_id=RUN,
        seq=0,
        pid=draw(st.sampled_from([1, 1, 2, 1 << 64])),
        event_type=number,
        kind=draw(st.sampled_from([kind_of_event(number)] * 9 + ["openat", "exec", "event_5"])),
        value=draw(st.sampled_from(["/a/b", "/a/c", "/a", "b", "/a/é\n", "", '/a"\\', None])),
    )
    if number != OPEN:
        return event
    flags: int = draw(st.sampled_from([0, 0o2000000, 0o1101, 0o102, 0o3001, 3]))
    event.flags = draw(st.sampled_from([flags, flags, flags, 1]) | st.just(UNSET))
    event.access_mode = draw(st.sampled_from([*[ACCESS[flags & 3]] * 5, UNSET, "read"]))
    event.operation_flags = draw(st.sampled_from([*[OPERATIONS[flags]] * 5, UNSET, ("append",)]))
    event.return_value = draw(st.sampled_from([3, 4, -2, -13]) | st.just(UNSET))
    event.status = "success"
    if event.return_value is not UNSET and event.return_value < 0:
        event.status = "error"
    event.status = draw(st.sampled_from([*[event.status] * 8, UNSET, "error"]))
    return event


ACCESS: Any = ("read", "write", "read_write", "unknown")
OPERATIONS: Any = {
    **dict.fromkeys((0, 0o2000000, 3), UNSET),
    0o1101: ("create", "truncate"),
    0o102: ("create",),
    0o3001: ("truncate", "append"),
}
SPOILED = [
    *[(b'"pid":1', b'"pid": 1'), (b'"pid":1', b'"pid":1.0'), (b'"pid":1', b'"pid":01')],
    *[(b'"pid":1', b'"pid":-1'), (b'"pid":1', b'"pid":1e0'), (b'"pid":1,', b'"pid":1,"pid":1,')],
    *[(b'"seq":1,', b'"seq":2,'), (b'"seq":1,', b""), (b'"run_1"', b'"run_2"')],
    *[
        (b'"run_1"', b'"run 1"'),
        (b'"run_1"', b'"run_1\\n"'),
        (b"/a", b"\\/a"),
        (b"/a", b"\\u002fa"),
    ],
    *[(b"/a", b"\xff"), (b"/a", b"\0"), (b"}\n", b"}\n\n"), (b"}\n", b"} \n"), (b"}\n", b"}")],
    *[(b"v0", b"v1"), (b'"schema":"assay.runner.kernel_event.v0",', b""), (b"}\n", b',"x":1}\n')],
    *[(b'"success"', b'"error"'), (b'"read"', b'"write"'), (b'"create"', b'"append"')],
    *[(b'["create"]', b"[]"), (b'"flags":', b'"mode":5,"flags":'), (b'"mode":5', b'"mode":-5')],
    *[(b'"event_type":1,', b'"event_type":2,'), (b"openat", b"connect"), (b"null", b"3")],
    *[(b'"value":null', b'"value":null,"resolve":0'), (b"null", b"[" * 99 + b"]" * 99)],
]


@st.composite
def kernel_layers(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(kernel_events(), min_size=1, max_size=8))
    for number, event in enumerate(lines):
        event.seq = number
    data = ndjson(*lines)
    for old, new in draw(st.lists(st.sampled_from(SPOILED), max_size=2)):
        data = data.replace(old, new, draw(st.sampled_from([1, -1])))
    return data


def check_layer(data: bytes, cuts: list[int], run_id: str = RUN) -> tuple[Any, ...]:
    report = VerifyReport("x", Limits(), is_folder=False, run_id=run_id)
    contract = contract_of_layer(KERNEL_FILE, lambda: 0, lambda: 0)
    assert contract is not None
    with closing(LayerReplay()) as replay:
        checker = layers.LayerChecker(report, KERNEL_FILE, contract, replay)
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            checker.feed(data[start:end])
        checker.finish()
        replay.finish()
        steps: Counter[Any] = Counter()
        for pid, kind, detail, times in replay.events_in_order():
            steps[pid, kind, str(detail)] += times
        surface = replay.surface
        reached = surface.surface_artifact(RUN), surface.reached_paths(), surface.failed_paths()
        counted = replay.is_whole, replay.events, report.lines, checker.lines, steps
        return report.findings, reached, counted


@thorough(200)
@given(kernel_layers(), st.data(), st.sampled_from([100, 300, 1000, 1 << 16]))
def test_many_lines_at_once(data: bytes, choice: st.DataObject, piece: int) -> None:
    cuts = sorted(choice.draw(st.lists(st.integers(0, len(data)), max_size=3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "_PIECE", piece)
        together = check_layer(data, cuts)
        patch.setattr(layers, "_PIECE", 1)
        assert together == check_layer(data, [])


def test_a_run_whose_name_is_none() -> None:
    data = ndjson(
        KernelEvent(run_id="run 1", seq=0, pid=1, event_type=OPEN, kind="openat", value="/a")
    )
    assert [found.path for found in check_layer(data, [], "run 1")[0]] == ["$.run_id"]


def test_good_lines_are_looked_at_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above shows nothing."""
    chance = random.Random(1)
    lines = []
    for number in range(300):
        flags = chance.choice([*OPERATIONS])
        result = chance.choice([3, 9, -2])
        event = KernelEvent(
            run_id=RUN, seq=number, pid=7, event_type=OPEN, kind="openat", value="/x", flags=flags
        )
        event.return_value, event.status = result, "success" if result > 0 else "error"
        event.access_mode, event.operation_flags = ACCESS[flags & 3], OPERATIONS[flags]
        lines.append(event)

    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(layers.LayerChecker, "_check_line", refuse)
    assert check_layer(ndjson(*lines), [])[2][1] == 300


# ---------------------------------------------------------------- steps

STEP = st.tuples(
    st.integers(1, 4), st.sampled_from([OPEN, OPEN, OPEN, UNLINK, FORK, FORK, EXEC, EXIT])
)


Observed: TypeAlias = tuple[list[KernelEvent], list[KernelDetail], Files]


@st.composite
def observed_runs(draw: st.DrawFn) -> Observed:
    kernel, details = [], []
    for seq, (pid, number) in enumerate(draw(st.lists(STEP, max_size=30))):
        kind = kind_of_event(number)
        kernel.append(
            KernelEvent(run_id=RUN, seq=seq, pid=pid, event_type=number, kind=kind, value="/x")
        )
        if number in (FORK, EXEC) and draw(st.integers(0, 5)):
            detail = KernelDetail(run_id=RUN, seq=seq, pid=pid, call=kind)
            if number == FORK:
                detail.child = draw(st.integers(1, 6))
            else:
                detail.argv = draw(st.sampled_from([["sh", "-c", "make"], ["ls"]]))
            details.append(detail)
    sdk: list[SdkEvent] = []
    markers: list[Marker] = []
    for at in sorted(draw(st.lists(st.integers(0, len(kernel)), max_size=6))):
        name: Any = draw(st.sampled_from(["tool_call_started", "tool_call_completed"]))
        call = draw(st.sampled_from(["a", "b", "c"]))
        sdk.append(
            SdkEvent(
                run_id=RUN, seq=len(sdk), event_type=name, source="x", tool_call_id=call, tool="T"
            )
        )
        command = "make" if call == "a" else None
        markers.append(
            Marker(
                run_id=RUN,
                seq=len(markers),
                name=name,
                at=at,
                clock="kernel",
                tool_call_id=call,
                command=command,
            )
        )
    return kernel, details, {SDK_FILE: ndjson(*sdk), MARKERS_FILE: ndjson(*markers)}


def correlate_steps(layers_by_name: Files, steps: Any) -> Correlation:
    return correlate_layers(
        RUN,
        markers=msgspec.json.Decoder(Marker).decode_lines(layers_by_name[MARKERS_FILE]),
        sdk=msgspec.json.Decoder(SdkEvent).decode_lines(layers_by_name[SDK_FILE]),
        policy=[],
        events=steps,
        gaps=[],
        has_kernel=True,
    )


@thorough(300)
@given(observed_runs(), st.integers(1, 12))
def test_many_steps_replayed_at_once(observed: Observed, size: int) -> None:
    check_steps(observed, size)


def test_a_number_that_was_another_processs() -> None:
    """After its exit, in the same stretch, nothing more can be the call's that it was for."""
    numbers = [(1, FORK), *[(2, OPEN)] * 3, (2, EXIT), *[(2, OPEN)] * 3]
    kernel = [
        KernelEvent(
            run_id=RUN, seq=seq, pid=pid, event_type=kind, kind=kind_of_event(kind), value="/x"
        )
        for seq, (pid, kind) in enumerate(numbers)
    ]
    details = [KernelDetail(run_id=RUN, seq=0, pid=1, call="fork", child=2)]
    names: list[Any] = ["tool_call_started", "tool_call_completed"]
    sdk = [
        SdkEvent(run_id=RUN, seq=seq, event_type=name, source="x", tool_call_id="a")
        for seq, name in enumerate(names)
    ]
    markers = [
        Marker(run_id=RUN, seq=seq, name=name, at=seq * 2, clock="kernel", tool_call_id="a")
        for seq, name in enumerate(names)
    ]
    sdk.append(replace(sdk[0], seq=2, tool_call_id="b"))
    markers.append(replace(markers[0], seq=2, at=2, tool_call_id="b"))
    layers_by_name = {SDK_FILE: ndjson(*sdk), MARKERS_FILE: ndjson(*markers)}
    found = check_steps((kernel, details, layers_by_name), len(kernel))
    assert found.calls["a"] == {"openat": 1, "event_1012": 1}
    assert found.calls["b"] == {"openat": 3}
    assert found.undecided == {"openat": 2, "event_1013": 1}


def check_steps(observed: Observed, size: int) -> Correlation:
    kernel, details, layers_by_name = observed
    found = []
    for count in (1, size):
        with closing(LayerReplay()) as replay:
            for start in range(0, len(kernel), count):
                replay.add_records(KERNEL_FILE, kernel[start : start + count])
            replay.add_records(DETAIL_FILE, details)
            markers = msgspec.json.Decoder(Marker).decode_lines(layers_by_name[MARKERS_FILE])
            replay.add_records(MARKERS_FILE, markers)
            replay.finish()
            found.append(correlate_steps(layers_by_name, replay.events_in_order()))
    assert found[0] == found[1]
    return found[0]


# ---------------------------------------------------------------- documents


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_small_files(tmp_path_factory.mktemp("small"))


def find_all(target: Path) -> set[tuple[Any, ...]]:
    return {(it.rule, it.message, it.source, it.line, it.path) for it in verify(target).findings}


def check_both_ways(target: Path) -> set[tuple[Any, ...]]:
    waiting = find_all(target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "_LONG", ())
        assert waiting == find_all(target)
    return waiting


@pytest.mark.parametrize("name", [SURFACE_FILE, COMPANION_FILE])
def test_an_artifact_that_waits_for_its_layers(files: Files, tmp_path: Path, name: str) -> None:
    target = tmp_path / "x.tar.gz"
    assert check_both_ways(write_files_as_archive(target, files)) == set()
    others = [one for one in iter_changed(name, files[name]) if one != files[name]]
    for other in others[:: len(others) // 40]:
        assert check_both_ways(write_files_as_archive(target, {**files, name: other})), other
    data = files[name]
    for other in (data.replace(b"run_1", b"run_2"), data + b"x", data[:-1], data + data, b""):
        assert check_both_ways(write_files_as_archive(target, {**files, name: other})), other
    if name == COMPANION_FILE:
        other = data.replace(b'"filtered":{}', b'"filtered":{"x":-1}')
        assert check_both_ways(write_files_as_archive(target, {**files, name: other})), other
    for place in range(0, len(data), len(data) // 40):
        other = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert check_both_ways(write_files_as_archive(target, {**files, name: other})), other


@pytest.mark.parametrize("name", [KERNEL_FILE, SDK_FILE])
def test_layers_that_are_another_runs(files: Files, tmp_path: Path, name: str) -> None:
    for old, new in ((b"/work/a", b"/work/c"), (b"run_1", b"run_2"), (b'"seq":1', b'"seq":7')):
        spoiled = {**files, name: files[name].replace(old, new)}
        check_both_ways(write_files_as_archive(tmp_path / "x.tar.gz", spoiled))


def test_a_good_artifact_is_not_decoded(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests above show nothing."""
    decoded_names: list[str] = []
    long_way = artifacts._checked_document

    def watched(report: VerifyReport, name: str, data: bytes) -> Any:
        decoded_names.append(name)
        return long_way(report, name, data)

    monkeypatch.setattr(artifacts, "_checked_document", watched)
    assert find_all(write_files_as_archive(tmp_path / "x.tar.gz", files)) == set()
    assert decoded_names
    assert not {SURFACE_FILE, COMPANION_FILE} & {*decoded_names}
    decoded_names.clear()
    verify(ARCHIVES[0])
    assert decoded_names
    assert SURFACE_FILE not in decoded_names


def test_a_file_that_is_there_twice(files: Files, tmp_path: Path) -> None:
    """The first of them is not forgotten."""
    items = read_tar_items(read_tar(write_files_as_archive(tmp_path / "x.tar.gz", files)))
    spoiled = files[SURFACE_FILE].replace(b'"/work/a"', b"7")
    place = [name for name, _ in items].index(SURFACE_FILE)
    target = tmp_path / "y.tar.gz"
    target.write_bytes(
        compress_tar(build_tar(*items[:place], (SURFACE_FILE, spoiled), *items[place:]))
    )
    assert "contract.document" in {rule for rule, *_ in check_both_ways(target)}


def test_the_first_to_say_whose_run_it_is(files: Files, tmp_path: Path) -> None:
    """Where that is an artifact, it cannot wait."""
    other = files[SURFACE_FILE].replace(b"run_1", b"run_2")
    items = read_tar_items(
        read_tar(write_files_as_archive(tmp_path / "x.tar.gz", {**files, SURFACE_FILE: other}))
    )
    target = tmp_path / "y.tar.gz"
    target.write_bytes(compress_tar(build_tar((MANIFEST, b"{}"), *items[1:])))
    assert "'run_1', but the run is 'run_2'" in {
        message for _, message, *_ in check_both_ways(target)
    }


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.stem)
def test_the_references_own(path: Path) -> None:
    assert {rule for rule, *_ in check_both_ways(path)} == {"contract.unbound", "contract.age"}
