"""Connections to a server, of threads and of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Union

import httpx

from . import _wire
from ._wire import MessageT
from .errors import TilewrightError

#: A file with the authority's certificates (PEM), or False to trust any.
Verify = Union[str, "os.PathLike[str]", bool]


def session_options(address: str, token: str | None, verify: Verify, transport: Callable[..., Any]) -> dict[str, Any]:
    """The options of a session, of either kind.

    Raises:
        TilewrightError: it is no address, or no token, or there are no certificates.
    """
    url, socket = _wire.server_of(address)
    # Each job that is waited for holds a connection, of which httpx by itself has a hundred at most.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    options = {
        "base_url": url,
        "timeout": httpx.Timeout(_wire.PATIENCE, connect=_wire.CONNECT),
        "headers": _wire.headers_of(token),
        "trust_env": False,
    }
    if socket is not None:
        return {**options, "transport": transport(uds=socket, limits=limits)}
    return {**options, "verify": _wire.trust_of(verify), "limits": limits}


#: Sessions that forks have from other processes, which must not be closed: an end would be told to their servers.
_left: list[Any] = []


class _Uses:
    """The threads that use sessions. A session is closed when the last one has left it: if a socket were closed before, its
    descriptor could become another connection's while a thread is about to read from it."""

    def __init__(self) -> None:
        self._counts: Counter[httpx.Client] = Counter()
        self._ended: set[httpx.Client] = set()
        self._lock = threading.Lock()

    def begin(self, session: httpx.Client) -> None:
        """A thread begins to use a session."""
        with self._lock:
            self._counts[session] += 1

    def end(self, session: httpx.Client) -> None:
        """It has left it."""
        with self._lock:
            self._counts[session] -= 1
            if self._counts[session]:
                return
            del self._counts[session]
            if session not in self._ended:
                return
            self._ended.remove(session)
        session.close()

    def close(self, session: httpx.Client) -> None:
        """Closes a session, now or when nobody uses it any more."""
        with self._lock:
            if session in self._counts:
                self._ended.add(session)
                return
        session.close()


class Connection:
    """A server at an address, for threads.

    Raises:
        TilewrightError: it is no address, or no token.
    """

    def __init__(self, address: str, token: str | None, verify: Verify) -> None:
        _wire.server_of(address)
        _wire.headers_of(token)
        self.address = address
        self.token = token
        self.verify: Verify = verify
        self._http: httpx.Client | None = None
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._uses = _Uses()

    def session(self) -> httpx.Client:
        """The session, which is begun if there is none."""
        self._leave_in_fork()
        with self._lock:
            if self._http is None:
                self._begin_session()
            assert self._http is not None
            return self._http

    def _leave_in_fork(self) -> None:
        """In a fork of the process: the connections are those of the one that made them, and a thread of it may have held
        their locks."""
        if self._process != os.getpid():
            _left.append(self._http)
            self._http, self._lock, self._process, self._uses = None, threading.RLock(), os.getpid(), _Uses()

    def session_at_once(self) -> httpx.Client | None:
        """The session; None if it would have to be waited for."""
        return self.session()

    def _begin_session(self) -> None:
        self._http = httpx.Client(**session_options(self.address, self.token, self.verify, httpx.HTTPTransport))

    def broken(self, error: Exception, session: httpx.Client) -> TilewrightError:
        """The error of a connection of a session that broke."""
        return _wire.broken(self.address, error)

    @contextlib.contextmanager
    def _told(self, session: httpx.Client) -> Generator[None, None, None]:
        """A session is used meanwhile, and what it raises becomes an error of this package."""
        uses = self._uses
        uses.begin(session)
        try:
            yield
        except _wire.FOREIGN as error:
            told = _wire.fault(self.address, error, session) or self.broken(error, session)
            raise told from (None if told is error else error)
        finally:
            uses.end(session)

    def end_session(self) -> None:
        """Closes the connections that are open, those in use when they no longer are."""
        session, self._http = self._http, None
        if session is not None:
            self._uses.close(session)

    def close(self) -> None:
        """Ends the use of the server."""
        self._leave_in_fork()
        self.end_session()

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer to a request.

        Raises:
            RequestError: the server refused.
            ConnectionFailed: the server can't be reached.
        """
        return self._ask(self.session(), method, path, **options)

    def _ask(self, session: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
        with self._told(session):
            return _wire.check(session.request(method, path, **options))

    def read(self, kind: type[MessageT], method: str, path: str, **options: Any) -> MessageT:
        """The message that a request is answered with; raises as `ask`."""
        return _wire.message(self.address, kind, self.ask(method, path, **options).content)

    @contextlib.contextmanager
    def stream(self, path: str, **options: Any) -> Generator[httpx.Response, None, None]:
        """An answer that is read as it arrives; raises as `ask`."""
        session = self.session()
        with self._told(session), session.stream("GET", path, **options) as response:
            if not response.is_success:
                response.read()
            yield _wire.check(response)


class AsyncConnection:
    """A server at an address, or that of another connection, for one event loop.

    Raises:
        TilewrightError: it is no address, or no token.
    """

    def __init__(self, address: str, token: str | None, verify: Verify, of: Connection | None) -> None:
        _wire.server_of(address)
        _wire.headers_of(token)
        self.address = address
        self._token: str | None = token
        self._verify: Verify = verify
        self._of = of
        if of is not None:
            self.address, self._token, self._verify = of.address, of.token, of.verify
        self._of_session: httpx.Client | None = None
        self._http: httpx.AsyncClient | None = None
        self._process = os.getpid()

    async def session(self) -> httpx.AsyncClient:
        """The session, which is begun if there is none."""
        self._leave_in_fork()
        of = self._of
        if of is not None:
            # An engine starts its program, which takes a while, or starts it again.
            self._of_session = of.session_at_once() or await asyncio.to_thread(of.session)
            server = of.address, of.token, of.verify
            if server != (self.address, self._token, self._verify):
                # Another task may come by while the session ends.
                self.address, self._token, self._verify = server
                await self.close()
        if self._http is None:
            options = session_options(self.address, self._token, self._verify, httpx.AsyncHTTPTransport)
            self._http = httpx.AsyncClient(**options)
        return self._http

    def _leave_in_fork(self) -> None:
        """As `Connection._leave_in_fork`."""
        if self._process != os.getpid():
            _left.append(self._http)
            self._http, self._process = None, os.getpid()

    async def _broken(self, error: Exception, of_session: httpx.Client | None) -> TilewrightError:
        if self._of is not None and of_session is not None:
            return await asyncio.to_thread(self._of.broken, error, of_session)
        return _wire.broken(self.address, error)

    @contextlib.asynccontextmanager
    async def _told(self, session: httpx.AsyncClient) -> AsyncGenerator[None, None]:
        """As `Connection._told`."""
        of_session = self._of_session
        try:
            yield
        except _wire.FOREIGN as error:
            told = _wire.fault(self.address, error, session) or await self._broken(error, of_session)
            raise told from (None if told is error else error)

    async def close(self) -> None:
        """Closes the connections."""
        self._leave_in_fork()
        session, self._http = self._http, None
        if session is not None:
            await session.aclose()

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """As `Connection.ask`."""
        session = await self.session()
        async with self._told(session):
            return _wire.check(await session.request(method, path, **options))

    async def read(self, kind: type[MessageT], method: str, path: str, **options: Any) -> MessageT:
        """As `Connection.read`."""
        return _wire.message(self.address, kind, (await self.ask(method, path, **options)).content)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, **options: Any) -> AsyncGenerator[httpx.Response, None]:
        """As `Connection.stream`."""
        session = await self.session()
        async with self._told(session), session.stream("GET", path, **options) as response:
            if not response.is_success:
                await response.aread()
            yield _wire.check(response)
