"""A job of the engine's from its submission to its result: progress and previews in ComfyUI, and the end of it when the
user cancels."""

from __future__ import annotations

import contextlib
import io as streams
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import engine_session
from .engine_address import ADDRESS
from .engine_session import Session

if TYPE_CHECKING:
    from PIL.Image import Image

    import tilewright

Result = TypeVar("Result")

#: Makes the job: registers its model and sends its files.
Submit = Callable[[Session], "tilewright.Job"]

#: Turns the file that a job has made into what a node gives.
Read = Callable[[Path], Result]

#: Seconds between looks at whether the user has cancelled.
LOOK = 0.05

#: Seconds that a cancelled job may take to end; then the engine is ended with it.
PATIENCE = 1.2

#: Seconds between two previews.
PREVIEWS = 0.5

#: The steps of a progress bar that shows a share.
SHARES = 1000

#: The longer side of a preview in pixels.
PREVIEW_SIDE = 512

#: How private folders are called.
PREFIX = "tilewright-comfyui-"


@dataclass(frozen=True, slots=True)
class Made(Generic[Result]):
    """The result of a job, and how it was made.

    Attributes:
        result: the result.
        record: the record of its decision, or of its stages' decisions, as in JSON.
    """

    result: Result
    record: dict[str, Any]


@dataclass(slots=True)
class _Work:
    """The work of the thread that speaks to the engine, as far as the node's thread knows it."""

    told: queue.SimpleQueue[tuple[str, Any]] = field(default_factory=queue.SimpleQueue)
    job: tilewright.Job | None = None
    is_cancelled: bool = False


def run(submit: Submit, read: Read[Result], *, steps: int | None = None, previews: bool = False) -> Made[Result]:
    """Runs a job, and waits for its result.

    The engine is spoken to in a thread of its own, so that a cancel is seen whatever that is at: an upload, the start
    of the program, or the download of gigabytes.

    Args:
        submit: makes the job.
        read: reads the file that it has made, which is removed afterwards.
        steps: the steps of a sample, for the progress bar.
        previews: pictures of the sample so far are shown.

    Raises:
        TilewrightError: the engine is missing, refuses the job, or ended in the middle of it.
        InterruptProcessingException: the user has cancelled; ComfyUI's own.
    """
    of = engine_session.session()
    work = _Work()
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "result.safetensors"
        given = (work, of, submit, path, previews)
        thread = threading.Thread(target=_work, args=given, name="tilewright job", daemon=True)
        thread.start()
        try:
            ended = _follow(work, steps)
        except BaseException:
            # ComfyUI's progress bar raises, too, when the user cancels.
            _cancel(work, of, thread)
            raise
        if isinstance(ended, BaseException):
            raise _told(ended, of) from None
        return Made(read(path), ended)


def _told(error: BaseException, of: Session) -> BaseException:
    """The error of a job; if the server does not answer, with the place that names it."""
    from tilewright.errors import ConnectionFailed

    if of.server is None or not isinstance(error, ConnectionFailed):
        return error
    return ConnectionFailed(
        f"{error}: start the server, or correct its address in {ADDRESS}, ComfyUI's user/tilewright.toml or "
        "~/.config/tilewright/comfyui.toml"
    )


def _follow(work: _Work, steps: int | None) -> dict[str, Any] | BaseException:
    """Shows what the thread tells until the result is there, and returns the record, or the thread's error.

    Raises:
        InterruptProcessingException: the user has cancelled.
    """
    import comfy.utils
    from comfy import model_management

    bar = comfy.utils.ProgressBar(steps or SHARES)
    share = (0, steps or SHARES)
    while True:
        model_management.throw_exception_if_processing_interrupted()
        try:
            kind, value = work.told.get(timeout=LOOK)
        except queue.Empty:
            continue
        if kind == "failed":
            return value
        if kind == "done":
            bar.update_absolute(bar.total, bar.total)
            return value
        if kind == "preview":
            bar.update_absolute(*share, ("JPEG", value, PREVIEW_SIDE))
        elif kind == "step":
            share = value
            bar.update_absolute(*share)
        elif kind == "share" and steps is None:
            share = (int(SHARES * value), SHARES)
            bar.update_absolute(*share)


def _cancel(work: _Work, of: Session, thread: threading.Thread) -> None:
    """Cancels the job. An engine that does not let go of it in time is ended; on a server it is left to end."""
    work.is_cancelled = True
    until = time.monotonic() + PATIENCE
    job = work.job
    if job is not None:
        # This waits for long if nobody answers.
        threading.Thread(target=_ask_cancel, args=(job,), name="tilewright cancel", daemon=True).start()
        thread.join(max(0.0, until - time.monotonic()))
    else:
        # It starts, or a file is on its way: the thread cancels the job as soon as there is one.
        thread.join(PATIENCE / 2)
    if thread.is_alive() and of.engine is not None:
        engine_session.end(of)


def _ask_cancel(job: tilewright.Job) -> None:
    with contextlib.suppress(Exception):
        job.cancel()


def _work(work: _Work, of: Session, submit: Submit, path: Path, previews: bool) -> None:
    """Speaks to the engine: the whole of a job, told to the node's thread."""
    from tilewright.errors import ProgramEnded, TilewrightError

    try:
        work.job = job = submit(of)
        if work.is_cancelled:
            job.cancel()
            return
        shown = 0.0

        def on_event(name: str, data: dict[str, Any]) -> None:
            nonlocal shown
            if name == "step":
                work.told.put(("step", (int(data["step"]), int(data["steps"]))))
                if previews and time.monotonic() - shown > PREVIEWS:
                    picture = _preview(job)
                    if picture is not None:
                        shown = time.monotonic()
                        work.told.put(("preview", picture))
            elif name == "progress":
                work.told.put(("share", float(data["share"])))

        job.wait(on_event)
        job.save(path)
        work.told.put(("done", job.decision()))
    except ProgramEnded as error:
        # The jobs that it had accepted would go on when it is started again, though nobody waits for them.
        engine_session.end(of)
        work.told.put(("failed", TilewrightError(f"{error}: queue the workflow again, which starts the engine anew")))
    except BaseException as error:
        work.told.put(("failed", error))


def _preview(job: tilewright.Job) -> Image | None:
    """The sample so far; None if there is no picture of it yet."""
    from PIL import Image

    from tilewright.errors import RequestError

    try:
        return Image.open(streams.BytesIO(job.preview())).convert("RGB")
    except (RequestError, OSError):
        return None


def wants_previews() -> bool:
    """True if the user has previews turned on in ComfyUI."""
    from comfy.cli_args import LatentPreviewMethod, args

    return args.preview_method != LatentPreviewMethod.NoPreviews
