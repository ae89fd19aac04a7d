"""The native part of the package, for which not every platform has a wheel."""

from __future__ import annotations

from .errors import TilewrightError

try:
    import tilewright._native as native
except ImportError as error:
    raise TilewrightError(
        f"{error}: policies and models need the wheel for this platform, as for Linux with glibc 2.34 or later; Engine "
        "and Client work without it"
    ) from None

__all__ = ["native"]
