"""The summary of a run in Markdown, for benches/RESULTS.md: measured beside estimated, and a verdict for each goal."""

# Milliseconds on an H200 as estimated from published speeds before anything ran on one: rows' names, the least and the most.
ESTIMATES = {
    "vae 1024 tilewright adaptive": (40, 48), "vae 1024 eager": (90, 98), "vae 1024 compiled": (26, 29),
}
# Of Flux.1-dev's whole forward; blocks that are not run are accounted for by `whole`.
WHOLE_ESTIMATES = {"tw-bf16-expanded": (180, 200), "diffusers-bf16": (170, 190), "diffusers-bf16-compiled": (130, 145), "tw-q4k-packed": (460, 490)}
# A goal: what is timed, against what, and the most that the ratio may be. Packed weights are compared by plans that ask for them,
# whatever adaptive would choose.
GOALS = [
    ("Flux's forward", "tw-adaptive", "diffusers-bf16", 0.9),
    ("VAE decode at 1024", "vae 1024 tilewright adaptive", "vae 1024 eager", 0.9),
    ("VAE decode at 512", "vae 512 tilewright adaptive", "vae 512 eager", 0.9),
    ("Q4_K, packed against expanded", "tw-q4k-packed", "tw-q4k-expanded", 1.15),
    ("Q8_0, packed against expanded", "tw-q8-packed", "tw-q8-expanded", 1.15),
]
# A token goes through 12 × 3072² weights in a double block and in a single one, so that both count alike.
WHOLE_BLOCKS = 19 + 38
HEAD = ["", "ms", "57 blocks, ms", "estimated beforehand for an H200, ms", "program's estimate, ms", "error", "notes"]


def whole(ms, blocks):
    """Milliseconds of all 57 blocks, from those of a few; layers around blocks are below a hundredth of operations."""
    return ms * WHOLE_BLOCKS / blocks


def verdict(goal, rows):
    words, ours, theirs, most = goal
    times = {row["name"]: row.get("ms") for row in rows}
    missing = [name for name in (ours, theirs) if not times.get(name)]
    if missing:
        return [words, f"≤ {most}", "", f"not measured: {', '.join(missing)}"]
    ratio = times[ours] / times[theirs]
    return [words, f"≤ {most}", f"{ratio:.3f}", "met" if ratio <= most else "missed"]


def table(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in row) + " |"


def between(pair):
    return f"{pair[0]}–{pair[1]}" if pair else ""


def number(value, pattern):
    return "" if value is None else format(value, pattern)


def notes(row):
    """Why a row lacks something, or is not of what was asked for."""
    found = [(words, row.get(name)) for name, words in
             [("failed", "failed"), ("unread", "no error"), ("fallback", "the host's default ran instead"), ("adjusted", "adjusted")]]
    return "; ".join(f"{words}: {', '.join(said) if isinstance(said, list) else said}" for words, said in found if said)


def line(row, found):
    name, ms = row["name"], row.get("ms")
    # A trial's width is of no published model.
    is_flux = not (name.startswith("vae ") or found.get("small"))
    estimate = None if found.get("small") else (ESTIMATES | WHOLE_ESTIMATES).get(name)
    return [name, number(ms, ".1f"), number(whole(ms, found["blocks"]), ".0f") if ms and is_flux else "", between(estimate),
            number(row.get("estimate_ms"), ".1f"), number(row.get("error"), ".1e"), notes(row)]


def markdown(found):
    card = found.get("facts", {})
    yield f"## A device day on {card.get('card', 'an unknown card')}"
    yield ""
    versions = [("PyTorch", "torch"), ("diffusers", "diffusers"), ("CUDA", "cuda"), ("cuDNN", "cudnn"), ("driver", "driver")]
    yield ", ".join(f"{words} {card.get(name, 'unknown')}" for words, name in versions) + "."
    if found.get("small"):
        yield "A trial at small width: its times say nothing of published sizes."
    if found.get("ended"):
        yield found["ended"]
    yield ""
    yield from table(["goal", "ratio wanted", "measured", "verdict"], [verdict(goal, found["rows"]) for goal in GOALS])
    yield ""
    yield from table(HEAD, [line(row, found) for row in found["rows"]])
    yield ""
    yield f"Errors are of the first velocity, from that of {found.get('reference') or 'no row'}."
    yield ""
    yield from table(["step", "outcome", "s"], [[step["name"], step["outcome"], f"{step['s']:.0f}"] for step in found["steps"]])
    for one in card.get("attention", []):
        yield (f"- attention of {one['heads']} heads, {one['length']} × {one['width']}: PyTorch picks {one['choice']},"
               f" {one['ms']:.2f} ms, {one['tflops']:.0f} TFLOP/s")
    for row in found["rows"]:
        if "profile" in row:
            yield from ["", f"Kernels of {row['name']}:", "", "```", row["profile"].strip(), "```"]
