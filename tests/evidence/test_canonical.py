"""Two runs that did the same have the same layers, but for the numbers of processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.compare.diff import (
    LAYERS,
    CanonicalLayers,
    LayerComparison,
    ProcessLabels,
    canonical_lines,
    compare_layers,
)
from stream.errors import InputError
from stream.records.artifacts import DETAIL_FILE, KERNEL_FILE, SDK_FILE


def encode_lines(*records: dict[str, Any]) -> list[bytes]:
    return [json.dumps(record, separators=(",", ":")).encode() for record in records]


def write_layers(folder: Path, **layers: list[bytes]) -> str:
    names = {"kernel": KERNEL_FILE, "detail": DETAIL_FILE, "sdk": SDK_FILE}
    (folder / "layers").mkdir(parents=True, exist_ok=True)
    for name, content in layers.items():
        (folder / names[name]).write_bytes(b"".join(line + b"\n" for line in content))
    return str(folder)


def test_processes_are_named_as_they_are_met() -> None:
    found = canonical_lines(
        encode_lines(
            {"run_id": "x", "pid": 70, "return_value": 70}, {"pid": 9, "child": 70}, {"pid": 9}
        )
    )
    assert list(found) == encode_lines(
        {"run_id": "run", "pid": "p1", "return_value": 70},
        {"pid": "p2", "child": "p1"},
        {"pid": "p2"},
    )


def test_labels_are_those_of_all_layers() -> None:
    labels = ProcessLabels()
    list(canonical_lines(encode_lines({"pid": 5}, {"pid": 6}), labels))
    assert list(canonical_lines(encode_lines({"pid": 6, "child": 8}), labels)) == encode_lines(
        {"pid": "p2", "child": "p3"}
    )


def test_the_runs_own_folder_has_one_name() -> None:
    """Wherever it stands in a text, and nothing that only begins like it."""
    folder = '/ru"ns/a-1'
    endings = [
        *("", "/workspace/x", "'; cat ", '"', "\n", "/é"),
        *("2", "_", "-b", ".tar", "é"),
    ]
    (line,) = canonical_lines(
        encode_lines({"value": folder, "argv": [f"--in={folder}{more}" for more in endings]}),
        ProcessLabels(folder),
    )
    others = [f"/evil{folder}/x", f"é{folder}"]
    (foreign,) = canonical_lines(encode_lines({"argv": others}), ProcessLabels(folder))
    assert json.loads(foreign)["argv"] == others
    (beneath,) = canonical_lines(encode_lines({"argv": [f"ls\n{folder}/x"]}), ProcessLabels(folder))
    assert json.loads(beneath)["argv"] == ["ls\n(run)/x"]
    found = json.loads(line)
    assert found["value"] == "(run)"
    assert found["argv"] == [
        *(f"--in=(run){more}" for more in endings[:6]),
        *(f"--in={folder}{more}" for more in endings[6:]),
    ]


def test_what_is_no_object_stays(tmp_path: Path) -> None:
    odd = [b"", b"[1]", b"{", b"\xff", b"7", b'{"pid":"x","child":true}']
    assert list(canonical_lines(odd)) == odd


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30),
    st.permutations(range(100, 106)),
)
def test_other_numbers_are_the_same_run(forks: list[tuple[int, int]], numbers: list[int]) -> None:
    one = encode_lines(*({"run_id": "a", "pid": pid, "child": child} for pid, child in forks))
    renamed = ({"run_id": "b", "pid": numbers[p], "child": numbers[c]} for p, c in forks)
    assert list(canonical_lines(one)) == list(canonical_lines(encode_lines(*renamed)))


def test_where_two_runs_part(tmp_path: Path) -> None:
    a = write_layers(
        tmp_path / "a",
        kernel=encode_lines({"pid": 1, "value": "x"}, {"pid": 2, "value": "y"}, {"pid": 3}),
        detail=encode_lines({"pid": 3}),
        sdk=encode_lines({"run_id": "a"}),
    )
    b = write_layers(
        tmp_path / "b",
        kernel=encode_lines({"pid": 7, "value": "x"}, {"pid": 8, "value": "z"}, {"pid": 9}),
        detail=encode_lines({"pid": 9}),
        sdk=encode_lines({"run_id": "b"}, {"run_id": "b"}),
    )
    kernel, detail, sdk, policy, markers = compare_layers(CanonicalLayers(a), CanonicalLayers(b))
    assert kernel.difference is not None
    assert kernel.difference.line == 2
    assert kernel.difference.base == encode_lines({"pid": "p2", "value": "y"})[0]
    assert (detail, policy.lines, markers.lines) == (LayerComparison(DETAIL_FILE, 1, None), 0, 0)
    assert sdk.difference is not None
    assert (sdk.difference.line, sdk.difference.base) == (2, None)
    assert all(
        one.difference is None for one in compare_layers(CanonicalLayers(a), CanonicalLayers(a))
    )


def test_without_layers_nothing_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    whole = write_layers(tmp_path / "a", kernel=[])
    with pytest.raises(InputError, match="no layers"):
        CanonicalLayers(str(tmp_path / "empty"))
    with pytest.raises(InputError, match="no such file"):
        CanonicalLayers(str(tmp_path / "none"))
    assert [
        one.lines for one in compare_layers(CanonicalLayers(whole), CanonicalLayers(whole))
    ] == [0] * len(LAYERS)
