"""Connections to a server, of threads and of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import httpx

from . import _wire
from ._wire import PATIENCE
from .errors import TilewrightError


def session_options(address: str, token: str | None, verify: str | bool, transport: Callable[..., Any]) -> dict[str, Any]:
    """The options of a session, of either kind.

    Raises:
        TilewrightError: it is no address.
    """
    headers = {"authorization": f"Bearer {token}"} if token else {}
    options: dict[str, Any] = {"timeout": httpx.Timeout(PATIENCE), "headers": headers, "trust_env": False}
    path = address.removeprefix("unix:")
    if path != address:
        return {**options, "base_url": "http://localhost", "transport": transport(uds=path)}
    if not address.startswith(("http://", "https://")):
        raise TilewrightError(f"{address}: expected http://…, https://… or unix:PATH")
    return {**options, "base_url": address, "verify": verify}


class Connection:
    """A server at an address, for threads."""

    def __init__(self, address: str, token: str | None, verify: str | bool) -> None:
        self.address = address
        self.token = token
        self.verify = verify
        self._http: httpx.Client | None = None

    def session(self) -> httpx.Client:
        """The session, which is begun if there is none."""
        if self._http is None:
            self._http = httpx.Client(**session_options(self.address, self.token, self.verify, httpx.HTTPTransport))
        return self._http

    def broken(self, error: httpx.TransportError) -> TilewrightError:
        """The error of a connection that broke."""
        return _wire.broken(self.address, error)

    def end_session(self) -> None:
        """Closes the connections that are open."""
        session, self._http = self._http, None
        if session is not None:
            session.close()

    def close(self) -> None:
        """Ends the use of the server."""
        self.end_session()

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer to a request.

        Raises:
            RequestError: the server refused.
            ConnectionFailed: the server can't be reached.
        """
        session = self.session()
        try:
            return _wire.check(session.request(method, path, **options))
        except httpx.TransportError as error:
            raise self.broken(error) from error

    @contextlib.contextmanager
    def stream(self, path: str, **options: Any) -> Generator[httpx.Response, None, None]:
        """An answer that is read as it arrives; raises as `ask`."""
        session = self.session()
        try:
            with session.stream("GET", path, **options) as response:
                if not response.is_success:
                    response.read()
                yield _wire.check(response)
        except httpx.TransportError as error:
            raise self.broken(error) from error


class AsyncConnection:
    """A server at an address, or that of another connection, for one event loop."""

    def __init__(self, address: str, token: str | None, verify: str | bool, of: Connection | None) -> None:
        self.address = address
        self._token = token
        self._verify = verify
        self._of = of
        self._http: httpx.AsyncClient | None = None

    async def session(self) -> httpx.AsyncClient:
        """The session, which is begun if there is none."""
        of = self._of
        if of is not None:
            # An engine starts its program, which takes a while, or starts it again.
            await asyncio.to_thread(of.session)
            if (of.address, of.token) != (self.address, self._token):
                await self.close()
                self.address, self._token, self._verify = of.address, of.token, of.verify
        if self._http is None:
            options = session_options(self.address, self._token, self._verify, httpx.AsyncHTTPTransport)
            self._http = httpx.AsyncClient(**options)
        return self._http

    async def _broken(self, error: httpx.TransportError) -> TilewrightError:
        if self._of is not None:
            return await asyncio.to_thread(self._of.broken, error)
        return _wire.broken(self.address, error)

    async def close(self) -> None:
        """Closes the connections."""
        session, self._http = self._http, None
        if session is not None:
            await session.aclose()

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """As `Connection.ask`."""
        session = await self.session()
        try:
            return _wire.check(await session.request(method, path, **options))
        except httpx.TransportError as error:
            raise await self._broken(error) from error

    @contextlib.asynccontextmanager
    async def stream(self, path: str, **options: Any) -> AsyncGenerator[httpx.Response, None]:
        """As `Connection.stream`."""
        session = await self.session()
        try:
            async with session.stream("GET", path, **options) as response:
                if not response.is_success:
                    await response.aread()
                yield _wire.check(response)
        except httpx.TransportError as error:
            raise await self._broken(error) from error
