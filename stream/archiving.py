"""The composition behind `stream archive`: a run folder, or a stream of records, as one file."""

from __future__ import annotations

from pathlib import Path

from anyio import to_thread

from stream.archive.packing import archive_run
from stream.archive.writing import Written
from stream.records.runner import HEALTH_FILE
from stream.testimony import missing_evidence


async def archive_folder(folder: Path, target: Path, *, force: bool = False) -> Written:
    """Raises StreamError. In a thread that an interrupt leaves behind, and its file is not
    there then."""

    def work() -> Written:
        missing = {} if (folder / HEALTH_FILE).exists() else missing_evidence(folder)
        return archive_run(folder, target, missing=missing, force=force)

    return await to_thread.run_sync(work)
