"""What `stream verify` holds an archive or a run to: one table of rules by class.

The events of a run are held to the rules of `stream check` as well; those stand here with
`contract.check.` before them.
"""

from __future__ import annotations

RULES = {
    "integrity.gzip": "The gzip data is whole, and its checksum and length are right.",
    "integrity.header": "Every header of an entry can be read.",
    "integrity.truncated": "The archive goes on to its end.",
    "integrity.digest": "Every file has the digest that the manifest lists.",
    "integrity.length": "Every file has the length that the manifest lists.",
    "integrity.missing": "Every file that is listed is there, and the contract's own files are.",
    "integrity.extra": "Every file that is there is listed.",
    "integrity.duplicate": "No file is there twice.",
    "integrity.order": "The manifest comes first, then the files in their order.",
    "integrity.chain": "Every link of the chain is what its layer begins with.",
    "integrity.unlinked": "The chain reaches to the end of every layer.",
    "integrity.torn": "The last line of a layer is whole.",
    "integrity.incomplete": "The run was recorded to its end.",
    "contract.manifest": "The manifest is one, in the one form that it has.",
    "contract.document": "Every JSON artifact keeps its schema.",
    "contract.line": "Every line of every layer keeps its schema.",
    "contract.duplicate_key": "No key stands twice in an object.",
    "contract.run_id": "Everything is of the same run.",
    "contract.seq": "The lines of a layer are numbered without a gap.",
    "contract.kernel_event": "What is said twice about a kernel event is the same.",
    "contract.detail": "Every detail is of a line of the kernel layer.",
    "contract.marker": "Every marker stands at a place that there is.",
    "contract.runner_event": "A run starts once, and then finishes once.",
    "contract.surface": "The capability surface is what the layers imply.",
    "contract.health": "The health is what the capture implies.",
    "contract.correlation": "The bindings are what the windows imply.",
    "contract.unbound": "A correlation that is called clean has bound something.",
    "contract.companion": "The companion is what the layers imply.",
    "contract.evidence": "The run has kernel evidence.",
    "contract.boundary": "Every boundary object keeps its pattern.",
    "contract.listed": "What the run itself lists is there as it is listed.",
    "limit.archive": "The file is not too large.",
    "limit.decoded": "What it decodes to is not too large.",
    "limit.ratio": "It does not decode to too many times its size.",
    "limit.entries": "There are not too many files.",
    "limit.path": "No name is too long.",
    "limit.lines": "There are not too many lines.",
    "limit.line": "No line is too long.",
    "limit.document": "No JSON artifact is too large.",
    "limit.depth": "Nothing is nested too deeply.",
    "security.gzip_header": "The gzip header is one that is written here: no name, no time.",
    "security.hidden_bytes": "There is no byte that no reader shows.",
    "security.renaming": "No header gives a file another name.",
    "security.header": "No header says anything but a name and a length.",
    "security.name": "Every name is a plain one.",
    "security.absolute": "No name is absolute.",
    "security.traversal": "No name leads out of the folder.",
    "security.conflict": "No name is that of a file and of a folder.",
    "security.link": "There is no link.",
    "security.device": "There is no device.",
    "security.fifo": "There is no fifo.",
    "security.type": "There are only regular files.",
}
#: what leaves the answer a yes
WARNINGS = {"contract.unbound", "contract.evidence", "integrity.unlinked"}
