"""The service's interface for asyncio."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from . import _wire, api
from ._connection import AsyncConnection
from ._tensors import from_safetensors
from ._wire import PATIENCE, Source
from .client import DEFAULT, Client, OnEvent

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
    """

    def __init__(
        self, address: str | Client | None = None, *, token: str | None = None, verify: str | bool = True
    ) -> None:
        of = address.connection if isinstance(address, Client) else None
        named = address if isinstance(address, str) else None
        named = (named or os.environ.get("TILEWRIGHT_SERVER") or DEFAULT).rstrip("/")
        self._connection = AsyncConnection(named, token, verify, of)

    async def close(self) -> None:
        """Closes the connections; an engine's program goes on."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def submit(
        self, request: Mapping[str, Any] | api.JobRequest, files: Mapping[str, Source | None] | None = None
    ) -> AsyncJob:
        """As `Client.submit`."""
        body = request.to_dict() if isinstance(request, api.JobRequest) else dict(request)
        with _wire.opened(files or {}) as parts:
            answer = await self._connection.ask("POST", "/v1/jobs", **_wire.form(body, parts))
        return AsyncJob(self._connection, api.Job.from_json(answer.content))

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
        files = {"conditioning": conditioning, "negative": negative, "latent": latent, "noise": noise, "mask": mask}
        return await self.submit(_wire.of_sample(model, sample, options), files)

    async def decode(self, latent: Source, *, model: str, **options: Unpack[api.JobOptions]) -> AsyncJob:
        """As `Client.decode`."""
        return await self.submit(_wire.given({**options, "model": model}), {"latent": latent})

    async def encode(
        self, image: Source, *, model: str, frames: int | None = None, **options: Unpack[api.JobOptions]
    ) -> AsyncJob:
        """As `Client.encode`."""
        return await self.submit(_wire.of_encode(model, frames, options), {"image": image})

    async def job(self, id: str) -> AsyncJob:
        """As `Client.job`."""
        answer = await self._connection.ask("GET", f"/v1/jobs/{id}")
        return AsyncJob(self._connection, api.Job.from_json(answer.content))

    async def models(self) -> tuple[api.Model, ...]:
        """As `Client.models`."""
        return api.ModelList.from_json((await self._connection.ask("GET", "/v1/models")).content).models

    async def policies(self) -> tuple[api.Policy, ...]:
        """As `Client.policies`."""
        return api.PolicyList.from_json((await self._connection.ask("GET", "/v1/policies")).content).policies

    async def policy(self, name: str) -> api.Policy:
        """As `Client.policy`."""
        return api.Policy.from_json((await self._connection.ask("GET", f"/v1/policies/{name}")).content)

    async def upload_policy(self, module: Source) -> api.Module:
        """As `Client.upload_policy`."""
        with _wire.opened({"module": module}) as parts:
            answer = await self._connection.ask("POST", "/v1/modules", **_wire.module(parts))
        return api.Module.from_json(answer.content)

    async def swap_policy(
        self, name: str, module: str | None = None, *, settings: Mapping[str, Any] | None = None
    ) -> api.Policy:
        """As `Client.swap_policy`."""
        if module is not None and module.endswith(".wasm"):
            module = (await self.upload_policy(module)).digest
        answer = await self._connection.ask("POST", f"/v1/policies/{name}/swap", json=_wire.replacement(module, settings))
        return api.Policy.from_json(answer.content)

    async def roll_back_policy(self, name: str) -> api.Policy:
        """As `Client.roll_back_policy`."""
        return api.Policy.from_json((await self._connection.ask("POST", f"/v1/policies/{name}/rollback")).content)


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

    @property
    def _path(self) -> str:
        return f"/v1/jobs/{self.id}"

    async def refresh(self) -> api.Job:
        """As `Job.refresh`."""
        self.state = api.Job.from_json((await self._connection.ask("GET", self._path)).content)
        return self.state

    async def events(self) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """As `Job.events`."""
        parser = _wire.Events()
        timeout = httpx.Timeout(PATIENCE, read=None)
        async with self._connection.stream(f"{self._path}/events", timeout=timeout) as response:
            async for line in response.aiter_lines():
                for name, data in parser.add(line):
                    if name in ("job", "end"):
                        self.state = api.Job.from_json(data)
                    yield name, data

    async def wait(self, on_event: OnEvent | Callable[[str, dict[str, Any]], Awaitable[None]] | None = None) -> AsyncJob:
        """As `Job.wait`; `on_event` may be a coroutine function."""
        if self.state.state not in _wire.ENDS:
            async with contextlib.aclosing(self.events()) as events:
                async for name, data in events:
                    done = on_event(name, data) if on_event is not None else None
                    if done is not None:
                        await done
        if self.state.state not in _wire.ENDS:
            await self.refresh()
        if self.state.state not in _wire.ENDS:
            raise _wire.left(self._connection.address)
        _wire.ended(self.state)
        return self

    async def cancel(self) -> api.Job:
        """As `Job.cancel`."""
        self.state = api.Job.from_json((await self._connection.ask("DELETE", self._path)).content)
        return self.state

    async def result(self, sample: int = 0) -> bytes:
        """As `Job.result`."""
        await self.wait()
        return (await self._connection.ask("GET", f"{self._path}/result", params={"sample": sample})).content

    async def save(self, path: str | os.PathLike[str], sample: int = 0) -> Path:
        """As `Job.save`."""
        await self.wait()
        with _wire.written(path) as file:
            async with self._connection.stream(f"{self._path}/result", params={"sample": sample}) as answer:
                async for chunk in answer.aiter_bytes():
                    file.write(chunk)
        return Path(path)

    async def array(self, sample: int = 0) -> NDArray[numpy.float32]:
        """As `Job.array`."""
        await self.wait()
        data = bytearray()
        async with self._connection.stream(f"{self._path}/result", params={"sample": sample}) as answer:
            async for chunk in answer.aiter_bytes():
                data += chunk
        return from_safetensors(data, _wire.RESULTS)

    async def preview(self) -> bytes:
        """As `Job.preview`."""
        return (await self._connection.ask("GET", f"{self._path}/preview")).content

    async def decision(self) -> dict[str, Any]:
        """As `Job.decision`."""
        found: dict[str, Any] = (await self._connection.ask("GET", f"{self._path}/decision")).json()
        return found
