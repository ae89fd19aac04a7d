"""openapi-spec-validator against a running service: whether /openapi.json is OpenAPI to the letter.

    python description.py URL [--token-file FILE]

Starts nothing, and changes nothing in the service. Prints a line per fault; exits 1 with faults, 2 where it can't begin. Needs the
versions in requirements.txt.
"""

import argparse
import json
import sys
import urllib.request
from pathlib import Path

from openapi_spec_validator import OpenAPIV31SpecValidator


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--token-file", type=Path)
    options = parser.parse_args()
    token = options.token_file.read_text().strip() if options.token_file else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{options.url}/openapi.json", headers=headers), timeout=20) as response:
            document = json.load(response)
    except (OSError, ValueError) as error:
        print(f"error: {options.url}/openapi.json: {error}", file=sys.stderr)
        return 2
    faults = [f"{'/'.join(str(step) for step in fault.absolute_path)}: {fault.message:.300}" for fault in faults_of(document)]
    print("\n".join(faults) if faults else f"OpenAPI {document['openapi']}: {len(document['paths'])} paths, no fault")
    return 1 if faults else 0


def faults_of(document):
    if not str(document.get("openapi", "")).startswith("3.1"):
        print(f"error: not OpenAPI 3.1: {document.get('openapi')}", file=sys.stderr)
        sys.exit(1)
    return OpenAPIV31SpecValidator(document).iter_errors()


if __name__ == "__main__":
    sys.exit(main())
