"""VAE decodes of Flux's size, by ../peers/peers.py, which this file also runs as a process: python vae.py ARGUMENTS."""

import json
import sys
from pathlib import Path

import budget

PROCESS = Path(__file__).resolve()
PEERS = PROCESS.parents[1] / "peers"
# Sides of pictures, or a trial's.
SIDES = {False: (1024, 512), True: (64, 32)}
# Of a kind of device: the peers' precision, and what is measured beside eager and adaptive.
KINDS = {
    "cuda": ("bf16", "compiled", ["fixed:space=whole,precision=bf16,layout=channels-last", "fixed:space=whole,precision=bf16,layout=channels-first",
                                  "fixed:space=whole,precision=mixed-bf16"]),
    "cpu": ("f32", "eager-channels-last", ["fixed:space=whole,precision=f32"]),
}
# The share of a step that one answer may take, so that a peer which hangs is one row that failed.
PATIENCE = 0.4


class Decodes:
    def __init__(self, program, device, folder, out):
        self.program, self.device, self.folder, self.out = program, device, folder, out
        self.precision, self.other_peers, self.other_policies = KINDS[device.split(":")[0]]

    def goal(self, side, share):
        return self.decode(f"vae-{side}.json", [side], "eager", ["adaptive"], share)

    def others(self, sides, share):
        return self.decode("vae-others.json", sides, self.other_peers, self.other_policies, share)

    def decode(self, file, sides, peers, policies, share):
        """→ rows as they come."""
        weights, kept = self.folder / "vae.safetensors", self.out / file
        kept.unlink(missing_ok=True)
        if not weights.exists():
            budget.run([self.program, "bench", "weights", "flux", "-o", weights], share)
        command = [sys.executable, PROCESS, "--vae", weights, "--tilewright", self.program, "--device", self.device, "--precision", self.precision,
                   "--peers", peers, "--sizes", ",".join(map(str, sides)), "--iterations", 6, "--rounds", 1, "--warmup", 1, "--budget", 15,
                   "--patience", share.left() * PATIENCE, "--references", self.folder, "--json", kept, "--policies", *policies]
        try:
            budget.run(command, share)
        finally:
            yield from rows(kept)


def rows(kept):
    """Rows of what peers.py kept, be it whole or not."""
    if not kept.exists():
        return
    for size in json.loads(kept.read_text())["sizes"]:
        for row in size["rows"]:
            time = {} if "failed" in row else {"ms": row["median_s"] * 1000}
            yield row | {"name": f"vae {size['height']} {row['name']}"} | time


def as_process():
    """peers.py with the numpy that the machine has; versions of what is measured are as pinned."""
    sys.path[:0] = [str(PEERS), str(PEERS.parents[1] / "tests" / "judge")]
    import networks

    networks.VERSIONS.pop("numpy")
    import peers

    peers.main()


if __name__ == "__main__":
    as_process()
