"""Capability catalogs: loading them, and which one is in force."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct

from stream.documents import BUNDLE, convert, is_file, read_document
from stream.errors import InputError, naming_variable
from stream.records.boundary import CapabilitySnapshot
from stream.records.catalog import Capability, CatalogDocument, Defaults

#: where no defaults.json says otherwise
BUILT_IN = {
    "linux": "catalogs/linux_agent_v1.json",
    "darwin": "catalogs/macos_codex_v1.json",
    "boundary": "catalogs/cfbo-v1.json",
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
        """The preferred one."""
        return self.known[0]

    def knowing(self, capability_id: str) -> Catalog | None:
        """Find the first catalog that has a capability."""
        return next((c for c in self.known if capability_id in c.capabilities), None)

    def for_capability(self, capability_id: str | None) -> Catalog:
        """What a probe that declares it is interpreted with."""
        return self.knowing(capability_id or "") or self.first

    def ids(self) -> list[str]:
        """List the ids of all capabilities."""
        return sorted({name for catalog in self.known for name in catalog.capabilities})


def load_catalog(path: Path) -> Catalog:
    """Read a catalog from a file. Raises InputError."""
    return make_catalog(read_document(path), path)


def make_catalog(value: Any, path: Path) -> Catalog:
    """Raises InputError naming the offender."""
    document = convert(value, CatalogDocument, path)
    fault = next(iter(faults(document)), None)
    if fault:
        raise InputError(f"{path}: {fault}")
    by_id = {capability.id: capability for capability in document.capabilities}
    return Catalog(document.catalog.key, path, by_id)


def faults(document: CatalogDocument) -> Iterable[str]:
    """What a schema cannot say: ids that stand twice, names that nothing declares."""
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
    """Command line, CATALOG_PATH, defaults.json of the probe tree, the bundled one, built-in."""
    named = flag or os.environ.get("CATALOG_PATH")
    if named:
        with naming_variable("CATALOG_PATH", not flag):
            return Catalogs((load_catalog(Path(named).absolute()),), named=True)
    first = load_catalog(default_path("catalog", tree))
    bundled = [BUNDLE / path for name, path in BUILT_IN.items() if name != "boundary"]
    others = [load_catalog(path) for path in bundled if path.resolve() != first.path.resolve()]
    # A record names its catalog by the key alone: one key, one catalog.
    return Catalogs((first, *(c for c in others if c.key != first.key)), named=False)


def known_catalogs(flag: str | None = None) -> tuple[Catalog, ...]:
    """The catalogs in force, and the bundled ones: records of other days name those."""
    chosen = find_catalogs(flag)
    if not chosen.named:
        return chosen.known
    bundled = [load_catalog(BUNDLE / path) for name, path in BUILT_IN.items() if name != "boundary"]
    return (*chosen.known, *(c for c in bundled if c.key != chosen.first.key))


def make_defaults(value: Any, path: Path) -> Defaults:
    """Read which catalog and descriptor a probe tree prefers. Raises InputError."""
    return convert(value, Defaults, path)


def default_path(which: str, tree: Path | None) -> Path:
    """What the first defaults.json that knows it says, relative to the folder above it."""
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
