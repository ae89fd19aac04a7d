"""What can go wrong, each with one line that says what, where and what to do."""

from __future__ import annotations


def one_line(text: str) -> str:
    """A text as one line that can be printed: what can't is escaped as by `repr`."""
    text = text.strip()
    return text if text.isprintable() else "".join([c if c.isprintable() else repr(c)[1:-1] for c in text])


def without_password(address: str) -> str:
    """An address without the name and password in it. Where a wrong one has its password is unknown, but it is before the
    last @."""
    if address.startswith("unix:"):
        return address
    scheme, separator, rest = address.partition("://")
    named = rest if separator else scheme
    return f"{scheme}{separator}" * bool(separator) + named.rpartition("@")[2]


def last_line(said: str) -> str:
    """The last line of a text that is not empty; empty if there is none."""
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")


def last_error(said: str) -> str:
    """The last line of what a program said, or of its log, that tells of an error; empty if none does."""
    lines = [line for line in said.splitlines() if line.startswith("error:") or " ERROR " in line]
    return lines[-1].removeprefix("error:").strip() if lines else ""


class TilewrightError(Exception):
    """The base of all errors of this package; its text is one line."""

    def __init__(self, line: str) -> None:
        # Names, and what servers and programs say, may hold anything.
        super().__init__(one_line(line))


class ProgramError(TilewrightError):
    """The program is missing, does not start, or is of another version than this package."""


class ProgramEnded(ProgramError):
    """The program ended in the middle of a request. The next request starts it again; jobs that it had accepted go on
    then."""


class RequestError(TilewrightError):
    """The server refused a request.

    Attributes:
        status: the HTTP status, as 422 for a request that makes no sense.
        retry_after: seconds after which to ask again, where the server says so.
    """

    status: int
    retry_after: float | None

    def __init__(self, line: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(line)
        self.status = status
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[RequestError], tuple[str, int, float | None]]:
        return type(self), (str(self), self.status, self.retry_after)


class ConnectionFailed(TilewrightError):
    """The server can't be reached, or the connection broke."""


class JobFailed(TilewrightError):
    """A job ended without a result.

    Attributes:
        job: the job's id.
        state: `failed`, `cancelled` or `expired`.
    """

    job: str
    state: str

    def __init__(self, line: str, job: str, state: str) -> None:
        super().__init__(line)
        self.job = job
        self.state = state

    def __reduce__(self) -> tuple[type[JobFailed], tuple[str, str, str]]:
        return type(self), (str(self), self.job, self.state)


class PolicyError(TilewrightError):
    """A policy is missing, can't be loaded, has no such setting, or failed to learn; or a question to it makes no
    sense. A policy that fails to decide raises nothing: the host's own plan is taken, and the decision says so."""


class ModelError(TilewrightError):
    """A model's file, a device's description, a request for one of them or a plan can't be used."""
