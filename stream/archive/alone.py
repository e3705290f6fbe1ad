"""What each record of a run's evidence breaks by itself, whatever the others say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
from msgspec import UNSET

from stream.archive.columns import KernelDecoder, columns_of
from stream.archive.entries import READ, open_beneath
from stream.archive.laws import Agreement
from stream.archive.limits import Limits
from stream.codec import (
    DECODE_ERRORS,
    Lines,
    LineSplitter,
    OverlongLine,
    contract_of,
    explain,
    join_lines,
)
from stream.document import repeated_key
from stream.errors import InputError, os_reason, visible
from stream.evidence.claims import Fault
from stream.evidence.contracts import ARTIFACTS, LINES
from stream.records.control import Finding
from stream.records.runner import COMPANION_FILE, CONTRACTS, EVIDENCE_FILES, KERNEL_FILE

RULE = "folder.evidence"
_encode_lines = msgspec.json.Encoder().encode_lines


def evidence_findings(root: Path) -> Iterator[Finding]:
    """Of the files that are there. That one is missing, or no file, the run's manifest shows; and
    what is in a companion follows from the layers, which `verify` looks at."""
    for name in EVIDENCE_FILES:
        if name not in CONTRACTS or name == COMPANION_FILE or not (root / name).is_file():
            continue
        where = visible(str(root / name))
        try:
            with open_beneath(root, name) as file:
                faults = _line_faults if CONTRACTS[name] in LINES else _artifact_faults
                for number, (reason, path) in faults(file, name):
                    yield Finding(
                        rule=RULE,
                        severity="error",
                        message=reason,
                        source=where,
                        line=number or UNSET,
                        path=path or UNSET,
                    )
        except InputError:
            continue
        except OSError as error:
            yield Finding(rule=RULE, severity="error", message=os_reason(error), source=where)


def fault_of(line: bytes, contract: str) -> Fault | None:
    """The first that there is."""
    try:
        if contract_of(line) != contract:
            return f"it is no {contract}", "$.schema"
        {**LINES, **ARTIFACTS}[contract](line)
    except DECODE_ERRORS as error:
        return explain(error)
    return repeated_key(line)


def _artifact_faults(file: IO[bytes], name: str) -> Iterator[tuple[int, Fault]]:
    most = Limits().document
    data = file.read(most + 1)
    if len(data) > most:
        yield 0, (f"it was not looked at: it has more than {most} bytes", "")
    elif fault := fault_of(data, CONTRACTS[name]):
        yield 0, fault


def _line_faults(file: IO[bytes], name: str) -> Iterator[tuple[int, Fault]]:
    """A last line that has no end is none: the chain shows what is missing."""
    decoder, agreement = KernelDecoder(), Agreement()
    splitter = LineSplitter(name)
    while chunk := file.read(READ):
        lines = splitter.feed(chunk)
        if lines is None or (name == KERNEL_FILE and _are_good(lines, decoder, agreement)):
            continue
        for index, line in enumerate(lines):
            if isinstance(line, OverlongLine):
                yield lines.number + index, ("it was not looked at: the line is too long", "")
            elif fault := fault_of(line, CONTRACTS[name]):
                yield lines.number + index, fault


def _are_good(lines: Lines, decoder: KernelDecoder, agreement: Agreement) -> bool:
    block = join_lines(lines)
    try:
        records = decoder.decode_lines(block)
    except DECODE_ERRORS:
        return False
    if not records or _encode_lines(records) != block:
        return False
    columns = columns_of(records)
    return len(columns.run_ids) == 1 and agreement(columns)
