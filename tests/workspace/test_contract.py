"""The struct of a change, and the JSON Schema that is published, mean the same."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stream.records.run import decode_change, encode_change
from tests.sweeping import thorough
from tests.transformers.test_contracts import check_agreement, mutated_values, read_schema

SCHEMA = jsonschema_rs.validator_for(read_schema("fs_change.schema.json"))
TEXT = st.sampled_from(["a", "", "ü/b"])
REASONS = ["inside-git", "refused-name", "long-path", "folder", "mode-bits", "special-file"]
REASONS += ["too-large", "unreadable", "in-the-way", "redacted", "other"]
STATES = st.none() | st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["file", "dir", "symlink", "fifo", "socket", "device"]),
        "mode": st.sampled_from(["0644", "4755", "644", "0888"]),
        "bytes": st.sampled_from([None, 0, 7, 2**70, 2.0, -1]),
        "sha256": st.sampled_from([None, "0" * 64, "A" * 64]),
    },
    optional={"target": TEXT, "target_base64": TEXT},
)
CHANGES = st.fixed_dictionaries(
    {
        "schema": st.just("stream.fs_change.v1"),
        "path": TEXT,
        "change": st.sampled_from(["added", "removed", "changed"]),
        "before": STATES,
        "after": STATES,
        "in_patch": st.booleans(),
        "not_in_patch": st.none() | st.sampled_from(REASONS),
        "after_exit": st.none() | st.booleans(),
    },
    optional={"path_base64": TEXT},
)


@thorough(1000, suppress_health_check=list(HealthCheck))
@given(mutated_values(CHANGES))
def test_changes(value: Any) -> None:
    check_agreement(SCHEMA, decode_change, value)


def test_what_is_written_is_what_is_read() -> None:
    line = (
        b'{"schema":"stream.fs_change.v1","path":"a","change":"removed",'
        b'"before":{"kind":"dir","mode":"0755","bytes":null,"sha256":null},'
        b'"after":null,"in_patch":false,"not_in_patch":"folder","after_exit":null}'
    )
    assert encode_change(decode_change(line)) == line
