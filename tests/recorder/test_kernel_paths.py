"""Names of any bytes, and paths as long as there are: what was reached is what is recorded."""

from __future__ import annotations

import errno

import pytest

from stream.records.kernel import MKDIR, OPEN, RENAME, UNLINK, path_text
from tests.cli.command import Place
from tests.feeds import FEEDS
from tests.recorder.runs import observe, read_records
from tests.recorder.test_kernel import read_artifact, read_health, read_kernel_layer
from tests.recorder.test_kernel_attacks import find_error_rules

WORK = r"""
import os
here = os.getcwdb()
os.mkdir(b'\xff\n"')
os.close(os.open(b'\xff\n"/\xe9', os.O_CREAT | os.O_WRONLY))
os.rename(b'\xff\n"/\xe9', b'\xff\n"/a\\b')
while len(here) < 3700:
    here += b'/' + b'd' * 199
    os.mkdir(here)
here += b'/' + b'e' * (3889 - len(here))
os.mkdir(here)
os.chdir(here)
for length in (4095, 4096):
    name = b'\xfe' * (length - 3891)
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    try: os.unlink(here + b'/' + name)
    except OSError: os.unlink(name)
os.write(1, here)
"""


@pytest.mark.parametrize("feed", FEEDS)
def test_names_of_any_bytes_and_any_length(place: Place, feed: str) -> None:
    """A path of 4,095 bytes is the longest that a call takes; what is longer can be reached from
    a folder on the way, and has a name that no call would give."""
    words = ("--kernel", feed, "--workspace", "empty", "--", "/usr/bin/python3", "-ISc", WORK)
    run = observe(place, *words)
    assert run.done.code == 0, run.done.err
    found = read_health(run)
    assert (found["kernel_layer"], found["ringbuf_drops"]) == ("complete", 0)
    odd, deep = f'{run.folder}/workspace/\\xff\n"', path_text(run.stdout)
    lines = [
        line for line in read_kernel_layer(run) if str(line["value"]).startswith(str(run.folder))
    ]
    calls = [(line["event_type"], line["value"]) for line in lines]
    assert calls[:3] == [(MKDIR, odd), (OPEN, f"{odd}/\\xe9"), (RENAME, f"{odd}/\\xe9")]
    details = {one["seq"]: one for one in read_records(run.folder / "layers/kernel-ext.ndjson")}
    assert details[lines[2]["seq"]]["to_path"] == f"{odd}/a\\\\b"
    longest, longer = (f"{deep}/" + "\\xfe" * (length - 3891) for length in (4095, 4096))
    at = calls.index((MKDIR, deep))
    refused = lines[at + 4]
    assert calls[at:] == [
        (MKDIR, deep),
        (OPEN, longest),
        (UNLINK, longest),
        (OPEN, longer),
        (UNLINK, refused["value"]),
        (UNLINK, longer),
    ]
    assert longer.startswith(refused["value"])
    assert details[refused["seq"]]["marks"] == ["truncated"]
    assert details[refused["seq"]]["return_value"] == -errno.ENAMETOOLONG
    paths = read_artifact(run, "capability-surface.json")["filesystem_paths"]
    assert {odd, f"{odd}/a\\\\b", longest, longer} <= {*paths}
    assert not find_error_rules(place, run)
