"""Tilewright from Python: the program as a private child, and the service's interface.

Nothing is imported before it is used: the command `tilewright` begins here, too.
"""

from __future__ import annotations

# The module typing takes longer to import than all that the command does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .aio import AsyncClient as AsyncClient
    from .aio import AsyncJob as AsyncJob
    from .client import Client as Client
    from .client import Job as Job
    from .engine import Engine as Engine
    from .errors import ConnectionFailed as ConnectionFailed
    from .errors import JobFailed as JobFailed
    from .errors import ProgramEnded as ProgramEnded
    from .errors import ProgramError as ProgramError
    from .errors import RequestError as RequestError
    from .errors import TilewrightError as TilewrightError

__version__ = "0.1.0"

_PLACES = {
    "AsyncClient": "aio",
    "AsyncJob": "aio",
    "Client": "client",
    "Job": "client",
    "Engine": "engine",
    "ConnectionFailed": "errors",
    "JobFailed": "errors",
    "ProgramEnded": "errors",
    "ProgramError": "errors",
    "RequestError": "errors",
    "TilewrightError": "errors",
}

__all__ = [*_PLACES, "__version__"]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{place}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
