"""Schemathesis against a running service: each operation of its OpenAPI description by examples, at its edges, at random, and in sequence.

    python fuzz_api.py URL [--token-file FILE] [--model NAME --latent PATH] [--max-examples N] [--seed N] [--limit SECONDS] [--report DIR]

Starts nothing. The service must be one to throw away: it is sent whatever its description allows, cancelling, swapping and pausing
included. So only addresses of this machine are taken, and what would make the service ask another host is made to lead to this one. Give
the service a high requests-per-second, and with --model and --latent, a path it may read, some of the jobs that are well formed come to
be decoded. The same seed sends the same. Exits 1 with findings, 2 where it can't begin. Needs the versions in requirements.txt.
"""

import argparse
import importlib.metadata
import ipaddress
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

VERSION = "4.32.5"

# What fits the description and is refused all the same, for what only the service knows: which models there are, how a job stands, what a
# file holds, how long the queue is. What doesn't fit the description is refused with 400, and these are no answer to it.
KNOWN_BETTER = ["404", "409", "410", "413", "415", "422", "429", "503"]

# Nothing listens there.
NOBODY = "oci://127.0.0.1:1/nobody/nothing:1"

CONFIGURATION = """
hooks = {hooks}
headers = {headers}
continue-on-failure = true
request-timeout = 20.0
max-stream-events = 64

[warnings]
fail-on = ["base_url_mismatch", "missing_auth", "missing_deserializer", "rate_limited", "unresolvable_reference", "unsupported_regex"]

[generation]
max-examples = {max_examples}
deterministic = {is_deterministic}
database = "none"

[checks]
not_a_server_error = {{ expected-statuses = ["2xx", "3xx", "4xx", "503", "507"] }}
positive_data_acceptance = {{ expected-statuses = {accepted} }}
negative_data_rejection = {{ expected-statuses = {refused} }}
ignored_auth = {{ enabled = {has_token} }}
# A job that was cancelled is kept, and says so.
use_after_free = {{ enabled = false }}
"""


def main():
    options = arguments()
    found = importlib.metadata.version("schemathesis")
    if found != VERSION:
        fail(f"schemathesis {found} is installed and {VERSION} is needed: pip install -r requirements.txt")
    token = options.token_file.read_text().strip() if options.token_file else None
    base = base_url(options.url)
    ask(base, "/healthz")
    operations = len(json.loads(ask(base, "/openapi.json", token))["paths"])
    with tempfile.TemporaryDirectory() as scratch:
        configuration = Path(scratch, "schemathesis.toml")
        configuration.write_text(configured(options, token is not None))
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration), "run", f"{base}/openapi.json"]
        command += ["--url", base, "--phases", "examples,coverage,fuzzing,stateful", "--no-color"]
        command += ["--seed", str(options.seed)] if options.seed is not None else []
        if options.report:
            command += ["--report", "junit,ndjson", "--report-dir", str(options.report.resolve())]
        # It runs in another folder, where relative ones lead elsewhere.
        packages = os.pathsep.join(str(Path(folder).resolve()) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder)
        environment = {**os.environ, "PYTHONPATH": packages, "FUZZ_TOKEN": token or ""}
        environment |= {"FUZZ_MODEL": options.model or "", "FUZZ_LATENT": options.latent or ""}
        try:
            status = subprocess.run(command, cwd=scratch, env=environment, timeout=options.limit).returncode
        except subprocess.TimeoutExpired:
            fail(f"not done after {options.limit} s: lower --max-examples or raise --limit")
    ask(base, "/healthz")
    print(f"{operations} paths, status {status}: " + ("the service is as it is described" if status == 0 else "see the findings above"))
    return 1 if status else 0


def configured(options, has_token):
    # The token stays out of the command line, which everybody on the machine can read.
    headers = '{ Authorization = "Bearer ${FUZZ_TOKEN}" }' if has_token else "{}"
    return CONFIGURATION.format(
        hooks=json.dumps(str(Path(__file__).resolve())),
        headers=headers,
        max_examples=options.max_examples,
        is_deterministic=str(options.seed is None).lower(),
        accepted=json.dumps(["2xx", "3xx", *KNOWN_BETTER]),
        refused=json.dumps(["400", "401", "404", "405", "406", "413", "415", "422", "429", "503"]),
        has_token=str(has_token).lower(),
    )


def base_url(url):
    """The address without a path; fails where it is not this machine's."""
    parts = urlsplit(url)
    try:
        is_local = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        is_local = False
    if parts.scheme not in ("http", "https") or not is_local:
        fail(f"{url} is not an address of this machine: this is for a service to throw away, started for it here")
    return f"{parts.scheme}://{parts.netloc}"


def ask(base, path, token=None):
    request = urllib.request.Request(base + path, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.read()
    except OSError as error:
        fail(f"{base}{path}: {error}")


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--model", help="one that the service has")
    parser.add_argument("--latent", help="a path that jobs may name")
    parser.add_argument("--max-examples", type=int, default=50, help="per operation and phase (default 50)")
    parser.add_argument("--seed", type=int, help="left out: always the same examples")
    parser.add_argument("--limit", type=float, default=1800, help="seconds (default 1800)")
    parser.add_argument("--report", type=Path, help="a folder for JUnit's XML and all exchanges as JSON")
    return parser.parse_args()


def at_home(value):
    """The same, with addresses of other hosts made to lead to this one."""
    if isinstance(value, dict):
        return {name: at_home(member) for name, member in value.items()}
    if isinstance(value, list):
        return [at_home(member) for member in value]
    return NOBODY if isinstance(value, str) and "://" in value else value


def hook():
    """What Schemathesis loads this file for: a look at each request before it is sent, and bytes that are sent as they are."""
    import schemathesis

    @schemathesis.serializer("application/wasm")
    def module(context, value):
        del context
        return bytes(value) if isinstance(value, bytes | bytearray) else str(value).encode()

    model, latent = os.environ["FUZZ_MODEL"], os.environ["FUZZ_LATENT"]

    @schemathesis.hook
    def before_call(context, case, kwargs):
        del context, kwargs
        case.body = at_home(case.body)
        is_job = (case.method.upper(), case.operation.path) == ("POST", "/v1/jobs") and isinstance(case.body, dict)
        if is_job and model and latent and "latent_path" in case.body and case.meta and case.meta.generation.mode.is_positive:
            # What doesn't fit this service or this latent is refused before anything else is looked at.
            case.body.update(model=model, latent_path=latent, device=None, tensor=None, fps=None, scaled=False)
            case.headers.pop("Idempotency-Key", None)


if __name__ == "__main__":
    sys.exit(main())
elif __name__ == "_schemathesis_hooks":
    hook()
