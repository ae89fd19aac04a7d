"""The engine that the nodes of this process share, or the server that the user has named."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .engine_address import Server, named_server

if TYPE_CHECKING:
    import tilewright
    from tilewright import api

    from .engine_models import Parts
    from .settings import Choice

#: The stages, each with a policy of its own in the engine.
STAGES = ("text", "denoise", "decode", "encode")


@dataclass(slots=True)
class Session:
    """A client, and what it was told so far.

    Attributes:
        client: the engine or the server's client.
        server: the server; None for an engine of this process.
        versions: models that the engine has, with their files' sizes and times.
        seen: what the engine or server says of models.
        policies: the policy of each stage that is in force, and its settings.
    """

    client: tilewright.Client
    server: Server | None
    versions: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, api.Model] = field(default_factory=dict)
    policies: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def engine(self) -> tilewright.Engine | None:
        """The engine, if there is one in this process."""
        from tilewright import Engine

        return self.client if isinstance(self.client, Engine) else None

    def model(self, parts: Parts) -> str:
        """The name that a job gives a model, which the engine gets if it does not have it.

        Raises:
            TilewrightError: the engine can't be started, or the model's files can't be opened.
        """
        engine = self.engine
        if engine is None:
            return parts.remote_name()
        name, version = parts.name(), parts.version()
        if self.versions.get(name) != version:
            engine.add_model(name, parts.table())
            self.seen.pop(name, None)
            self.versions[name] = version
        return name

    def known(self, name: str) -> api.Model:
        """The account that the engine or server gives of a model.

        Raises:
            TilewrightError: it has none of this name.
        """
        from tilewright.errors import TilewrightError

        if name not in self.seen:
            self.seen = {model.name: model for model in self.client.models()}
        if name not in self.seen:
            known = ", ".join(sorted(self.seen)) or "its models, of which it has none"
            raise TilewrightError(f"model on server: the server has no {name!r}: name one of {known}")
        return self.seen[name]

    def take_policy(self, choice: Choice, *stages: str) -> None:
        """Puts a policy in force for the jobs to come; a server has its own routes, and keeps them.

        Raises:
            TilewrightError: there is none of this name, or it has no such setting.
        """
        engine = self.engine
        if engine is None:
            return
        for stage in stages:
            wanted = (choice.policy.strip(), tuple(sorted(choice.settings_of(stage).items())))
            if self.policies.get(stage, ("adaptive", ())) != wanted:
                engine.swap_policy(stage, wanted[0], settings={name: _value(text) for name, text in wanted[1]})
                self.policies[stage] = wanted

    def end(self) -> None:
        """Ends the engine at once, with the jobs in it, and all that it keeps."""
        engine = self.engine
        if engine is not None:
            pid = engine.pid
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        # A start under way holds the client until the program answers.
        threading.Thread(target=self.client.close, name="tilewright end", daemon=True).start()


_lock = threading.Lock()
_session: Session | None = None


def session() -> Session:
    """The session that jobs go through. It is made at the first use, and made anew if the user names another server.

    Raises:
        TilewrightError: a file names a server in a way that makes no sense, or no engine can run here.
    """
    global _session
    server = named_server()
    with _lock:
        if _session is not None and _session.server != server:
            _session.client.close()
            _session = None
        if _session is None:
            _session = Session(_client(server), server)
        return _session


def current() -> Session | None:
    """The session, if there is one."""
    return _session


def close() -> bool:
    """Ends the engine; the next job starts another one. True if there was one."""
    return _drop(None, at_once=False)


def end(of: Session) -> None:
    """Ends a session's engine at once: it does not answer, or has ended by itself and would go on with its jobs."""
    _drop(of, at_once=True)


def _drop(of: Session | None, *, at_once: bool) -> bool:
    global _session
    with _lock:
        dropped = _session if of is None else of
        if dropped is None:
            return False
        if _session is dropped:
            _session = None
    if at_once:
        dropped.end()
    else:
        dropped.client.close()
    return True


def _client(server: Server | None) -> tilewright.Client:
    import tilewright

    if server is not None:
        return tilewright.Client(server.address, token=server.token, verify=server.certificates or True)
    try:
        from tilewright import Engine
    except ImportError:
        raise tilewright.ProgramError(
            "the engine runs on Linux alone: name a server in TILEWRIGHT_SERVER or tilewright.toml"
        ) from None
    routes = [{"name": stage, "stage": stage, "policy": stage} for stage in STAGES]
    policies = {stage: {"source": "adaptive"} for stage in STAGES}
    return Engine(device=device(), config={"policies": policies, "routes": routes})


def device() -> str:
    """The device that the engine takes: the processor where ComfyUI does."""
    from comfy import model_management

    return "cpu" if model_management.is_device_cpu(model_management.get_torch_device()) else "auto"


def _value(text: str) -> bool | int | float | str:
    """A setting's value, of the type that it is written as."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


atexit.register(close)
