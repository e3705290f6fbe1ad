"""Capability catalogs and boundary descriptors: what a boundary object is held to.

A descriptor names the pattern of an object; the object itself names its catalog.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, ValidationError

from stream.codec import (
    BUNDLE,
    DECODE_ERRORS,
    contract_of,
    convert_document,
    decode_fault,
    is_file,
    read_document,
    repeated_key,
)
from stream.errors import InputError, naming_variable
from stream.records.boundary import (
    DESCRIPTOR,
    PAYLOAD,
    SNIPPET,
    UNKNOWN,
    Capability,
    CapabilityContext,
    CapabilitySnapshot,
    CatalogDocument,
    Defaults,
    DescriptorDocument,
    Operation,
    Payload,
    Result,
    Run,
    SharedRecord,
    decode_boundary,
    decode_shared,
)
from stream.records.control import MODE_NAME, PATTERN_VERSION, Fault
from stream.records.modes import BASELINE, MODE_PATTERN, decode_mode_boundary
from stream.records.run import DESCRIPTOR_FILE

#: where no defaults.json says otherwise
BUILT_IN = {
    "linux": "catalogs/linux_agent_v1.json",
    "darwin": "catalogs/macos_codex_v1.json",
    "boundary": "catalogs/cfbo-v1.json",
    "modes": "catalogs/cfbo-v2.json",
}


class Catalog(Struct, frozen=True):
    """A capability catalog that was loaded."""

    key: str
    path: Path
    capabilities: Mapping[str, Capability]

    def snapshot(self, capability_id: str) -> CapabilitySnapshot:
        """Describe a capability as a record has it."""
        found = self.capabilities[capability_id]
        return CapabilitySnapshot(category=found.category, id=found.id, layer=found.layer)


class Catalogs(Struct, frozen=True):
    """The catalogs in force, the preferred one first."""

    known: tuple[Catalog, ...]
    named: bool  #: the user chose it: no other one is asked

    @property
    def first(self) -> Catalog:
        """The preferred catalog."""
        return self.known[0]

    def find_catalog(self, capability_id: str) -> Catalog | None:
        """Find the first catalog that has a capability."""
        return next((c for c in self.known if capability_id in c.capabilities), None)

    def catalog_for_capability(self, capability_id: str | None) -> Catalog:
        """Find the catalog that a probe with this capability is interpreted with."""
        return self.find_catalog(capability_id or "") or self.first

    def capability_ids(self) -> list[str]:
        """List the ids of all capabilities in the catalogs."""
        return sorted({name for catalog in self.known for name in catalog.capabilities})


def load_catalog(path: Path) -> Catalog:
    """Read a catalog from a file. Raises InputError."""
    return make_catalog(read_document(path), path)


def make_catalog(value: Any, path: Path) -> Catalog:
    """Make a catalog of a document. Raise InputError naming the offender."""
    document = convert_document(value, CatalogDocument, path)
    if fault := next(iter(catalog_faults(document)), None):
        raise InputError(f"{path}: {fault}")
    by_id = {capability.id: capability for capability in document.capabilities}
    return Catalog(document.catalog.key, path, by_id)


def catalog_faults(document: CatalogDocument) -> Iterable[str]:
    """Find in a catalog what a schema cannot: ids that stand twice, names that nothing declares."""
    layers = {layer.id for layer in document.scope.policy_layers}
    seen: set[str] = set()
    for capability in document.capabilities:
        name = capability.id
        if not name.strip():
            yield "a capability has a blank id"
        if name in seen:
            yield f"duplicate capability id {name}"
        seen.add(name)
        if capability.category not in document.scope.categories:
            yield f"capability {name} references unknown category {capability.category}"
        if capability.layer not in layers:
            yield f"capability {name} references unknown layer {capability.layer}"
        for reference in capability.sources:
            if reference.doc not in document.docs:
                yield f"capability {name} references unknown doc '{reference.doc}'"


def find_catalogs(flag: str | None, tree: Path | None = None) -> Catalogs:
    """Find the catalogs in force: the first one comes from the command line, CATALOG_PATH,
    defaults.json of the probe tree, the bundled one, or is built in."""
    named = flag or os.environ.get("CATALOG_PATH")
    if named:
        with naming_variable("CATALOG_PATH", not flag):
            return Catalogs((load_catalog(Path(named).absolute()),), named=True)
    return Catalogs(
        _with_bundled_catalogs(load_catalog(default_document_path("catalog", tree))), named=False
    )


def known_catalogs(flag: str | None = None) -> tuple[Catalog, ...]:
    """Find the catalogs in force and the bundled ones, which records of other days name."""
    return _with_bundled_catalogs(find_catalogs(flag).first)


def _with_bundled_catalogs(first: Catalog) -> tuple[Catalog, ...]:
    """Return a catalog and the bundled ones, each key only once."""
    paths = [BUNDLE / BUILT_IN[name] for name in ("linux", "darwin")]
    others = [load_catalog(path) for path in paths if path.resolve() != first.path.resolve()]
    # A record names its catalog by the key alone: one key, one catalog.
    return first, *(catalog for catalog in others if catalog.key != first.key)


def make_defaults(value: Any, path: Path) -> Defaults:
    """Read which catalog and descriptor a probe tree prefers. Raises InputError."""
    return convert_document(value, Defaults, path)


def default_document_path(which: str, tree: Path | None) -> Path:
    """Return the path that the first defaults.json names, relative to the folder above it."""
    for root in (tree, BUNDLE):
        file = root / "catalogs" / "defaults.json" if root else None
        if root and file and is_file(file):
            defaults = make_defaults(read_document(file), file)
            chosen = defaults.catalog if which == "catalog" else defaults.boundary
            if isinstance(chosen, dict):
                chosen = chosen.get(sys.platform, UNSET)
            if chosen is not UNSET:
                return (root / chosen).absolute()
    if which == "boundary":
        return BUNDLE / BUILT_IN["boundary"]
    return BUNDLE / BUILT_IN.get(sys.platform, BUILT_IN["linux"])


CANONICAL = BUNDLE / "schema" / "boundary_object_schema.json"
MODE_SCHEMA = BUNDLE / "schema" / "boundary_event_v2.schema.json"
#: of the structures that were published as boundary_event_v1 before the one that is bundled: the
#: reference's own, and ours without the bounds that the contract has in words
_PUBLISHED = (
    "f0358ab3a4264d8246dd7a4d333e63bdeb98a04f1288943eeee6b92c4a49ccf1",
    "65fa789fe8548faca2a9dac5d7da94645e32a945eb401c54b5a586122be0a67a",
)
Check = Callable[[bytes], Fault | None]
_encode, _encode_into = msgspec.json.Encoder().encode, msgspec.json.Encoder().encode_into


class Descriptor(Struct, frozen=True):
    """A boundary descriptor that was loaded: key, pattern, modes, and the check of a line."""

    key: str
    path: Path
    pattern_version: str
    modes: tuple[str, ...]
    check: Check
    canonical: bool
    schema: dict[str, Any] | None = None  #: the pattern; None: the one that is bundled

    @property
    def measures_modes(self) -> bool:
        """Return whether its pattern is the one of probes that are measured from outside."""
        return self.pattern_version == MODE_PATTERN

    @property
    def is_bundled(self) -> bool:
        """Return whether everybody who has stream knows this descriptor."""
        if self.measures_modes:
            return self.schema is None and self.key == mode_descriptor().key
        return self.canonical and self.key == _bundled_descriptor().key

    def allows_mode(self, mode: str) -> bool:
        """Return whether a record under this descriptor may have that run mode."""
        if self.measures_modes:
            return _is_mode_name(mode) is not None
        return mode in self.modes

    def whole_descriptor(self) -> dict[str, Any]:
        """Return the descriptor with its pattern in it, so that it needs no other file."""
        return {
            "schema_version": DESCRIPTOR,
            "key": self.key,
            "pattern_version": self.pattern_version,
            "schema": self.schema or read_document(_pattern_file(self.pattern_version)),
        }


def check_canonical(line: bytes) -> Fault | None:
    """Find what a line breaks of the canonical pattern's shape."""
    try:
        decode_boundary(line)
    except DECODE_ERRORS as error:
        return decode_fault(error)
    return None


def _check_measured(line: bytes) -> Fault | None:
    """Find what a line breaks of the shape of version 2."""
    try:
        decode_mode_boundary(line)
    except DECODE_ERRORS as error:
        return decode_fault(error)
    return None


_is_mode_name = re.compile(MODE_NAME).match


def _pattern_file(version: str) -> Path:
    return MODE_SCHEMA if version == MODE_PATTERN else CANONICAL


def find_descriptor(flag: str | None, tree: Path | None = None) -> Descriptor:
    """Find the descriptor of the command line, BOUNDARY_PATH or defaults.json, or the built-in
    one."""
    named = flag or os.environ.get("BOUNDARY_PATH")
    with naming_variable("BOUNDARY_PATH", bool(named) and not flag):
        return load_descriptor(
            Path(named).absolute() if named else default_document_path("boundary", tree)
        )


def load_descriptor(path: Path) -> Descriptor:
    """Read a descriptor from a file. Raises InputError."""
    return make_descriptor(read_document(path), path)


def make_carried_descriptor(value: Any, path: Path) -> Descriptor:
    """Make a descriptor that came with its records: it reads no other file. Raise InputError."""
    if isinstance(value, dict) and "schema_path" in value:
        raise InputError(f"{path}: $.schema_path: it came without its pattern: expected schema")
    return make_descriptor(value, path)


def carried_descriptors_in(folder: Path) -> list[Descriptor]:
    """Find the descriptor that came with the records of a run. One that cannot be used is none:
    then the records are found to name one that nobody knows."""
    path = folder / DESCRIPTOR_FILE
    if path.is_symlink() or not path.is_file():
        return []
    try:
        return [make_carried_descriptor(read_document(path), path)]
    except InputError:
        return []


def _bundled_descriptor() -> Descriptor:
    return load_descriptor(BUNDLE / BUILT_IN["boundary"])


@cache
def mode_descriptor() -> Descriptor:
    """Return the descriptor of records that are measured from outside."""
    path = BUNDLE / BUILT_IN["modes"]
    return Descriptor("cfbo-v2", path, MODE_PATTERN, (BASELINE,), _check_measured, canonical=False)


def make_descriptor(value: Any, path: Path) -> Descriptor:
    """Make a descriptor of a document. Raise InputError naming what is missing or does not fit."""
    document = convert_document(value, DescriptorDocument, path)
    schema, file = _read_schema(document, path)
    canonical = schema is None or _is_published(schema)
    if canonical:
        reported: tuple[str, ...] = (PATTERN_VERSION,)
        modes: tuple[str, ...] = (BASELINE,)
        check: Check = check_canonical
    elif _is_mode_pattern(schema):
        reported, modes, check, schema = (MODE_PATTERN,), (BASELINE,), _check_measured, None
    else:
        assert schema is not None
        reported = _listed_texts(schema, "schema_version")
        modes = _listed_texts(schema, "run", "mode") or (BASELINE,)
        check = _compile_schema(schema, file)
    if document.pattern_version not in reported:
        listed = " or ".join(map(repr, reported)) or "none"
        raise InputError(
            f"{path}: $.pattern_version: is {document.pattern_version!r}"
            f" but the pattern version that the schema {file} reports is {listed}"
        )
    is_ours = document.pattern_version in (PATTERN_VERSION, MODE_PATTERN)
    if is_ours and not canonical and check is not _check_measured:
        version = document.pattern_version
        raise InputError(
            f"{path}: $.pattern_version: {version} is the pattern {_pattern_file(version).name} of"
            f" stream, and the schema {file} is another one: a change of it needs a version of"
            " its own"
        )
    return Descriptor(document.key, path, document.pattern_version, modes, check, canonical, schema)


def _read_schema(document: DescriptorDocument, path: Path) -> tuple[dict[str, Any] | None, Path]:
    """Read the schema that a descriptor names; None stands for the canonical one."""
    if document.schema is not UNSET and document.schema_path is not UNSET:
        raise InputError(f"{path}: both schema and schema_path are given")
    if document.schema is not UNSET:
        return document.schema, path
    if document.schema_path is UNSET:
        raise InputError(f"{path}: missing schema_path")
    schema_path = path.parent / document.schema_path
    if not is_file(schema_path):
        raise InputError(f"{path}: $.schema_path: schema not found: {schema_path}")
    if schema_path.resolve() == CANONICAL.resolve():
        return None, schema_path
    schema = read_document(schema_path)
    if not isinstance(schema, dict):
        raise InputError(f"{schema_path}: expected a JSON Schema object")
    return schema, schema_path


def _is_published(schema: dict[str, Any]) -> bool:
    """Return whether a schema is the pattern boundary_event_v1, whatever its words for people
    are."""
    if _listed_texts(schema, "schema_version") != (PATTERN_VERSION,):
        return False
    digest = _schema_digest(schema)
    return digest in _PUBLISHED or digest == _schema_digest(read_document(CANONICAL))


def _is_mode_pattern(schema: dict[str, Any] | None) -> bool:
    """Return whether a schema is the pattern boundary_event_v2."""
    if schema is None or _listed_texts(schema, "schema_version") != (MODE_PATTERN,):
        return False
    return _schema_digest(schema) == _schema_digest(read_document(MODE_SCHEMA))


def _schema_digest(schema: dict[str, Any]) -> str:
    """Return the digest of a JSON Schema, without its titles and descriptions."""
    from hashlib import sha256  # and with it OpenSSL: only those need it who bring a pattern

    return sha256(msgspec.json.encode(_without_descriptions(schema), order="sorted")).hexdigest()


def _without_descriptions(schema: Any, *, are_names: bool = False) -> Any:
    """Return the schema without what is for people. The names of properties stay."""
    if isinstance(schema, dict):
        return {
            name: _without_descriptions(
                part, are_names=not are_names and name in ("properties", "definitions")
            )
            for name, part in schema.items()
            if are_names or name not in ("$id", "$comment", "title", "description", "examples")
        }
    return [_without_descriptions(part) for part in schema] if isinstance(schema, list) else schema


def _listed_texts(schema: Any, *keys: str) -> tuple[str, ...]:
    """Return the texts that a JSON Schema allows for a property, where it lists them."""
    for key in keys:
        for step in ("properties", key):
            schema = schema.get(step) if isinstance(schema, dict) else None
    if not isinstance(schema, dict):
        return ()
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return tuple(w for w in listed if isinstance(w, str)) if isinstance(listed, list) else ()


def _compile_schema(schema: dict[str, Any], path: Path) -> Check:
    """Compile the JSON Schema of a descriptor to a check. Raise InputError if it is not usable."""
    import jsonschema_rs  # a fifth of the start-up, for those who bring a pattern of their own

    try:
        validator = jsonschema_rs.validator_for(schema, offline=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: not a usable JSON Schema: {reason}") from None

    def check_by_schema(line: bytes) -> Fault | None:
        """Find what a line breaks of the schema."""
        try:
            error = next(validator.iter_errors(msgspec.json.decode(line)), None)
            if error is None:
                return None
        except (*DECODE_ERRORS, ValueError) as problem:
            return decode_fault(problem)
        steps = "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path
        )
        # The message quotes the value, however long that is.
        text = error.message
        return Fault(text if len(text) <= 300 else text[:300] + "…", f"${steps}")

    return check_by_schema


def _record_rule_fault(record: SharedRecord, size: int) -> Fault | None:
    """Find where parts of a record contradict each other, or where its payload is too large.

    `size` is that of its line: a payload is no larger than that.
    """
    probe, context = record.probe, record.capability_context
    named, primary = probe.primary_capability_id, context.primary.id
    if named and primary and named != primary:
        reason = f"expected the probe's {named!r}, got {primary!r}"
        return Fault(reason, "$.capability_context.primary.id")
    ids, secondary = probe.secondary_capability_ids, context.secondary
    if ids is not None and secondary is not None and sorted(ids) != sorted(o.id for o in secondary):
        reason = "expected one capability for each of the probe's secondary_capability_ids"
        return Fault(reason, "$.capability_context.secondary")
    if size > PAYLOAD and (needed := len(_encode(record.payload))) > PAYLOAD:
        return Fault(f"has {needed} bytes, more than {PAYLOAD}", "$.payload")
    return None


def _shared_parts(line: bytes) -> SharedRecord | None:
    """Decode the parts that the rules are about, where the pattern of a record left them so."""
    try:
        return decode_shared(line)
    except ValidationError:
        return None


def find_boundaries(flag: str | None, carried: Iterable[Descriptor] = ()) -> Boundaries:
    """Find what the records of a run or an archive are held to: the descriptor that they name,
    which is that of the command line or BOUNDARY_PATH, one that came with them, or the bundled
    one."""
    named = [find_descriptor(flag)] if flag or os.environ.get("BOUNDARY_PATH") else []
    return Boundaries(
        (*named, *carried, _bundled_descriptor(), mode_descriptor()), known_catalogs()
    )


class _KeyHead(Struct):
    schema_key: Any = None


_decode_naming = msgspec.json.Decoder(_KeyHead).decode


def descriptor_key_of(line: bytes) -> object:
    """Return the descriptor that a record names. Raise one of DECODE_ERRORS."""
    return _decode_naming(line).schema_key


_MOST_KNOWN = 5000  #: a stream of more probes forgets and learns again


class _QuickPayload(Payload, forbid_unknown_fields=True, gc=False):
    """A payload whose snippets were not cut."""

    stderr_snippet: Annotated[str, Meta(max_length=SNIPPET)] | None
    stdout_snippet: Annotated[str, Meta(max_length=SNIPPET)] | None


class _QuickBoundary(Struct, forbid_unknown_fields=True, gc=False):
    """A canonical record, as far as one differs from the next: a second form of `Boundary`.

    README promises that `validate` checks 250,000 records a second. What stays the same from record
    to record is looked at once, which takes 2.6 µs a record. To decode and encode each whole one
    takes 4 µs before any of its rules (`check`: 11 µs).
    """

    capabilities_schema_version: Raw
    capability_context: Raw
    operation: Operation
    payload: _QuickPayload
    probe: Raw
    result: Result
    run: Run
    schema_key: Raw
    schema_version: Literal["boundary_event_v1"]
    stack: Raw


_decode_quick = msgspec.json.Decoder(_QuickBoundary).decode


class Boundaries:
    """The rules for boundary objects: the descriptors in force, one of which a record names by its
    schema_key, and the catalogs that are known."""

    def __init__(self, descriptors: Sequence[Descriptor], catalogs: Iterable[Catalog]) -> None:
        self.descriptors = tuple(descriptors)
        self._good: set[bytes] = set()  #: what records had in common, and good
        self._keys = {descriptor.key for descriptor in descriptors}
        self._versions = {PATTERN_VERSION, *(one.pattern_version for one in descriptors)}
        self._capabilities: Mapping[str, Mapping[str, tuple[str, str]]] = {
            catalog.key: {
                name: (found.category, found.layer) for name, found in catalog.capabilities.items()
            }
            for catalog in catalogs
        }

    def knows_pattern(self, version: str) -> bool:
        """Say whether some descriptor in force has that pattern version."""
        return version in self._versions

    def carried_descriptor(self, keys: Container[object]) -> bytes:
        """Return the descriptor that records of these keys need elsewhere; empty if none."""
        for descriptor in self.descriptors:
            if descriptor.key in keys and not descriptor.is_bundled:
                whole = msgspec.json.encode(descriptor.whole_descriptor())
                return msgspec.json.format(whole) + b"\n"
        return b""

    def are_canonical(self, lines: Iterable[Any]) -> bool:
        """Return whether all lines are faultless records of the canonical pattern."""
        again = bytearray()
        for line in lines:
            try:
                record = _decode_quick(line)
                _encode_into(record, again)
            except DECODE_ERRORS:
                if not self._is_canonical_record(line):
                    return False
                continue
            except TypeError:  # no line
                return False
            # What comes out as it went in has no key twice.
            if len(line) <= PAYLOAD and (again == line or not repeated_key(line)):
                # Each value tells where it ends: no other five would look the same.
                known = b"".join(
                    (
                        record.schema_key,
                        record.capabilities_schema_version,
                        record.capability_context,
                        record.probe,
                        record.stack,
                    )
                )
                if known in self._good:
                    continue
                if not self._is_canonical_record(line):
                    return False
                context = msgspec.json.decode(record.capability_context, type=CapabilityContext)
                if context.primary.category == UNKNOWN:  # good in a record of the harness only
                    continue
                if len(self._good) == _MOST_KNOWN:
                    self._good.clear()
                self._good.add(known)
            elif not self._is_canonical_record(line):
                return False
        return True

    def _is_canonical_record(self, line: bytes) -> bool:
        """Tell whether a line is a faultless record of the canonical pattern."""
        try:
            return contract_of(line) == PATTERN_VERSION and not self.check_boundary(
                line, PATTERN_VERSION
            )
        except DECODE_ERRORS:
            return False

    def check_boundary(self, line: bytes, version: str) -> Fault | None:
        """Find what is wrong with a record of that pattern version."""
        try:
            key = descriptor_key_of(line)
            fault = self._descriptor_of(key, version).check(line)
            if fault is None and not self._is_known_descriptor(key, version):
                expected = " or ".join(sorted(self._keys))
                reason = f"is {key!r}, but the boundary descriptor in force is {expected}"
                fault = Fault(f"{reason}: name another with --boundary", "$.schema_key")
            if fault is None and (record := _shared_parts(line)) is not None:
                fault = _record_rule_fault(record, len(line)) or self._catalog_fault(record)
            return fault or repeated_key(line)
        except DECODE_ERRORS as error:
            return decode_fault(error)

    def _is_known_descriptor(self, key: object, version: str) -> bool:
        """Tell whether a descriptor of that key and pattern version is known."""
        return any(
            descriptor.key == key and version in (descriptor.pattern_version, PATTERN_VERSION)
            for descriptor in self.descriptors
        )

    def _descriptor_of(self, key: object, version: str) -> Descriptor:
        """Find the descriptor that a record means. The canonical pattern goes with every key: where
        a pattern of the user's own has no room for it, a record of the harness follows that."""
        for descriptor in self.descriptors:
            if descriptor.key == key and descriptor.pattern_version == version:
                return descriptor
        others = (one for one in self.descriptors if one.pattern_version == version)
        return next(others, _PLAIN)

    def _catalog_fault(self, record: SharedRecord) -> Fault | None:
        """Find what the catalog that the record names says otherwise, where it is known."""
        name = record.capabilities_schema_version
        catalog = self._capabilities.get(name)
        if catalog is None:
            return None
        context = record.capability_context
        others = enumerate(context.secondary or ())
        snapshots = [("primary", context.primary), *((f"secondary[{n}]", one) for n, one in others)]
        for member, snapshot in snapshots:
            path = f"$.capability_context.{member}"
            found = catalog.get(snapshot.id)
            if not snapshot.id or (member == "primary" and found is None and _is_unknown(record)):
                continue
            if found is None:
                return Fault(f"catalog {name} has no capability {snapshot.id!r}", f"{path}.id")
            said = {"category": snapshot.category, "layer": snapshot.layer}
            for (what, stated), expected in zip(said.items(), found, strict=True):
                if stated and stated != expected:
                    reason = f"is {stated!r}, but catalog {name} says {expected!r} of {snapshot.id}"
                    return Fault(reason, f"{path}.{what}")
        for index, other in enumerate(record.probe.secondary_capability_ids or ()):
            if other not in catalog:
                path = f"$.probe.secondary_capability_ids[{index}]"
                return Fault(f"catalog {name} has no capability {other!r}", path)
        return None


def _is_unknown(record: SharedRecord) -> bool:
    """Return whether the harness wrote a record in the place of a probe whose capability no catalog
    knows."""
    primary = record.capability_context.primary
    is_unknown = primary.category == primary.layer == UNKNOWN
    return is_unknown and isinstance(record.payload.raw.get("harness"), dict)


_PLAIN = Descriptor("", CANONICAL, PATTERN_VERSION, ("baseline",), check_canonical, canonical=True)
