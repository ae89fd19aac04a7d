"""Times Tilewright against diffusers and others: the same weights, latent and threads, in one run, in turns.

    python peers.py --tilewright PATH --vae DIR --policies fixed:space=whole,precision=f32 fixed:space=exact,tile=512,precision=f32

Needs what requirements.txt pins, on Linux; `compiled` also needs a C++ compiler. Every contestant reads its weights once (Tilewright once
a block) and only one works at a time. A line is printed on standard error as each block ends; the tables go to standard output.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from safetensors.torch import save_file

from compare import differences, read_sample
from contestants import CONTESTANTS
from machine import facts
from network import Unfit, check_versions, generated_latent, read_latent, scale_of, weights_file
from program import Policy, Program
from report import markdown
from spread import summary
from turns import Peer, take_turns

DEFAULT_PEERS = "eager,compiled,tiled,comfyui"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--vae", type=Path, required=True, metavar="DIR|FILE",
        help="weights: diffusers' folder or file with config.json beside it, or LDM's or BFL's file")
    add("--tilewright", type=Path, metavar="PATH", help="the program; without it only the peers are timed")
    add("--policies", nargs="+", default=["fixed:space=whole,precision=f32"], metavar="POLICY",
        help="what Tilewright decodes with, as for `tilewright bench --policy`: a name, or fixed:key=value,key=value")
    add("--tilewright-args", default="", metavar="ARGS", help="further options for each run of the program, as one word")
    add("--peers", type=names, default=DEFAULT_PEERS, metavar="NAMES",
        help=f"of {', '.join(CONTESTANTS)}; eager runs too unless --references has what it is for")
    add("--once", type=names, default=[], metavar="NAMES", help="peers that are too slow to decode more than once")
    add("--sizes", type=sizes, default="512,1024", metavar="PX", help="sides of the pictures to decode, latents generated from a seed")
    add("--latent", type=Path, metavar="FILE", help="decode this latent instead (.latent or .safetensors)")
    add("--threads", type=positive, default=os.cpu_count(), metavar="N", help="processor threads of every contestant")
    add("--iterations", type=positive, default=10, metavar="N", help="measured decodes of each contestant and size")
    add("--warmup", type=count, default=2, metavar="N", help="decodes at the start of each block that are not measured")
    add("--rounds", type=positive, default=2, metavar="N",
        help="blocks that the iterations are divided into; contestants take turns block by block")
    add("--budget", type=float, metavar="S",
        help="seconds that a contestant may take for one size: slow ones get fewer iterations, three at least")
    add("--patience", type=float, default=3600, metavar="S", help="seconds to wait for one decode, compiling included, or for one run of the program")
    add("--tile", type=positive, default=512, metavar="PX", help="diffusers' tile")
    add("--overlap-factor", type=float, default=0.25, metavar="X", help="diffusers' overlap, as a share of the tile")
    add("--border", type=positive, default=4, metavar="PX", help="how near to a tile border counts as along it")
    add("--device", default="cpu", metavar="cpu|cuda[:N]", help="where everybody decodes")
    add("--precision", default="f32", choices=["f32", "bf16", "f16"], help="the peers' precision; Tilewright's is said by its policies")
    add("--references", type=Path, metavar="DIR",
        help="a folder of references, a file for each size: one from an earlier run of this network is taken, one that is made is kept there")
    add("--json", type=Path, metavar="FILE", help="keep everything, each sample included")
    add("--markdown", type=Path, metavar="FILE", help="write the tables here too")
    args = parser.parse_args()
    if args.rounds > args.iterations:
        parser.error(f"--rounds {args.rounds} are more than --iterations {args.iterations}: each round measures at least one")
    return args


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def count(text):
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below zero")
    return value


def sizes(text):
    return [positive(part) for part in text.split(",")]


def names(text):
    wanted = list(dict.fromkeys(text.split(",")))
    for name in wanted:
        if name not in CONTESTANTS:
            raise argparse.ArgumentTypeError(f"no peer is named {name}: choose from {', '.join(CONTESTANTS)}")
    return wanted


def say(line):
    print(line, file=sys.stderr, flush=True)


def contestants(args, program, latent, folder, reference):
    options = {"vae": str(args.vae), "latent": str(latent), "threads": args.threads, "device": args.device, "precision": args.precision,
               "tile": args.tile, "overlap_factor": args.overlap_factor}
    # The reference comes first, where it has to be made.
    wanted = args.peers if reference.exists() else dict.fromkeys(["eager", *args.peers])
    peers = [Peer(name, options, folder, args.patience) for name in wanted]
    if program is None:
        return peers
    return peers + [Policy(program, policy, latent, folder, number) for number, policy in enumerate(args.policies)]


def one_size(args, program, latent, folder, size, keep):
    """Measures into `size`, calling `keep` whenever there is more: a run takes long, and what is measured should not be lost with the rest."""
    reference = (args.references or folder) / f"reference-{size['width']}x{size['height']}.safetensors"
    running = contestants(args, program, latent, folder, reference)

    def keep_measured(rows):
        size["rows"] = [measured(row) for row in rows.values() if "failed" in row or row.get("samples_s")]
        keep()

    try:
        rows = take_turns(running, args.iterations, args.warmup, args.rounds, args.budget, say, args.once, keep_measured)
    finally:
        for contestant in running:
            contestant.close()
    if not reference.exists():
        make_reference(args, rows["eager"], latent, folder, reference)
    compare_outputs(args, running, rows, read_sample(reference), (size["height"], size["width"]))
    keep_measured(rows)


def measured(row):
    """A row as it is kept, also before all of its rounds are done."""
    kept = {name: value for name, value in row.items() if name != "output"}
    return kept if "failed" in row else kept | summary(row["samples_s"])


def make_reference(args, eager, latent, folder, reference):
    """What outputs are compared with: eager's, made apart where the peers decode in another precision than f32."""
    if "failed" in eager:
        raise Unfit(f"the reference, diffusers' eager decode, failed: {eager['failed']}")
    made = eager["output"] if args.precision == "f32" else f32_output(args, latent, folder / "f32")
    reference.parent.mkdir(exist_ok=True)
    # A name of its own until it is whole.
    partial = reference.with_suffix(".part")
    shutil.copyfile(made, partial)
    partial.rename(reference)


def f32_output(args, latent, folder):
    folder.mkdir(exist_ok=True)
    peer = Peer("eager", {"vae": str(args.vae), "latent": str(latent), "threads": args.threads, "device": args.device, "precision": "f32"},
                folder, args.patience)
    try:
        return peer.prepare()["output"]
    finally:
        peer.close()


def compare_outputs(args, running, rows, reference, extent):
    for contestant in running:
        row = rows[contestant.name]
        if "failed" in row:
            continue
        try:
            row["difference"] = differences(read_sample(row["output"]), reference, contestant.lines(extent), args.border)
        except Unfit as error:
            row["failed"] = error.without_folders()


def turns(args):
    budget = "" if args.budget is None else f"; at most about {args.budget:.0f} s a contestant and size, so slow ones measure fewer"
    return (f"{args.rounds} rounds; in each, every contestant in turn decodes {args.warmup} times unmeasured and then its share of"
            f" {args.iterations}; each round begins with another one{budget}")


def compare(args):
    check_versions()
    scale, _ = scale_of(args.vae)
    if args.tile % scale:
        raise Unfit(f"--tile {args.tile} does not fit this network: give a multiple of {scale}")
    weights = weights_file(args.vae)
    extra = shlex.split(args.tilewright_args)
    program = Program(args.tilewright, weights, args.threads, args.device, extra, args.patience) if args.tilewright else None
    kept = {
        "machine": facts(args.device, args.threads, args.precision),
        "run": {"tilewright": program and program.version,
                "network": f"{weights.stat().st_size / 1e6:.0f} MB of weights, {scale}× wide and high",
                "turns": turns(args), "iterations": args.iterations, "warmup": args.warmup, "rounds": args.rounds,
                "border_px": args.border, "tile": args.tile, "overlap_factor": args.overlap_factor},
        "sizes": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for side in [None] if args.latent else args.sizes:
            latent = args.latent or folder / f"latent-{side}.safetensors"
            if side:
                save_file({"latents": generated_latent(args.vae, side)}, latent)
            height, width = (extent * scale for extent in read_latent(latent).shape[2:])
            say(f"-- {width} × {height}")
            kept["sizes"].append({"height": height, "width": width, "rows": []})
            one_size(args, program, latent, folder, kept["sizes"][-1], lambda: write(args, kept))
    return kept


def write(args, kept):
    if args.json:
        # A name of its own until it is whole: the run may be stopped at any moment.
        partial = args.json.with_name(f"{args.json.name}.part")
        partial.write_text(json.dumps(kept, indent=1) + "\n")
        partial.rename(args.json)
    if args.markdown:
        args.markdown.write_text("\n".join(markdown(kept)) + "\n")


def main():
    args = arguments()
    try:
        kept = compare(args)
    except (Unfit, OSError) as error:
        sys.exit(f"peers: {error}")
    except KeyboardInterrupt:
        sys.exit("peers: stopped")
    print("\n".join(markdown(kept)))


if __name__ == "__main__":
    main()
