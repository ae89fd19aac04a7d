"""In the place of all processes that a day starts, for test_day.py: answers at once, with figures that mean nothing.

STAND_IN_FAULTS has names of rows, steps or peers, each with what it does instead: tw-mixed=fail,compiled=hang.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import tensors

FAULTS = dict(fault.split("=") for fault in os.environ.get("STAND_IN_FAULTS", "").split(",") if fault)


def fault(name):
    if FAULTS.get(name) == "hang":
        time.sleep(600)
    return name in FAULTS


def value_of(words, option):
    return words[words.index(option) + 1]


def noise(seed):
    return tensors.normal((1, 16, 2, 2), random.Random(seed))


def facts(words):
    print(json.dumps({"card": words[0], "torch": "2.11.0"}))


def device(words):
    if fault("device"):
        sys.exit("no device")
    if words[1] == "check":
        Path(value_of(words, "--report")).write_text("{}")
    print("{}")


def sample(words):
    tensors.write({"latent": noise(3)}, Path(value_of(words, "-o")))
    print(json.dumps({"plan": {"precision": "bf16"}}))


def bench(words):
    if words[1] == "weights":
        Path(value_of(words, "-o")).touch()
        return
    run = {"median_ms": 10.0, "samples_ms": [10.0], "estimate": {"step_ms": 9.0}, "load_ms": 1.0, "peak_bytes": 1, "weights_bytes": 1,
           "plan": {"precision": "bf16"}, "adjusted": ["products plain"] if "products=fp8" in value_of(words, "--policy") else [], "fallback": None}
    if "mixed" in value_of(words, "--policy") and fault("tw-mixed"):
        print(json.dumps({"runs": [{"error": "memory ran out"}]}))
        sys.exit("no policy was measured: the table says why of each")
    print(json.dumps({"runs": [run]}))


def weights(words):
    Path(words[2]).touch()


def decodes(words):
    sizes = []
    for side in value_of(words, "--sizes").split(","):
        rows = []
        sizes.append({"height": int(side), "rows": rows})
        for name in [value_of(words, "--peers"), *(f"tilewright {policy}" for policy in words[words.index("--policies") + 1:])]:
            if fault(name):
                sys.exit(f"{name} failed")
            rows.append({"name": name, "median_s": 0.01})
            Path(value_of(words, "--json")).write_text(json.dumps({"sizes": sizes}))


def denoiser(words):
    name = json.loads(words[0])["contestant"]
    if fault(name):
        sys.exit("ImportError: no diffusers")
    print("{}", flush=True)
    for line in sys.stdin:
        command, *path = line.split()
        if command == "output":
            tensors.write({"velocity": noise(4)}, Path(path[0]))
        print(json.dumps({"elapsed_s": 0.01}), flush=True)


# What a process is, by its first word.
ROLES = {"cpu": facts, "device": device, "sample": sample, "bench": bench, "flux-dev-narrow": weights, "--vae": decodes}

if __name__ == "__main__":
    given = sys.argv[1:]
    ROLES.get(given[0], denoiser)(given)
