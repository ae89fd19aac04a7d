"""A real ComfyUI without a browser: started for tests in a folder of its own, and spoken to as its page does."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

#: The pack of nodes.
PACK = HERE.parent / "comfyui"

#: Nodes that tests alone have.
TEST_NODES = HERE / "nodes"

#: The folder of ComfyUI's sources.
SOURCE_VARIABLE = "TILEWRIGHT_COMFYUI"

#: Seconds that a start, and a prompt, may take before the test fails.
START = 180.0
PROMPT = 300.0


class PromptFailed(AssertionError):
    """A prompt was refused or failed.

    Attributes:
        messages: the errors, a line each.
    """

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__("; ".join(messages))
        self.messages = list(messages)


class Interrupted(Exception):  # noqa: N818 - it is no error.
    """A prompt was interrupted."""


@dataclass(frozen=True)
class Result:
    """The outcome of a prompt.

    Attributes:
        outputs: of each node that has outputs for the page, by its name in the graph.
        cached: the nodes that did not run again.
        seconds: from the prompt's start to its end, as ComfyUI counts.
    """

    outputs: dict[str, dict[str, Any]]
    cached: tuple[str, ...]
    seconds: float

    def texts(self, node: str) -> list[str]:
        """The texts that a node shows."""
        return list(self.outputs[node].get("text", ()))


def source() -> Path | None:
    """The folder of ComfyUI's sources, if there is one."""
    named = os.environ.get(SOURCE_VARIABLE)
    return Path(named) if named and (Path(named) / "main.py").is_file() else None


class Server:
    """A ComfyUI on the processor, on a free port.

    Args:
        base: an empty folder for its models, nodes, inputs and outputs.
        packs: folders of nodes, by the names that they get there; links are made.
        models: files of models, by their place in the folder `models`, as `vae/sdxl.safetensors`; links are made.
        arguments: more arguments for ComfyUI.
        environment: variables beside this process's.
        threads: threads that PyTorch computes with.
    """

    def __init__(
        self,
        base: Path,
        *,
        packs: Mapping[str, Path] | None = None,
        models: Mapping[str, Path] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        threads: int = 1,
    ) -> None:
        found = source()
        if found is None:
            raise RuntimeError(f"{SOURCE_VARIABLE}: expected the folder of ComfyUI's sources, with main.py in it")
        self.base = base
        for folder in ("custom_nodes", "models", "input", "output", "temp", "user"):
            (base / folder).mkdir(parents=True, exist_ok=True)
        for name, pack in (packs or {}).items():
            (base / "custom_nodes" / name).symlink_to(pack, target_is_directory=True)
        for place, file in (models or {}).items():
            self.add_model(place, file)
        self.port = _free_port()
        self.log_file = base / "server.log"
        self._log = self.log_file.open("wb")
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TILEWRIGHT_COMFYUI_HISTORY": str(base / "history.jsonl"),
            **(environment or {}),
        }
        command = [sys.executable, str(found / "main.py"), "--cpu", "--listen", "127.0.0.1", "--port", str(self.port)]
        command += ["--disable-api-nodes", "--disable-auto-launch", "--database-url", "sqlite:///:memory:"]
        command += ["--base-directory", str(base), *arguments]
        self.process = subprocess.Popen(command, cwd=base, env=variables, stdout=self._log, stderr=self._log)
        try:
            self._wait_for_start()
        except BaseException:
            self.stop()
            raise

    def add_model(self, place: str, file: Path) -> None:
        """Puts a model's file at a place in the folder `models`."""
        path = self.base / "models" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(file)

    # Prompts.

    def run(self, graph: Mapping[str, Any], *, seconds: float = PROMPT) -> Result:
        """Runs a prompt to its end.

        Raises:
            PromptFailed: it was refused, or a node failed.
            Interrupted: it was interrupted.
        """
        return self.wait(self.queue(graph), seconds=seconds)

    def queue(self, graph: Mapping[str, Any]) -> str:
        """Queues a prompt, and gives its id.

        Raises:
            PromptFailed: it was refused.
        """
        try:
            said = self.post("/prompt", {"prompt": graph, "client_id": "tests"})
        except urllib.error.HTTPError as error:
            raise PromptFailed(_refusals(json.loads(error.read()))) from None
        if said.get("node_errors"):
            raise PromptFailed(_refusals(said))
        return str(said["prompt_id"])

    def wait(self, prompt: str, *, seconds: float = PROMPT) -> Result:
        """Waits for a prompt's end; raises as `run` does."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.get(f"/history/{prompt}").get(prompt)
            if found is not None:
                return _result(found)
            self._check_alive()
            time.sleep(0.02)
        raise TimeoutError(f"the prompt has not ended within {seconds:.0f} s")

    def wait_until_running(self, prompt: str, *, seconds: float = PROMPT) -> None:
        """Waits until a prompt runs."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(one[1] == prompt for one in self.get("/queue")["queue_running"]):
                return
            self._check_alive()
            time.sleep(0.01)
        raise TimeoutError(f"the prompt has not begun within {seconds:.0f} s")

    def interrupt(self) -> None:
        """Cancels the running prompt, as the page's button does."""
        self.post("/interrupt", {})

    def free(self) -> None:
        """Has it unload models and forget what nodes gave."""
        self.post("/free", {"unload_models": True, "free_memory": True})

    def records(self, node: str = "") -> list[dict[str, Any]]:
        """The records of the pack's nodes, or of one of them, the latest last."""
        file = self.base / "history.jsonl"
        if not file.exists():
            return []
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [line["record"] for line in lines if not node or line["node"] == node]

    def nodes(self, name: str = "") -> dict[str, Any]:
        """The account that the page gets of all nodes, or of one."""
        return self.get(f"/object_info/{name}".rstrip("/"))

    def output(self, name: str) -> Path:
        """The place of an output."""
        return self.base / "output" / name

    # Memory.

    def memory(self) -> tuple[int, int]:
        """Bytes that the process holds now, and the most that it has held since `forget_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        held, most = (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmRSS", "VmHWM"))
        assert held is not None and most is not None
        return int(held[1]) * 1024, int(most[1]) * 1024

    def forget_peak(self) -> int:
        """Lets the most that the process has held begin anew, and gives what it holds now, in bytes."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.memory()[0]

    # The way to it.

    def get(self, path: str) -> dict[str, Any]:
        """An answer in JSON."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return json.load(answer)

    def text(self, path: str) -> str:
        """An answer in text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return answer.read().decode()

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """An answer in JSON to one."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else {}

    def log(self) -> str:
        """The text that it has logged so far."""
        return self.log_file.read_text(errors="replace")

    def stop(self) -> None:
        """Ends it."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def _wait_for_start(self) -> None:
        end = time.monotonic() + START
        while time.monotonic() < end:
            self._check_alive()
            try:
                self.get("/system_stats")
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.05)
        raise TimeoutError(f"ComfyUI has not started within {START:.0f} s: {self.log()[-3000:]}")

    def _check_alive(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"ComfyUI ended with status {self.process.returncode}: {self.log()[-3000:]}")


def clear(base: Path) -> None:
    """Removes a server's folder; models that it links to stay."""
    shutil.rmtree(base, ignore_errors=True)


def files_in(folder: Path) -> set[str]:
    """All files and links below a folder, by their paths from it."""
    return {
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
    }


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _refusals(said: Mapping[str, Any]) -> list[str]:
    found = [
        f"{error['message']}: {error['details']}"
        for node in (said.get("node_errors") or {}).values()
        for error in node["errors"]
    ]
    error = said.get("error")
    return found or [str(error["message"] if isinstance(error, Mapping) else said)]


def _result(found: Mapping[str, Any]) -> Result:
    messages = {name: content for name, content in found["status"]["messages"]}
    if "execution_error" in messages:
        failed = messages["execution_error"]
        raise PromptFailed([f"{failed['exception_type']}: {failed['exception_message'].strip()}"])
    if "execution_interrupted" in messages:
        raise Interrupted
    cached = tuple(messages.get("execution_cached", {}).get("nodes", ()))
    took = messages["execution_success"]["timestamp"] - messages["execution_start"]["timestamp"]
    return Result(dict(found["outputs"]), cached, took / 1000)
