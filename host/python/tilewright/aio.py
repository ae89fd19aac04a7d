"""The service's interface for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _wire, api
from ._connection import AsyncConnection, Verify
from ._json import expect
from ._tensors import from_safetensors
from ._wire import Source
from .client import Client, OnEvent, named_server
from .errors import TilewrightError, without_password

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack


class AsyncClient:
    """A server, spoken to from one event loop.

    Args:
        address: the server's URL, as for `Client`; or a `Client` or an `Engine`, whose server it speaks to.
        token: the server's token, if it asks for one.
        verify: a file with the authority's certificates (PEM), or False to trust any.

    Raises:
        TilewrightError: it is no address, or no token.
    """

    def __init__(
        self, address: str | Client | None = None, *, token: str | None = None, verify: Verify = True
    ) -> None:
        of = address.connection if isinstance(address, Client) else None
        named = address.address if isinstance(address, Client) else named_server(address)
        #: The connection.
        self.connection = AsyncConnection(named, token, verify, of)

    @property
    def address(self) -> str:
        """The server's address."""
        return self.connection.address

    def __repr__(self) -> str:
        return f"<AsyncClient {without_password(self.address)}>"

    async def close(self) -> None:
        """Closes the connections; an engine's program goes on."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(
        self,
        request: Mapping[str, Any] | api.JobRequest,
        files: Mapping[str, Source | None] | None = None,
        *,
        key: str | None = None,
    ) -> AsyncJob:
        """As `Client.submit`."""
        expect("files", files, Mapping, type(None))
        with _wire.opened(files or {}) as parts:
            state = await self.connection.read(api.Job, "POST", "/v1/jobs", **_wire.form(request, parts, key))
        return AsyncJob(self.connection, state)

    async def generate(
        self,
        prompt: str,
        *,
        model: str,
        negative_prompt: str | None = None,
        image: Source | None = None,
        mask: Source | None = None,
        sample: api.SampleOptions | None = None,
        **options: Unpack[api.JobOptions],
    ) -> AsyncJob:
        """As `Client.generate`."""
        request = _wire.of_prompt(prompt, model, negative_prompt, sample, options)
        return await self.submit(request, {"image": image, "mask": mask})

    async def sample(
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
    ) -> AsyncJob:
        """As `Client.sample`."""
        files = {"conditioning": _wire.needed("conditioning", conditioning), "negative": negative, "latent": latent, "noise": noise, "mask": mask}
        return await self.submit(_wire.of_sample(model, sample, options), files)

    async def decode(self, latent: Source, *, model: str, **options: Unpack[api.JobOptions]) -> AsyncJob:
        """As `Client.decode`."""
        return await self.submit(_wire.given({**options, "model": model}), {"latent": _wire.needed("latent", latent)})

    async def encode(
        self, image: Source, *, model: str, frames: int | None = None, **options: Unpack[api.JobOptions]
    ) -> AsyncJob:
        """As `Client.encode`."""
        return await self.submit(_wire.of_encode(model, frames, options), {"image": _wire.needed("image", image)})

    async def job(self, id: str) -> AsyncJob:
        """As `Client.job`."""
        return AsyncJob(self.connection, await self.connection.read(api.Job, "GET", _wire.path("jobs", id)))

    async def jobs(self, **filter: Unpack[api.JobFilter]) -> AsyncIterator[AsyncJob]:
        """As `Client.jobs`."""
        parameters = _wire.query(filter)
        while True:
            page = await self.connection.read(api.Jobs, "GET", "/v1/jobs", params=parameters)
            for job in page.jobs:
                yield AsyncJob(self.connection, job)
            if page.next is None:
                return
            parameters["before"] = page.next

    async def models(self) -> tuple[api.Model, ...]:
        """As `Client.models`."""
        return (await self.connection.read(api.ModelList, "GET", "/v1/models")).models

    async def devices(self) -> tuple[api.Device, ...]:
        """As `Client.devices`."""
        return (await self.connection.read(api.DeviceList, "GET", "/v1/devices")).devices

    async def decisions(self, **filter: str | int) -> tuple[api.Decision, ...]:
        """As `Client.decisions`."""
        parameters = _wire.query(filter)
        return (await self.connection.read(api.Decisions, "GET", "/v1/decisions", params=parameters)).decisions

    async def is_ready(self) -> bool:
        """As `Client.is_ready`."""
        try:
            return (await self.connection.read(api.Ready, "GET", "/readyz")).ready
        except TilewrightError:
            return False

    async def policies(self) -> tuple[api.Policy, ...]:
        """As `Client.policies`."""
        return (await self.connection.read(api.PolicyList, "GET", "/v1/policies")).policies

    async def policy(self, name: str) -> api.Policy:
        """As `Client.policy`."""
        return await self.connection.read(api.Policy, "GET", _wire.path("policies", name))

    async def upload_policy(self, module: Source) -> api.Module:
        """As `Client.upload_policy`."""
        with _wire.opened_module(module) as request:
            return await self.connection.read(api.Module, "POST", "/v1/modules", **request)

    async def swap_policy(
        self, name: str, module: str | os.PathLike[str] | None = None, *, settings: Mapping[str, Any] | None = None
    ) -> api.Policy:
        """As `Client.swap_policy`."""
        named, is_file = _wire.module_named(module)
        if named is not None and is_file:
            named = (await self.upload_policy(named)).digest
        request = _wire.replacement(named, settings)
        return await self.connection.read(api.Policy, "POST", _wire.path("policies", name, "swap"), **request)

    async def roll_back_policy(self, name: str) -> api.Policy:
        """As `Client.roll_back_policy`."""
        return await self.connection.read(api.Policy, "POST", _wire.path("policies", name, "rollback"))


@contextlib.asynccontextmanager
async def _written(path: str | os.PathLike[str]) -> AsyncGenerator[_wire.Writing, None]:
    """As `_wire.written`. The disk is waited for in a thread."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(_wire.written(path))
        await asyncio.to_thread(stack.pop_all().close)


class AsyncJob:
    """A job, as it was when it was last asked for.

    Attributes:
        state: everything that the server tells of it.
    """

    def __init__(self, connection: AsyncConnection, state: api.Job) -> None:
        self._connection = connection
        self.state = state

    def __repr__(self) -> str:
        return f"<AsyncJob {self.id} {self.state.state}>"

    @property
    def id(self) -> str:
        """The id."""
        return self.state.id

    def _path(self, *further: str) -> str:
        return _wire.path("jobs", self.id, *further)

    async def refresh(self) -> api.Job:
        """As `Job.refresh`."""
        self.state = await self._connection.read(api.Job, "GET", self._path())
        return self.state

    async def events(self) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """As `Job.events`."""
        async with self._connection.stream(self._path("events"), timeout=_wire.FOLLOWING) as response:
            events = _wire.Events(self._connection.address, response)
            async for chunk in response.aiter_bytes():
                for event in events.add(chunk):
                    self.state = events.job or self.state
                    yield event
            events.check_end()

    async def wait(self, on_event: OnEvent | Callable[[str, dict[str, Any]], Awaitable[None]] | None = None) -> AsyncJob:
        """As `Job.wait`; `on_event` may be a coroutine function."""
        if self.state.state not in _wire.ENDS:
            async with contextlib.aclosing(self.events()) as events:
                async for name, data in events:
                    done = on_event(name, data) if on_event is not None else None
                    if done is not None:
                        await done
        _wire.ended(self.state)
        return self

    async def cancel(self) -> api.Job:
        """As `Job.cancel`."""
        self.state = await self._connection.read(api.Job, "DELETE", self._path())
        return self.state

    async def result(self, sample: int = 0) -> bytes:
        """As `Job.result`."""
        await self.wait()
        return (await self._connection.ask("GET", self._path("result"), params={"sample": sample})).content

    async def save(self, path: str | os.PathLike[str], sample: int = 0) -> Path:
        """As `Job.save`."""
        await self.wait()
        async with _written(path) as file:
            async with self._connection.stream(self._path("result"), params={"sample": sample}) as answer:
                async for chunk in answer.aiter_bytes():
                    file.write(chunk)
        return Path(path)

    async def array(self, sample: int = 0) -> NDArray[numpy.float32]:
        """As `Job.array`."""
        await self.wait()
        data = bytearray()
        async with self._connection.stream(self._path("result"), params={"sample": sample}) as answer:
            async for chunk in answer.aiter_bytes():
                data += chunk
        return from_safetensors(data, _wire.RESULTS)

    async def preview(self) -> bytes:
        """As `Job.preview`."""
        return (await self._connection.ask("GET", self._path("preview"))).content

    async def decision(self) -> dict[str, Any]:
        """As `Job.decision`."""
        answer = await self._connection.ask("GET", self._path("decision"))
        return _wire.mapping(self._connection.address, answer.content)
