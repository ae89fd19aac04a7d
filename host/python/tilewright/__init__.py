"""Tilewright from Python: policies and prices in this process, the program as a private child, and the service's
interface.

Nothing is imported before it is used: the command `tilewright` begins here, too.
"""

from __future__ import annotations

import sys

# Nothing above this, and no syntax in this file, is newer than Python 3.7.
if sys.version_info < (3, 10):
    _old = "tilewright needs Python 3.10 or later, and this is %d.%d: install it in a newer one" % sys.version_info[:2]
    # What runs is the command's own script: its errors are a line and 2.
    if sys.argv[0].rpartition("/")[2] == "tilewright":
        sys.stderr.write(f"error: {_old}\n")
        sys.exit(2)
    # With a name, `python -m tilewright` shows no traceback.
    raise ImportError(_old, name=__name__)

# The module typing takes longer to import than all that the command does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .aio import AsyncClient, AsyncJob
    from .client import Client, Job
    from .engine import Engine
    from .errors import (
        ConnectionFailed,
        JobFailed,
        ModelError,
        PolicyError,
        ProgramEnded,
        ProgramError,
        RequestError,
        TilewrightError,
    )
    from .model import Device, Model, Quote
    from .policy import Decision, Policy

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Client",
    "ConnectionFailed",
    "Decision",
    "Device",
    "Engine",
    "Job",
    "JobFailed",
    "Model",
    "ModelError",
    "Policy",
    "PolicyError",
    "ProgramEnded",
    "ProgramError",
    "Quote",
    "RequestError",
    "TilewrightError",
]

__version__ = "0.1.0"

_PLACES = {
    "AsyncClient": "aio",
    "AsyncJob": "aio",
    "Client": "client",
    "Job": "client",
    "Engine": "engine",
    "ConnectionFailed": "errors",
    "JobFailed": "errors",
    "ModelError": "errors",
    "PolicyError": "errors",
    "ProgramEnded": "errors",
    "ProgramError": "errors",
    "RequestError": "errors",
    "TilewrightError": "errors",
    "Device": "model",
    "Model": "model",
    "Quote": "model",
    "Decision": "policy",
    "Policy": "policy",
}


#: The modules that have more than these.
_MODULES = ("api", "errors", "records")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{place}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
