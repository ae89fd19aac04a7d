"""The summary of a run in Markdown, for benches/RESULTS.md: measured beside estimated, and a verdict for each goal."""

# Milliseconds on an H200 as estimated beforehand from published speeds: rows' names, the least and the most.
ESTIMATES = {
    "vae 1024 tilewright adaptive": (40, 48), "vae 1024 eager": (90, 98), "vae 1024 compiled": (26, 29),
}
# Of Flux.1-dev's whole forward; blocks that are not run are accounted for by `whole`.
WHOLE_ESTIMATES = {"tw-bf16-expanded": (180, 200), "diffusers-bf16": (170, 190), "diffusers-bf16-compiled": (130, 145), "tw-q4k-adaptive": (460, 490)}
# A goal: what is timed, against what, and the most that the ratio may be.
GOALS = [
    ("Flux's forward", "tw-adaptive", "diffusers-bf16", 0.9),
    ("VAE decode at 1024", "vae 1024 tilewright adaptive", "vae 1024 eager", 0.9),
    ("VAE decode at 512", "vae 512 tilewright adaptive", "vae 512 eager", 0.9),
    ("Q4_K packed", "tw-q4k-packed", "tw-q4k-expanded", 1.15),
    ("Q8_0 packed", "tw-q8-packed", "tw-q8-expanded", 1.15),
]
# A token goes through 12 × 3072² weights in a double block and in a single one, so that both count alike.
WHOLE_BLOCKS = 19 + 38


def whole(ms, blocks):
    """Milliseconds of all 57 blocks, from those of a few; layers around blocks are below a hundredth."""
    return ms * WHOLE_BLOCKS / blocks


def verdict(goal, rows):
    words, ours, theirs, most = goal
    times = {row["name"]: row.get("ms") for row in rows}
    missing = [name for name in (ours, theirs) if not times.get(name)]
    if missing:
        return [words, f"≤ {most}", "", f"not measured: {', '.join(missing)}"]
    ratio = times[ours] / times[theirs]
    return [words, f"≤ {most}", f"{ratio:.2f}", "met" if ratio <= most else "missed"]


def table(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in row) + " |"


def between(pair):
    return f"{pair[0]}–{pair[1]}" if pair else ""


def line(row, blocks):
    name = row["name"]
    if "failed" in row:
        return [name, f"failed: {row['failed']}", "", "", "", ""]
    is_flux = not name.startswith("vae ")
    estimate = WHOLE_ESTIMATES.get(name) if is_flux else ESTIMATES.get(name)
    own = row.get("estimate_ms")
    return [name, f"{row['ms']:.1f}", f"{whole(row['ms'], blocks):.0f}" if is_flux else "", between(estimate),
            "" if own is None else f"{own:.1f}", "" if row.get("error") is None else f"{row['error']:.1e}"]


def markdown(found):
    card = found.get("facts", {})
    yield f"## A device day on {card.get('card', 'an unknown card')}"
    yield ""
    versions = [("PyTorch", card.get("torch")), ("CUDA", card.get("cuda")), ("cuDNN", card.get("cudnn")), ("driver", card.get("driver"))]
    yield ", ".join(f"{name} {value}" for name, value in versions if value) + "."
    if found.get("small"):
        yield "A trial at small width: its times say nothing of published sizes."
    yield ""
    yield from table(["goal", "ratio wanted", "measured", "verdict"], [verdict(goal, found["rows"]) for goal in GOALS])
    yield ""
    yield from table(["", "ms", "57 blocks, ms", "estimated beforehand, ms", "program's estimate, ms", "error"],
                     [line(row, found["blocks"]) for row in found["rows"]])
    yield ""
    yield from table(["step", "outcome", "s"], [[step["name"], step["outcome"], f"{step['s']:.0f}"] for step in found["steps"]])
    for one in card.get("attention", []):
        yield (f"- attention of {one['heads']} heads, {one['length']} × {one['width']}: PyTorch picks {one['choice']},"
               f" {one['ms']:.2f} ms, {one['tflops']:.0f} TFLOP/s")
    for row in found["rows"]:
        if "profile" in row:
            yield from ["", f"Kernels of {row['name']}:", "", "```", row["profile"].strip(), "```"]
