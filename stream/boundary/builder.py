"""Boundary objects: from the flags of a probe, or, where it failed, from what the harness saw.

Pure: the catalogs and the descriptor are given, facts about the machine arrive as data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Struct

from stream.boundary.descriptors import Catalogs, Descriptor
from stream.boundary.emit_flags import (
    EmitFlags,
    clip_encoded,
    clip_text,
    encode_size,
    fit_object,
    infer_errno,
    make_snippet,
)
from stream.boundary.measured import Measured, complete_record
from stream.codec import decode_fault
from stream.errors import EmitError
from stream.records.boundary import (
    UNKNOWN,
    Boundary,
    CapabilityContext,
    CapabilitySnapshot,
    Operation,
    Payload,
    Probe,
    Result,
    Run,
    SandboxMode,
    SharedRecord,
    Stack,
    Status,
    encode_boundary,
)
from stream.records.control import PATTERN_VERSION
from stream.records.emission import RawEmission

AUTHOR = "stream"  #: of a record that the harness wrote in a probe's place


class Host(Struct, frozen=True):
    """The machine and workspace of a probe, which its helper does not state."""

    os: str
    workspace_root: str | None
    sandbox_mode: str | None


class BuiltRecord(NamedTuple):
    """A record, and the line that it is written as."""

    line: bytes
    record: Boundary | SharedRecord


class BoundaryBuilder(Struct, frozen=True):
    """Makes records under one descriptor and its catalogs, and checks each of them."""

    catalogs: Catalogs
    descriptor: Descriptor

    def record_from_flags(
        self, flags: EmitFlags, host: Host, measured: Measured | None = None, banner: bytes = b""
    ) -> BuiltRecord:
        """Build the record that a probe asked for, and keep what its sandbox printed around it.
        Raise EmitError with emit-record's sentence."""
        texts = flags.texts
        mode, primary = texts["--run-mode"], texts["--primary-capability-id"].strip()
        if not self.descriptor.allows_mode(mode):
            expected = "|".join(self.descriptor.modes)
            raise EmitError(f"Unknown run mode: {mode} (expected {expected})")
        secondary = sorted({name for name in flags.secondary if name})
        payload, inferred = _make_payload(flags, banner)
        catalog_key, context = self._capability_context(primary, secondary)
        # A descriptor of the user's own may name another pattern and other modes; its
        # schema is what the encoded record is then held against.
        return self._encode_checked(
            Boundary(
                capabilities_schema_version=catalog_key,
                capability_context=context,
                operation=Operation(
                    fit_object(flags.objects["args"], 0, "args_cut"),
                    clip_text(texts["--category"]),
                    clip_text(texts["--target"]),
                    clip_text(texts["--verb"]),
                ),
                payload=payload,
                probe=Probe(
                    clip_text(texts["--probe-name"]),
                    primary,
                    secondary,
                    clip_text(texts["--probe-version"]),
                ),
                result=Result(
                    errno=_clipped(flags.text_of_flag("--errno")) or inferred,
                    error_detail=_clipped(flags.text_of_flag("--error-detail")),
                    message=_clipped(flags.text_of_flag("--message")),
                    observed_result=cast("Status", texts["--status"]),
                    raw_exit_code=flags.exit_code,
                ),
                run=Run(
                    clip_text(texts["--command"]), cast("Any", mode), _clipped(host.workspace_root)
                ),
                schema_key=self.descriptor.key,
                schema_version=cast("Any", self.descriptor.pattern_version),
                stack=Stack(clip_text(host.os), cast("SandboxMode | None", host.sandbox_mode)),
            ),
            measured,
        )

    def record_from_harness(
        self,
        cell: RawEmission,
        host: Host,
        reason: str,
        sentence: str,
        emitted: dict[str, Any] | None,
        noise: bytes,
        measured: Measured | None = None,
    ) -> BuiltRecord:
        """Build the error record that stands for a probe which did not keep its contract."""
        primary = cell.capability or UNKNOWN
        catalog = self.catalogs.find_catalog(primary)
        unknown = CapabilitySnapshot(UNKNOWN, primary, UNKNOWN)
        snapshot = catalog.snapshot(primary) if catalog else unknown
        mark = {"harness": {"author": AUTHOR, "reason": reason, **_harness_facts(cell)}}
        stdout = make_snippet(noise.decode(errors="replace")) if noise else None
        stderr = make_snippet(cell.stderr.decode(errors="replace"))
        script = clip_text(f"{cell.probe}.sh")
        record = Boundary(
            capabilities_schema_version=(catalog or self.catalogs.first).key,
            capability_context=CapabilityContext(snapshot, []),
            operation=Operation({}, "harness", script, "run"),
            payload=_fit_raw({} if emitted is None else {"emitted": emitted}, stderr, stdout, mark),
            probe=Probe(clip_text(cell.probe), primary, [], UNKNOWN),
            result=Result(
                errno=None,
                error_detail=_clipped(cell.spawn_error),
                message=clip_text(sentence),
                observed_result="error",
                raw_exit_code=cell.exit_code,
            ),
            run=Run(script, cast("Any", cell.mode), _clipped(host.workspace_root)),
            schema_key=self.descriptor.key,
            schema_version=cast("Any", self.descriptor.pattern_version),
            stack=Stack(clip_text(host.os), cast("SandboxMode | None", host.sandbox_mode)),
        )
        if measured is not None:
            record = complete_record(record, measured, self.descriptor.key)
        line = encode_boundary(record)
        if self.descriptor.check(line):
            # A pattern of the user's own has no room for it: the cell still gets its record,
            # and where even that is no valid one, whoever validates it will say so.
            record.schema_version = PATTERN_VERSION
            line = encode_boundary(record)
        return BuiltRecord(line, record)

    def _capability_context(
        self, primary: str, secondary: Sequence[str]
    ) -> tuple[str, CapabilityContext]:
        """Return (the key of the catalog, the capabilities as it describes them)."""
        catalog = self.catalogs.find_catalog(primary)
        if catalog is None:
            raise _unknown_capability("primary", primary)
        for name in secondary:
            if name not in catalog.capabilities:
                raise _unknown_capability("secondary", name)
        others = [catalog.snapshot(name) for name in secondary]
        return catalog.key, CapabilityContext(catalog.snapshot(primary), others)

    def _encode_checked(self, record: Boundary, measured: Measured | None) -> BuiltRecord:
        """Encode a boundary record. Raise EmitError if it breaks the descriptor's pattern."""
        if measured is not None:
            record = complete_record(record, measured, self.descriptor.key)
        try:
            line = encode_boundary(record)
        except (RecursionError, OverflowError, ValueError) as error:
            raise EmitError(f"the record cannot be written: {decode_fault(error).reason}") from None
        if fault := self.descriptor.check(line):
            where = f"{self.descriptor.key}: {fault.path}"
            raise EmitError(f"the record breaks {where}: {fault.reason}")
        return BuiltRecord(line, record)


def _unknown_capability(which: str, name: str) -> EmitError:
    """Return the error for a capability id that the catalog does not have."""
    return EmitError(
        f"Unknown {which} capability id: {name}."
        " Expected one of the IDs in the loaded capability catalog."
    )


def _clipped(text: str | None) -> str | None:
    return None if text is None else clip_text(text)


def _make_payload(flags: EmitFlags, banner: bytes) -> tuple[Payload, str | None]:
    """Make the payload. Infer the errno from the evidence where the probe named none."""
    if given := flags.payload:
        raw, stderr, stdout = given.raw, given.stderr_snippet, given.stdout_snippet
    else:
        raw = flags.objects["raw"]
        stderr, stdout = flags.snippets.get("stderr"), flags.snippets.get("stdout")
    message, detail = flags.text_of_flag("--message"), flags.text_of_flag("--error-detail")
    recorded = {
        "stderr_snippet": make_snippet(stderr),
        "message": _clipped(message),
        "error_detail": _clipped(detail),
        "stdout_snippet": make_snippet(stdout),
    }
    mark, errno = {}, None
    if banner:
        mark["sandbox_stdout"] = clip_encoded(clip_text(banner.decode(errors="replace")), 120)
    if flags.texts["--status"] != "success" and not flags.text_of_flag("--errno"):
        whole = dict(zip(recorded, (stderr, message, detail, stdout), strict=True))
        if inferred := infer_errno(whole, recorded):
            errno, mark["errno_inferred_from"] = inferred
    return _fit_raw(raw, recorded["stderr_snippet"], recorded["stdout_snippet"], mark), errno


def _fit_raw(
    raw: dict[str, Any], stderr: str | None, stdout: str | None, mark: dict[str, Any]
) -> Payload:
    """Cut raw to the room that the snippets and our own words leave."""
    used = sum(len(encode_size(part)) for part in (stderr, stdout, mark))
    return Payload({**fit_object(raw, used + 64, "payload_cut"), **mark}, stderr, stdout)


def _harness_facts(cell: RawEmission) -> dict[str, Any]:
    """List what the harness saw of a cell, without what did not happen."""
    facts = {
        "exit_code": cell.exit_code,
        "signal": None if cell.signal is None else clip_encoded(clip_text(cell.signal), 40),
        "timed_out_after_seconds": cell.timed_out,
        "stdout_bytes": cell.stdout_bytes,
        "stderr_bytes": cell.stderr_bytes,
        "left_processes": _first_names(cell.stragglers) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _first_names(names: Sequence[str]) -> list[str]:
    """Return the first names: what the harness says must fit beside any evidence."""
    more = [f"and {len(names) - 5} more"] if len(names) > 5 else []
    return [clip_encoded(clip_text(name), 60) for name in names[:5]] + more


def within_limits(record: dict[str, Any]) -> dict[str, Any]:
    """Make a record that a probe wrote itself as small as those that we write."""
    bounded = {
        name: {key: clip_text(v) if isinstance(v, str) else v for key, v in part.items()}
        if isinstance(part, dict)
        else part
        for name, part in record.items()
    }
    args = _at(bounded, "operation", "args")
    if isinstance(args, dict):
        bounded["operation"]["args"] = fit_object(args, 0, "args_cut")
    raw = _at(bounded, "payload", "raw")
    if isinstance(raw, dict):
        texts = [_at(bounded, "payload", name) for name in ("stderr_snippet", "stdout_snippet")]
        if all(text is None or isinstance(text, str) for text in texts):
            stderr, stdout = map(make_snippet, texts)
            payload = msgspec.structs.asdict(_fit_raw(raw, stderr, stdout, mark={}))
            bounded["payload"] = {key: payload.get(key, v) for key, v in bounded["payload"].items()}
    return bounded


def _at(record: dict[str, Any], part: str, name: str) -> Any:
    section = record.get(part)
    return section.get(name) if isinstance(section, dict) else None
