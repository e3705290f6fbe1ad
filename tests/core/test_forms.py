"""What form a text must have is described in words: nobody has to read a regular expression."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

import stream
from stream.codec import decode_fault
from stream.records.control import WORDS, Fault


@pytest.mark.parametrize("form", WORDS)
def test_a_text_of_another_form(form: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(b'[" \\n"]', type=list[Annotated[str, Meta(pattern=form)]])
    assert decode_fault(caught.value) == Fault(f"expected {WORDS[form]}", "$[0]")


def test_every_form_of_a_record_has_words() -> None:
    records = Path(stream.__file__).parent / "records"
    used = {
        name
        for path in records.glob("*.py")
        for name in re.findall(r"pattern=([^,)\]]+)", path.read_text())
    }
    assert used
    assert all(re.fullmatch("[A-Z_]+", name) for name in used), used
