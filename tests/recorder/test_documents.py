"""schema/README.md says what the files of a run folder are: every field, every word, no other."""

from __future__ import annotations

import re
from typing import get_args

import msgspec
import pytest

from stream.document import BUNDLE
from stream.recorder.wrappers import CATEGORIES
from stream.records.change import FsChange, Reason
from stream.records.command import CommandRecord
from stream.records.run import Manifest, ManifestFile, RunMetadata, RunSummary

PAGE = (BUNDLE / "schema" / "README.md").read_text()


def documented(tag: str) -> list[str]:
    """The fields in the table under the heading of a document."""
    (section,) = re.findall(
        rf"^### [^\n]*`{re.escape(tag)}`\n(.*?)^##", PAGE, re.MULTILINE | re.DOTALL
    )
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("kind", [RunMetadata, RunSummary, CommandRecord, FsChange])
def test_every_field_has_its_line(kind: type[msgspec.Struct]) -> None:
    tag = kind.__struct_config__.tag or "stream.fs_change.v1"
    fields = [field for field in kind.__struct_fields__ if field != "schema"]
    assert sorted(documented(str(tag))) == sorted(fields)


def test_the_manifest() -> None:
    (line,) = re.findall(r"^.*`stream\.manifest\.v1`.*$", PAGE, re.MULTILINE)
    assert all(f"`{field}`" in line for field in ManifestFile.__struct_fields__)
    assert Manifest.__struct_config__.tag == "stream.manifest.v1"


@pytest.mark.parametrize("word", [*get_args(Reason), *CATEGORIES])
def test_every_word_is_there(word: str) -> None:
    folder = PAGE.partition("## The run folder")[2].partition("\n## ")[0]
    assert f"`{word}`" in folder
