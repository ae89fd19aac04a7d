"""A worker of a batch: an engine with its model, and the items that Ray gives it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import api
from ..engine import Engine, Model
from ..errors import ConnectionFailed, JobFailed, ProgramEnded, ProgramError, RequestError, TilewrightError, one_line
from .outputs import RECORDS, Place, content_digest, read_file
from .works import WORKS, check_name, digest

#: The name of the model in the engine.
MODEL = "model"

#: How often an item is begun if the engine ends under it.
ATTEMPTS = 3

#: Endings of formats whose names are no endings.
ENDINGS = {"jpeg": "jpg"}


@dataclass(frozen=True)
class Task:
    """What all items of a batch have in common.

    Attributes:
        work: the kind of work, by name.
        out: the folder of the outputs, or its address.
        model: the model, as an engine takes it.
        options: fields of each request.
        engine: further arguments of the engine.
        module: the policy's module, if it is a file.
        threads: threads that a worker on a CPU computes with; None if Ray's own setting is right.
        is_named: True if rows are items with names; False if they are a user's own.
    """

    work: str
    out: str
    model: Model
    options: Mapping[str, Any]
    engine: Mapping[str, Any]
    module: bytes | None = None
    threads: int | None = None
    is_named: bool = True
    #: A digest of what decides how an output looks, so that outputs of another request are not taken for this one's.
    request: str = field(default="")


class Worker:
    """An engine, which starts with the first item."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._work = WORKS[task.work]
        self._out = Place(task.out)
        self._engine: Engine | None = None
        self._module: Path | None = None
        if task.threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(task.threads)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Makes an item's outputs, unless they are there; tells what became of it."""
        begun = time.monotonic()
        name = str(row.get("name") or "")
        state, error, attempts = "failed", "", 0
        try:
            if self._task.is_named:
                fields = json.loads(row["fields"])
            else:
                fields = {key: value for key, value in row.items() if key != "name" and value is not None}
                self._work.check(fields)
                name = name or digest(fields)[:16]
            check_name(name)
            files = {
                file: read_file(fields[file]) if isinstance(fields[file], str) else fields[file]
                for file in self._work.files
                if fields.get(file) is not None
            }
            # Another file under the same name is another item.
            key = digest(self._task.request, fields, {file: content_digest(content) for file, content in files.items()})
            known = self._out.made(name)
            if known is None:
                attempts = self._make(name, fields, files, key)
                state = "made"
            elif known.get("item") == key:
                state = "kept"
            else:
                raise TilewrightError(
                    f"{self._out.shown(name)}: it is there, of another item or with other settings: remove it, name "
                    "the item otherwise, or choose another folder"
                )
        except ProgramEnded as failure:
            error = str(failure)
        except ProgramError as failure:
            # Without an engine no item can be made.
            state, error = "fatal", str(failure)
        except (TilewrightError, TypeError, ValueError, OSError) as failure:
            error = one_line(str(failure)) or type(failure).__name__
        return {
            "name": name,
            "state": state,
            "error": error,
            "attempts": attempts,
            "seconds": time.monotonic() - begun,
        }

    def _make(self, name: str, fields: Mapping[str, Any], files: Mapping[str, Any], key: str) -> int:
        request = self._work.request(fields, {**self._task.options, "model": MODEL})
        for attempt in range(1, ATTEMPTS + 1):
            engine = self._running()
            try:
                # Asked for again, it is the same job, which may be done by then.
                job = engine.submit(request, files, key=key).wait()
                self._keep(name, key, job, attempt)
                return attempt
            except JobFailed:
                raise
            except (ProgramEnded, ConnectionFailed):
                if attempt == ATTEMPTS:
                    raise
                self._end()
            except RequestError as refused:
                # A full queue, or an engine that is about to end.
                if refused.status not in (429, 503) or attempt == ATTEMPTS:
                    raise
                time.sleep(min(refused.retry_after or 1.0, 5.0))
        raise AssertionError("unreachable")

    def _keep(self, name: str, key: str, job: Any, attempt: int) -> None:
        """Writes the outputs, and at last their record, which says that they are whole."""
        state: api.Job = job.state
        ending = ENDINGS.get(state.format, state.format)
        outputs: list[dict[str, Any]] = []
        for result in state.results:
            # As the program names the pictures of a batch.
            file = f"{name}.{ending}" if len(state.results) == 1 else f"{name}_{result.sample + 1:0{len(str(len(state.results)))}}.{ending}"
            self._out.make_folder(file)
            if self._out.is_local:
                job.save(self._out.path(file), result.sample)
            else:
                self._out.write(file, job.result(result.sample))
            outputs.append({"file": file, "bytes": result.bytes})
        record = {
            "item": key,
            "outputs": outputs,
            "attempts": attempt,
            "request": None if state.request is None else json.loads(state.request.to_json()),
            "record": job.decision(),
        }
        self._out.write(f"{RECORDS}/{name}.json", json.dumps(record, ensure_ascii=False).encode())

    def _running(self) -> Engine:
        if self._engine is None:
            given = dict(self._task.engine)
            if self._task.module is not None:
                if self._module is None:
                    descriptor, path = tempfile.mkstemp(".wasm", "tilewright-policy-")
                    with os.fdopen(descriptor, "wb") as file:
                        file.write(self._task.module)
                    self._module = Path(path)
                given["policy"] = self._module
            self._engine = Engine({MODEL: self._task.model}, **given)
        return self._engine

    def _end(self) -> None:
        """Ends the engine: the next one knows nothing of the job that the last one may have died of."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            with contextlib.suppress(TilewrightError, OSError):
                engine.close()

    def __del__(self) -> None:
        self._end()
        if self._module is not None:
            self._module.unlink(missing_ok=True)
