"""The service's interface for threads."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from . import _wire, api
from ._connection import Connection, Verify
from ._json import expect
from ._tensors import from_safetensors
from ._wire import Source
from .errors import TilewrightError, without_password

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack

#: The server that `tilewright serve` starts by default.
DEFAULT = "http://127.0.0.1:7590"

#: Called with the name of each event of a job, and its data.
OnEvent = Callable[[str, dict[str, Any]], None]


def named_server(address: str | None) -> str:
    """The address that is given, or the usual one."""
    expect("address", address, str, type(None))
    return (address or os.environ.get("TILEWRIGHT_SERVER") or DEFAULT).rstrip("/")


class Client:
    """A server, spoken to from any thread.

    Args:
        address: the server's URL; `TILEWRIGHT_SERVER`, or else http://127.0.0.1:7590, if it is left out; `unix:PATH` for
            a socket.
        token: the server's token, if it asks for one.
        verify: a file with the authority's certificates (PEM), or False to trust any.

    Raises:
        TilewrightError: it is no address, or no token.
    """

    def __init__(self, address: str | None = None, *, token: str | None = None, verify: Verify = True) -> None:
        named = named_server(address)
        #: The connection, which an `AsyncClient` of this client shares.
        self.connection = Connection(named, token, verify)

    @property
    def address(self) -> str:
        """The server's address."""
        return self.connection.address

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {without_password(self.address)}>"

    def close(self) -> None:
        """Closes the connections."""
        self.connection.close()

    def __reduce__(self) -> tuple[Any, ...]:
        of = self.connection
        return functools.partial(type(self), of.address, token=of.token, verify=of.verify), ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Jobs.

    def submit(
        self,
        request: Mapping[str, Any] | api.JobRequest,
        files: Mapping[str, Source | None] | None = None,
        *,
        key: str | None = None,
    ) -> Job:
        """Submits a request with the files of its parts: latent, conditioning, negative, noise, mask, image. Files that
        are named by their paths are streamed. The job outlives the server from then on.

        Args:
            request: the request.
            files: the files, by their parts' names.
            key: a text of your own for this job: a second request with the same one is answered with the job of the
                first, so that it can be sent again if nobody knows whether it arrived.

        Raises:
            RequestError: the request is refused.
            ConnectionFailed: the server can't be reached.
        """
        expect("files", files, Mapping, type(None))
        with _wire.opened(files or {}) as parts:
            form = _wire.form(request, parts, key)
            return Job(self.connection, self.connection.read(api.Job, "POST", "/v1/jobs", **form))

    def generate(
        self,
        prompt: str,
        *,
        model: str,
        negative_prompt: str | None = None,
        image: Source | None = None,
        mask: Source | None = None,
        sample: api.SampleOptions | None = None,
        **options: Unpack[api.JobOptions],
    ) -> Job:
        """Makes a picture or clip of a prompt.

        Args:
            prompt: the prompt, with weights as ComfyUI has them.
            model: the model's name in the server's configuration.
            negative_prompt: the prompt to lead away from; it counts if `cfg` of the sample is not 1.
            image: a picture to begin with, as a file; `denoise` of the sample says how much of it is made again. It gives
                the sample its size: leave out width and height.
            mask: a picture, white where the other is made again, or an array [1, 1, h, w] of the latent's size, 1 there.
            sample: width and height in pixels, frames, seed, steps, sampler and the like; the model's own where nothing is
                given.
            options: fields of the request, as `format` or `device`.
        """
        request = _wire.of_prompt(prompt, model, negative_prompt, sample, options)
        return self.submit(request, {"image": image, "mask": mask})

    def sample(
        self,
        conditioning: Source,
        *,
        model: str,
        negative: Source | None = None,
        latent: Source | None = None,
        noise: Source | None = None,
        mask: Source | None = None,
        sample: api.SampleOptions | None = None,
        **options: Unpack[api.JobOptions],
    ) -> Job:
        """Makes a latent of conditioning, as `tilewright sample` does.

        Args:
            conditioning: a .safetensors with `prompt_embeds` [N, T, D].
            model: the model's name in the server's configuration.
            negative: the conditioning to lead away from, with `cfg` in `sample`.
            latent: the latent to begin from, [N, C, h, w] or [N, C, T, h, w] in the VAE's own space.
            noise: noise in place of the seed's, of the latent's shape.
            mask: 1 where the latent is made again, [1, 1, (T,) h, w], or a picture.
            sample: width and height in pixels, frames, seed, steps, sampler and the like.
            options: fields of the request, as `format` or `device`.
        """
        files = {"conditioning": _wire.needed("conditioning", conditioning), "negative": negative, "latent": latent, "noise": noise, "mask": mask}
        return self.submit(_wire.of_sample(model, sample, options), files)

    def decode(self, latent: Source, *, model: str, **options: Unpack[api.JobOptions]) -> Job:
        """Decodes a latent to pictures [N, 3, H, W] or clips [N, 3, T, H, W].

        Args:
            latent: a .latent of ComfyUI's or a .safetensors, or an array [N, C, h, w] or [N, C, T, h, w] in the VAE's own
                space.
            model: the model's name in the server's configuration.
            options: fields of the request, as `format`, `scaled` or `device`.
        """
        return self.submit(_wire.given({**options, "model": model}), {"latent": _wire.needed("latent", latent)})

    def encode(
        self, image: Source, *, model: str, frames: int | None = None, **options: Unpack[api.JobOptions]
    ) -> Job:
        """Encodes pictures or, with a video VAE, a clip to a latent [N, C, h, w] or [1, C, T, h, w] in the VAE's own space.

        Args:
            image: a picture, a clip, or an array [N, 3, H, W] or [1, 3, T, H, W] in −1…1.
            model: the model's name in the server's configuration.
            frames: the most frames of a clip that are taken.
            options: fields of the request, as `format`, `scaled` or `device`.
        """
        return self.submit(_wire.of_encode(model, frames, options), {"image": _wire.needed("image", image)})

    def job(self, id: str) -> Job:
        """A job by its id.

        Raises:
            RequestError: there is none (404).
        """
        return Job(self.connection, self.connection.read(api.Job, "GET", _wire.path("jobs", id)))

    def jobs(self, **filter: Unpack[api.JobFilter]) -> Iterator[Job]:
        """The jobs that a filter lets through, newest first; `limit` is that of a page, of which all are read."""
        parameters = _wire.query(filter)
        while True:
            page = self.connection.read(api.Jobs, "GET", "/v1/jobs", params=parameters)
            yield from (Job(self.connection, job) for job in page.jobs)
            if page.next is None:
                return
            parameters["before"] = page.next

    # What the server has.

    def models(self) -> tuple[api.Model, ...]:
        """The configured models, with what each does."""
        return self.connection.read(api.ModelList, "GET", "/v1/models").models

    def devices(self) -> tuple[api.Device, ...]:
        """The configured devices, with their memory."""
        return self.connection.read(api.DeviceList, "GET", "/v1/devices").devices

    def decisions(self, **filter: str | int) -> tuple[api.Decision, ...]:
        """Records of decisions, newest first: at most `limit`, by a `policy` or on a `route`, older than that of the job
        `before`."""
        return self.connection.read(api.Decisions, "GET", "/v1/decisions", params=_wire.query(filter)).decisions

    def is_ready(self) -> bool:
        """True if the server answers and takes jobs."""
        try:
            return self.connection.read(api.Ready, "GET", "/readyz").ready
        except TilewrightError:
            return False

    # Policies.

    def policies(self) -> tuple[api.Policy, ...]:
        """The policies in service with their revisions."""
        return self.connection.read(api.PolicyList, "GET", "/v1/policies").policies

    def policy(self, name: str) -> api.Policy:
        """A policy by its name in the configuration."""
        return self.connection.read(api.Policy, "GET", _wire.path("policies", name))

    def upload_policy(self, module: Source) -> api.Module:
        """Stores a module, which has to pass the gate.

        Args:
            module: a .wasm file.
        """
        with _wire.opened_module(module) as request:
            return self.connection.read(api.Module, "POST", "/v1/modules", **request)

    def swap_policy(
        self, name: str, module: str | os.PathLike[str] | None = None, *, settings: Mapping[str, Any] | None = None
    ) -> api.Policy:
        """Puts another revision of a policy in force.

        Args:
            name: the policy's name in the configuration.
            module: a shipped policy's name, `sha256:…` of a stored module, `oci://…`, or the path of a .wasm file, which is
                uploaded; what the configuration says if it is left out.
            settings: the module's settings, its defaults where one is not given. Without any, those in force stay if the
                module has the same name.
        """
        named, is_file = _wire.module_named(module)
        if named is not None and is_file:
            named = self.upload_policy(named).digest
        request = _wire.replacement(named, settings)
        return self.connection.read(api.Policy, "POST", _wire.path("policies", name, "swap"), **request)

    def roll_back_policy(self, name: str) -> api.Policy:
        """Puts the revision before in force again."""
        return self.connection.read(api.Policy, "POST", _wire.path("policies", name, "rollback"))


class Job:
    """A job, as it was when it was last asked for.

    Attributes:
        state: everything that the server tells of it.
    """

    def __init__(self, connection: Connection, state: api.Job) -> None:
        self._connection = connection
        self.state = state

    def __reduce__(self) -> NoReturn:
        raise TypeError("a job stays with its client: send its id")

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.state.state}>"

    @property
    def id(self) -> str:
        """The id."""
        return self.state.id

    def _path(self, *further: str) -> str:
        return _wire.path("jobs", self.id, *further)

    def refresh(self) -> api.Job:
        """Asks for the job's state."""
        self.state = self._connection.read(api.Job, "GET", self._path())
        return self.state

    def events(self) -> Generator[tuple[str, dict[str, Any]], None, None]:
        """The job's events until its end: `job`, `plan`, `progress`, `step`, `failed`, `end`, each with its data; shares are
        from 0 to 1, times in milliseconds.

        Raises:
            ConnectionFailed: the connection broke, or the server ended; the job goes on.
        """
        with self._connection.stream(self._path("events"), timeout=_wire.FOLLOWING) as response:
            events = _wire.Events(self._connection.address, response)
            for chunk in response.iter_bytes():
                for event in events.add(chunk):
                    self.state = events.job or self.state
                    yield event
            events.check_end()

    def wait(self, on_event: OnEvent | None = None) -> Job:
        """Waits until the job has ended well.

        Args:
            on_event: called with each event's name and data.

        Raises:
            JobFailed: the job has no result.
            ConnectionFailed: the connection broke, or the server ended; the job goes on.
        """
        if self.state.state not in _wire.ENDS:
            with contextlib.closing(self.events()) as events:
                for name, data in events:
                    if on_event is not None:
                        on_event(name, data)
        _wire.ended(self.state)
        return self

    def cancel(self) -> api.Job:
        """Cancels the job, at once or at its next operation; a job that has ended stays as it is."""
        self.state = self._connection.read(api.Job, "DELETE", self._path())
        return self.state

    def result(self, sample: int = 0) -> bytes:
        """A file that the job has made, after it has ended: all of it, in memory. `save` is for large ones.

        Args:
            sample: the place in the batch, from 0, of pictures and clips; a safetensors file has the whole batch.

        Raises:
            JobFailed: the job has no result.
        """
        self.wait()
        return self._connection.ask("GET", self._path("result"), params={"sample": sample}).content

    def save(self, path: str | os.PathLike[str], sample: int = 0) -> Path:
        """Writes a file that the job has made, as it arrives: no half of it ever has the name.

        Args:
            path: the file to write.
            sample: the place in the batch, as for `result`.

        Raises:
            JobFailed: the job has no result.
        """
        self.wait()
        with _wire.written(path) as file, self._connection.stream(self._path("result"), params={"sample": sample}) as answer:
            for chunk in answer.iter_bytes():
                file.write(chunk)
        return Path(path)

    def array(self, sample: int = 0) -> NDArray[numpy.float32]:
        """The values of a result in safetensors or of a latent, in f32: pictures [N, 3, H, W] or clips [N, 3, T, H, W], where
        −1 is black and 1 white and values beyond are as the VAE gives them, or latents [N, C, h, w] or [N, C, T, h, w].

        Args:
            sample: the place in the batch, as for `result`.

        Raises:
            JobFailed: the job has no result.
            TilewrightError: the result is of another format.
            ModuleNotFoundError: NumPy is not installed.
        """
        self.wait()
        data = bytearray()
        with self._connection.stream(self._path("result"), params={"sample": sample}) as answer:
            for chunk in answer.iter_bytes():
                data += chunk
        return from_safetensors(data, _wire.RESULTS)

    def preview(self) -> bytes:
        """A PNG of the sample after its last step, while it runs, if `preview` was asked for in `sample`."""
        return self._connection.ask("GET", self._path("preview")).content

    def decision(self) -> dict[str, Any]:
        """The record of the decision; of a prompt `stages` has one for each stage."""
        answer = self._connection.ask("GET", self._path("decision"))
        return _wire.mapping(self._connection.address, answer.content)
