"""sandbox_catalog_v1 and boundary_schema_v1: what a probe may claim, and in which form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from stream.records.boundary import Key
from stream.records.control import TITLE

CATALOG = "sandbox_catalog_v1"
DESCRIPTOR = "boundary_schema_v1"

Text = Annotated[str, Meta(min_length=1)]
Title = Annotated[str, Meta(pattern=TITLE)]


class CatalogHead(Struct, forbid_unknown_fields=True):
    """What a catalog is called."""

    key: Key
    title: Title
    description: str = ""
    labels: list[str] = []
    notes: str = ""

    def __post_init__(self) -> None:
        _refuse_repeated(self.labels)


class Layer(Struct, forbid_unknown_fields=True):
    """A layer of policy that capabilities belong to."""

    id: str
    description: str


class Scope(Struct, forbid_unknown_fields=True):
    """What a catalog is about."""

    description: str
    categories: dict[str, str]
    notes: str = ""
    policy_layers: list[Layer] = []
    limitations: str = ""


class Doc(Struct, forbid_unknown_fields=True):
    """A document that capabilities refer to."""

    title: Title
    url: str = ""
    url_hint: str = ""


class Operations(Struct, forbid_unknown_fields=True):
    """What a capability allows and denies."""

    allow: list[str] = []
    deny: list[str] = []


class DocReference(Struct, forbid_unknown_fields=True):
    """Where in a document a capability is described."""

    doc: str
    section: str = ""
    url_hint: str = ""


class Capability(Struct, forbid_unknown_fields=True):
    """One thing that a sandbox may allow or deny."""

    id: str
    category: str
    layer: str
    description: str
    operations: Operations
    status: str = ""
    labels: list[str] = []
    meta_ops: list[str] = []
    agent_controls: list[str] = []
    notes: str = ""
    sources: list[DocReference] = []

    def __post_init__(self) -> None:
        _refuse_repeated(self.labels)


class CatalogDocument(Struct, forbid_unknown_fields=True):
    """A capability catalog as its file has it."""

    schema_version: Literal["sandbox_catalog_v1"]
    catalog: CatalogHead
    scope: Scope
    docs: dict[str, Doc]
    capabilities: Annotated[list[Capability], Meta(min_length=1)]


class DescriptorDocument(Struct, forbid_unknown_fields=True):
    """A boundary descriptor as its file has it."""

    schema_version: Literal["boundary_schema_v1"]
    key: Key
    pattern_version: Text
    title: str = ""
    description: str = ""
    schema_path: Text | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType = UNSET


class Defaults(Struct, forbid_unknown_fields=True):
    """catalogs/defaults.json. The catalog may depend on the platform."""

    catalog: Text | dict[str, Text] | UnsetType = UNSET
    boundary: Text | UnsetType = UNSET


def _refuse_repeated(labels: list[str]) -> None:
    """msgspec turns a ValueError into its own, with the JSON path."""
    if len(set(labels)) < len(labels):
        raise ValueError("expected unique labels")
