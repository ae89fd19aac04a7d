"""VAE decodes of Flux's size, by ../peers/peers.py, which this file also runs as a process: python vae.py ARGUMENTS."""

import json
import sys
from pathlib import Path

import budget

PEERS = Path(__file__).resolve().parents[1] / "peers"
POLICIES = ["adaptive", "fixed:space=whole,precision=bf16,layout=channels-last", "fixed:space=whole,precision=mixed-bf16"]


def decode(program, device, work, out, size, allowed_s, peers="eager,compiled"):
    """→ rows of one size; what peers.py keeps goes to `out` also where it fails later."""
    share = budget.Budget(allowed_s)
    weights, kept = work / "vae.safetensors", out / f"vae-{size}.json"
    if not weights.exists():
        budget.run([program, "bench", "weights", "flux", "-o", weights], share.left())
    precision = "f32" if device == "cpu" else "bf16"
    policies = ["adaptive"] if device == "cpu" else POLICIES
    budget.run([sys.executable, __file__, "--vae", weights, "--tilewright", program, "--device", device, "--precision", precision,
                "--peers", peers, "--sizes", size, "--iterations", 3 if device == "cpu" else 6, "--rounds", 1, "--warmup", 1,
                "--budget", 15, "--patience", max(1, int(share.left())), "--json", kept, "--policies", *policies], share.left())
    return list(rows(json.loads(kept.read_text())))


def rows(kept):
    for size in kept["sizes"]:
        for row in size["rows"]:
            name = f"vae {size['height']} {row['name']}"
            if "failed" in row:
                yield {"name": name, "failed": row["failed"]}
            else:
                yield {"name": name, "ms": row["median_s"] * 1000}


def as_process():
    """peers.py with the versions of packages that the machine has, but for what is measured."""
    sys.path[:0] = [str(PEERS), str(PEERS.parents[1] / "tests" / "judge")]
    import networks

    for name in ("numpy", "safetensors"):
        networks.VERSIONS.pop(name)
    import peers

    peers.main()


if __name__ == "__main__":
    as_process()
