"""A collector for traces over OTLP/HTTP that holds its callers to the letter of the protocol.

    python collector.py --out SPANS [--listen 127.0.0.1:0]

Says "listening on http://ADDRESS" on a line of its own; what is sent to ADDRESS/v1/traces, packed or not, is decoded by the protocol's
own definitions. Each span becomes a line of JSON in SPANS, written before it is answered for: name, trace_id, span_id,
parent_id, kind, start_ns, end_ns, status, attributes, events, links, scope, resource. What the protocol or its conventions don't allow is
answered with 400 and told on standard error. Ends by SIGTERM or SIGINT: with 0, or with 1 where there was such a fault, where a span's
parent never came, or where nothing came at all. Needs the versions in requirements.txt.
"""

import argparse
import gzip
import json
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

PROTOBUF = "application/x-protobuf"
LARGEST = 16 << 20  # bytes of a request as it is sent
SKEW_NS = 24 * 3600 * 10**9  # spans are of today
REMOTE, IS_REMOTE_KNOWN = 0x200, 0x100  # flags of a span: whether its parent is elsewhere, and whether that is said


class Fault(Exception):
    """What a request has wrong."""


def unknown_fields(message, path):
    """Where a message has fields that the definitions don't, which protobuf keeps and says nothing of."""
    if len(UnknownFieldSet(message)):
        yield path
    for field, value in message.ListFields():
        if field.message_type:
            for one in value if field.is_repeated else [value]:
                yield from unknown_fields(one, f"{path}.{field.name}")


def plain(value):
    """An attribute's value as Python has it."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    if kind == "kvlist_value":
        return attributes(value.kvlist_value.values, "a list of pairs")
    return value.bytes_value.hex() if kind == "bytes_value" else getattr(value, kind)


def attributes(pairs, where):
    names = [pair.key for pair in pairs]
    if "" in names or len(set(names)) < len(names):
        raise Fault(f"{where}: an attribute has no name, or two have one: {names}")
    return {pair.key: plain(pair.value) for pair in pairs}


def identity(value, length, what):
    if len(value) != length or not any(value):
        raise Fault(f"{what} is {value.hex() or 'empty'}: {length} bytes are needed, not all of them 0")
    return value.hex()


def read(span, scope, resource):
    """A span's line; fails where it is not as it should be."""
    where = f"span {span.name!r}"
    now = time.time_ns()
    if not span.name:
        raise Fault("a span has no name")
    if not 0 < span.start_time_unix_nano <= span.end_time_unix_nano:
        raise Fault(f"{where} goes from {span.start_time_unix_nano} to {span.end_time_unix_nano}")
    if abs(now - span.start_time_unix_nano) > SKEW_NS:
        raise Fault(f"{where} began at {span.start_time_unix_nano}, and it is {now}")
    if span.kind not in Span.SpanKind.values() or span.kind == Span.SPAN_KIND_UNSPECIFIED:
        raise Fault(f"{where} is of the kind {span.kind}")
    if span.status.code not in Status.StatusCode.values() or (span.status.message and span.status.code != Status.STATUS_CODE_ERROR):
        raise Fault(f"{where} has the status {span.status.code} {span.status.message!r}")
    for event in span.events:
        if not event.name or not span.start_time_unix_nano <= event.time_unix_nano <= span.end_time_unix_nano:
            raise Fault(f"{where} has an event without a name, or at another time: {event.name!r}")
    parent = identity(span.parent_span_id, 8, f"{where}: its parent") if span.parent_span_id else None
    links = [identity(link.trace_id, 16, f"{where}: a link") + ":" + identity(link.span_id, 8, f"{where}: a link") for link in span.links]
    return {
        "name": span.name,
        "trace_id": identity(span.trace_id, 16, f"{where}: its trace"),
        "span_id": identity(span.span_id, 8, f"{where}: its id"),
        "parent_id": parent,
        "is_parent_remote": bool(span.flags & IS_REMOTE_KNOWN and span.flags & REMOTE),
        "kind": Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "status": {"code": Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_").lower(), "message": span.status.message},
        "attributes": attributes(span.attributes, where),
        "events": [
            {"name": event.name, "time_ns": event.time_unix_nano, "attributes": attributes(event.attributes, where)}
            for event in span.events
        ],
        "links": links,
        "scope": {"name": scope.name, "version": scope.version},
        "resource": resource,
    }


def spans(request):
    """The lines of a request; fails where anything of it is not as it should be."""
    strange = list(unknown_fields(request, "request"))
    if strange:
        raise Fault(f"fields that the protocol doesn't have, in {', '.join(strange)}")
    lines = []
    for of_resource in request.resource_spans:
        resource = attributes(of_resource.resource.attributes, "resource")
        if not isinstance(resource.get("service.name"), str) or resource["service.name"].startswith("unknown_service"):
            raise Fault(f"the resource names no service: {resource}")
        for of_scope in of_resource.scope_spans:
            if not of_scope.scope.name:
                raise Fault("a scope has no name")
            lines += [read(span, of_scope.scope, resource) for span in of_scope.spans]
    if not lines:
        raise Fault("a request without spans")
    return lines


class Collector(ThreadingHTTPServer):
    def __init__(self, address, out):
        super().__init__(address, Handler)
        self.out, self.lock, self.faults = out, threading.Lock(), 0
        self.seen, self.parents = set(), {}

    def take(self, lines):
        with self.lock:
            for line in lines:
                if (key := (line["trace_id"], line["span_id"])) in self.seen:
                    raise Fault(f"span {line['name']!r} was sent twice")
                self.seen.add(key)
                if line["parent_id"] and not line["is_parent_remote"]:
                    self.parents[line["trace_id"], line["parent_id"]] = line["name"]
                self.out.write(json.dumps(line) + "\n")
            self.out.flush()

    def fault(self, message):
        with self.lock:
            self.faults += 1
        print(f"fault: {message}", file=sys.stderr, flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        kind = self.headers.get("Content-Type", "")
        body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), LARGEST))
        try:
            if self.path != "/v1/traces":
                raise Fault(f"{self.path} is asked for, and traces go to /v1/traces")
            packing = self.headers.get("Content-Encoding", "identity")
            if packing not in ("identity", "gzip"):
                raise Fault(f"it is packed with {packing}")
            if kind != PROTOBUF:
                raise Fault(f"its type is {kind!r}, not {PROTOBUF}")
            request = ExportTraceServiceRequest.FromString(gzip.decompress(body) if packing == "gzip" else body)
            self.server.take(spans(request))
        except Exception as error:  # whatever decoders raise: the caller sent it
            self.server.fault(f"{type(error).__name__}: {error}")
            return self.answer(400, "text/plain", str(error).encode())
        self.answer(200, PROTOBUF, ExportTraceServiceResponse().SerializeToString())

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--listen", default="127.0.0.1:0")
    options = parser.parse_args()
    host, port = options.listen.rsplit(":", 1)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with options.out.open("w") as out, Collector((host, int(port)), out) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        print(f"listening on http://{host}:{collector.server_address[1]}", flush=True)
        stop.wait()
        collector.shutdown()
    for (trace, parent), name in collector.parents.items():
        if (trace, parent) not in collector.seen:
            collector.fault(f"span {name!r}: its parent {parent} in trace {trace} never came")
    print(f"{len(collector.seen)} spans, {collector.faults} faults", flush=True)
    return 1 if collector.faults or not collector.seen else 0


if __name__ == "__main__":
    sys.exit(main())
