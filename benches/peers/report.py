"""The tables, in Markdown, from what peers.py keeps as JSON."""

from memory import MIB


def number(value, pattern):
    return "" if value is None else format(value, pattern)


def mib(value):
    return "" if value is None else f"{value / MIB:,.0f}"


def ratio(row, other, key="median_s"):
    mine, theirs = ((one or {}).get(key) for one in (row, other))
    return "" if not mine or not theirs else f"{mine / theirs:.2f}"


def table(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def header(found):
    machine, run = found["machine"], found["run"]
    place = f"{machine['processor']}, {machine['cores']} cores, {machine['vector']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}"
    if "gpu" in machine:
        place = f"{machine['gpu']}; {place}"
    versions = [f"tilewright {run['tilewright']}"] if run["tilewright"] else []
    versions += [f"diffusers {machine['diffusers']}", f"PyTorch {machine['torch']}", f"Python {machine['python']}"]
    yield from table(["", ""], [
        ["machine", place],
        ["versions", ", ".join(versions)],
        ["date", machine["date"]],
        ["run", f"{machine['threads']} threads, {machine['precision']}; load before it {machine['load_before']}"],
        ["network", run["network"]],
        ["turns", run["turns"]],
    ])
    yield ""
    yield ("Times are of decodes alone, in seconds; loading and compiling are never in them. `first` is a process's first decode, "
           "compiling included. The interval is the median's, 95 %, by bootstrap. Ratios are of medians. Memory is the largest resident "
           "size of the process during one decode that is not timed: less what was resident before it (`decode`), and with weights and "
           "libraries (`total`). For Tilewright, what a decode of 8 × 8 latents takes stands for what was resident before; `own` is the "
           "peak that the program reports itself. Differences are from diffusers' eager decode of the whole picture in f32, in a "
           "picture of −1…1; `border` and `inside` are means within and beyond "
           f"{run['border_px']} px of that row's tile borders.")


def times(size):
    rows, by_name = size["rows"], {row["name"]: row for row in size["rows"] if "failed" not in row}
    eager, compiled = by_name.get("eager"), by_name.get("compiled")
    for row in rows:
        if "failed" in row:
            yield [row["name"], f"failed: {row['failed']}", *[""] * 7]
            continue
        flag = " (noisy)" if row["noisy"] else ""
        yield [row["name"], f"{row['median_s']:.3f}{flag}", f"{row['low_s']:.3f} – {row['high_s']:.3f}", f"{row['std_s']:.3f}",
               str(row["n"]), " ".join(f"{median:.3f}" for median in row["rounds_s"]), "–" if row["first_s"] is None else f"{row['first_s']:.2f}",
               ratio(row, eager), ratio(row, compiled)]


def outputs(size):
    eager = next((row for row in size["rows"] if row["name"] == "eager"), None)
    for row in size["rows"]:
        if "failed" in row:
            continue
        gap = row.get("difference") or {}
        yield [row["name"], mib(row["decode_bytes"]), mib(row["total_bytes"]), mib(row.get("own_peak_bytes")),
               ratio(row, eager, "decode_bytes"), number(gap.get("max"), ".1e"), number(gap.get("mean"), ".1e"), number(gap.get("psnr"), ".1f"),
               number(gap.get("border"), ".1e"), number(gap.get("inside"), ".1e")]


def against(size):
    """Tilewright's rows over everybody else's."""
    rows = [row for row in size["rows"] if "failed" not in row]
    mine, others = ([row for row in rows if row["name"].startswith("tilewright ") is ours] for ours in (True, False))
    if not mine or not others:
        return
    for columns in [others, mine] if len(mine) > 1 else [others]:
        yield ""
        yield from table(["time over that of", *(row["name"] for row in columns)],
                         [[row["name"], *(ratio(row, column) for column in columns)] for row in mine])


def markdown(found):
    yield "# Tilewright and its peers"
    yield ""
    yield from header(found)
    for size in found["sizes"]:
        yield ""
        yield f"## {size['width']} × {size['height']}"
        yield ""
        yield from table(["", "median", "interval", "std", "n", "by round", "first", "/ eager", "/ compiled"], times(size))
        yield ""
        yield from table(["", "decode, MiB", "total, MiB", "own, MiB", "decode / eager", "max", "mean", "PSNR, dB", "border", "inside"],
                         outputs(size))
        yield from against(size)
        plans = [row for row in size["rows"] if row.get("plan")]
        if plans:
            yield ""
        for row in plans:
            changed = f" (the host changed: {'; '.join(map(str, row['adjusted']))})" if row.get("adjusted") else ""
            yield f"- {row['name']}: {plan_words(row['plan'])}{changed}"


def plan_words(plan):
    if not isinstance(plan, dict):
        return str(plan)
    def words(value):
        return " ".join(str(part) for part in value.values()) if isinstance(value, dict) else str(value)
    return ", ".join(f"{name} {words(value)}" for name, value in plan.items() if value is not None)
