"""A trace of `tilewright --profile` as Perfetto reads it: that nothing is lost or bent, and that it holds what the profile says.

    tilewright decode LATENT --vae FILE -o OUT.png --profile trace.json --json > record.json
    python trace.py trace.json [--record record.json] [--expect tile=4 step=2 block=16 …] [--fetch]

Perfetto's trace processor reads the file (`trace_processor.py` says which one), and SQL answers the rest:

- no errors and no lost data in its own statistics, as many slices and arrows as the file has entries;
- slices lie within each other or apart, within their process's stages;
- every process and thread with slices has a name, of the form that the program gives;
- every arrow goes from a slice of the host to a later one of a GPU's stream, and every slice of a stream has one;
- as many ranges of each kind as `--expect` says: stage, step, pass, chunk, tile, text, block, layer;
- with the record: names and calls of layers, other parts, operators and kernels, the stage's time, the operators' times of their own, and
  categories that add up to the stage's time.

Prints a line per fault. Exits with 1 if there is one, and with 77, as a skipped test does, if no trace processor can be had.
"""

import argparse
import bisect
import collections
import json
import re
import sys
from pathlib import Path

from trace_processor import Missing, opened

SKIPPED = 77
HOST = "host"
NAMES = {"process": re.compile(r"host|GPU \d+"), "thread": re.compile(r"thread \d+|GPU \d+ stream \d+")}
LOSSES = ("flow_step_without_start", "flow_end_without_start")
NEAR_MS = 1e-3
MOST = 50

STATISTICS = f"select name, value from stats where value > 0 and (severity in ('error', 'data_loss') or name in {LOSSES})"
SLICES = """
    select slice.id, slice.name, slice.ts, slice.dur, slice.parent_id as parent, track_id as track, thread.name as thread, process.name as process,
        extract_arg(slice.arg_set_id, 'args.part') as part, extract_arg(slice.arg_set_id, 'args.stage') as stage
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
    order by slice.ts, slice.dur desc
"""
FLOWS = "select slice_out as start, slice_in as end from flow"


class Faults(list):
    def check(self, is_right, words):
        if not is_right:
            self.append(words)


def entries_of(path):
    """The file's entries by kind, read without Perfetto."""
    return collections.Counter(entry["ph"] for entry in json.loads(path.read_text())["traceEvents"])


def check_reading(faults, processor, slices, flows, entries):
    for row in processor.query(STATISTICS):
        faults.append(f"Perfetto counts {row.value} × {row.name}")
    faults.check(len(slices) == entries["X"], f"{len(slices)} slices of {entries['X']} entries")
    faults.check(entries["s"] == entries["f"] == len(flows), f"{len(flows)} arrows of {entries['s']} starts and {entries['f']} ends")
    faults.check(slices, "the trace is empty")


def check_nesting(faults, slices):
    """Slices of a track lie within each other or apart."""
    open_ones = collections.defaultdict(list)
    for one in slices.values():
        above = open_ones[one.track]
        while above and slices[above[-1]].ts + slices[above[-1]].dur <= one.ts:
            above.pop()
        if above:
            outer = slices[above[-1]]
            faults.check(one.ts + one.dur <= outer.ts + outer.dur, f"{one.name} at {one.ts} ns reaches beyond {outer.name}")
            faults.check(one.dur == 0 or one.parent == outer.id, f"{one.name} at {one.ts} ns isn't below {outer.name}")
        above.append(one.id)


def by_stage(faults, slices):
    """The slices of each stage, which follow each other; all lie in the range of theirs."""
    stages = [one for one in slices.values() if one.part == "stage"]
    found = [{} for _ in stages]
    for one in slices.values():
        number = bisect.bisect_right(stages, one.ts, key=lambda stage: stage.ts) - 1
        stage = stages[number] if number >= 0 else None
        is_within = stage is not None and one.ts + one.dur <= stage.ts + stage.dur and one.stage == stage.stage
        faults.check(is_within, f"{one.name} at {one.ts} ns lies outside its stage, {one.stage}")
        if is_within:
            found[number][one.id] = one
    return found


def check_names(faults, slices):
    for kind, form in NAMES.items():
        for name in sorted({str(getattr(one, kind)) for one in slices.values()}):
            faults.check(form.fullmatch(name), f"a {kind} has the name {name!r}")


def check_arrows(faults, slices, flows):
    arrived = collections.Counter()
    for flow in flows:
        start, end = slices[flow.start], slices[flow.end]
        arrived[end.id] += 1
        faults.check(start.process == HOST and end.process != HOST, f"an arrow from {start.name} on {start.process} to {end.name} on {end.process}")
        faults.check(start.ts <= end.ts, f"{end.name} at {end.ts} ns begins before {start.name}, which launched it")
    for one in slices.values():
        if one.process != HOST:
            faults.check(arrived[one.id] == 1, f"{one.name} at {one.ts} ns on {one.thread} has {arrived[one.id]} arrows")


def check_expected(faults, slices, expected):
    found = collections.Counter(one.part for one in slices.values() if one.part)
    for kind, count in expected.items():
        faults.check(found[kind] == count, f"{found[kind]} ranges of the kind {kind}, not {count}")
    return found


def own_times(slices):
    """Nanoseconds of each operator on the host, less those of the operators within it."""
    own = {one.id: one.dur for one in slices.values() if one.process == HOST and not one.part}
    for one in slices.values():
        if one.id not in own:
            continue
        outer = one.parent
        while outer is not None and outer not in own:
            outer = slices[outer].parent
        if outer is not None:
            own[outer] -= one.dur
    return own


def check_rows(faults, what, rows, counted):
    """Names and calls of a table of the record against those of the trace."""
    said = collections.Counter()
    for row in rows:
        said[row["name"]] += row["calls"]
    for name in sorted(said.keys() | counted.keys()):
        faults.check(said[name] == counted[name], f"{what} {name}: {said[name]} calls in the record, {counted[name]} in the trace")


def check_record(faults, ours, profile):
    stage = profile["facts"]["stage"]
    ranges = [one for one in ours.values() if one.part == "stage"]
    faults.check(len(ranges) == 1 and abs(ranges[0].dur / 1e6 - profile["stage_ms"]) < NEAR_MS, f"{stage}: the range isn't {profile['stage_ms']} ms")
    total = sum(row["total_ms"] for row in profile["categories"])
    faults.check(abs(total / profile["stage_ms"] - 1) < 1e-9, f"{stage}: categories add up to {total} ms of {profile['stage_ms']} ms")
    of = {
        "layer": lambda one: one.part == "layer",
        "part": lambda one: one.part not in (None, "layer", "stage"),
        "operator": lambda one: one.process == HOST and not one.part,
        "kernel": lambda one: one.process != HOST,
    }
    for what, belongs in of.items():
        check_rows(faults, f"{stage}: {what}", profile[f"{what}s"], collections.Counter(one.name for one in ours.values() if belongs(one)))
    own = collections.Counter()
    for one, time in own_times(ours).items():
        own[ours[one].name] += time
    for row in profile["operators"]:
        time = own[row["name"]] / 1e6
        faults.check(abs(row["self_ms"] - time) < NEAR_MS, f"{stage}: operator {row['name']}: {row['self_ms']} ms of its own, {time} in the trace")


def expectation(text):
    kind, _, count = text.partition("=")
    return kind, int(count)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--expect", type=expectation, nargs="+", default=[], metavar="KIND=COUNT")
    parser.add_argument("--fetch", action="store_true", help="let the Python package fetch its trace processor")
    arguments = parser.parse_args()
    try:
        entries = entries_of(arguments.trace)
    except (OSError, ValueError, KeyError) as error:
        print(f"{arguments.trace}: not a trace: {error}")
        return 1
    try:
        processor, what = opened(str(arguments.trace), arguments.fetch)
    except Missing as why:
        print(f"skipped: {why}", file=sys.stderr)
        return SKIPPED
    faults = Faults()
    with processor:
        slices = {row.id: row for row in processor.query(SLICES)}
        flows = list(processor.query(FLOWS))
        check_reading(faults, processor, slices, flows, entries)
    check_nesting(faults, slices)
    stages = by_stage(faults, slices)
    check_names(faults, slices)
    check_arrows(faults, slices, flows)
    found = check_expected(faults, slices, dict(arguments.expect))
    profiles = json.loads(arguments.record.read_text())["profile"] if arguments.record else []
    faults.check(not arguments.record or len(profiles) == len(stages), f"{len(stages)} stages, {len(profiles)} profiles in the record")
    for ours, profile in zip(stages, profiles, strict=False):
        check_record(faults, ours, profile)
    for fault in faults[:MOST]:
        print(fault)
    ranges = ", ".join(f"{kind} {count}" for kind, count in sorted(found.items()))
    print(f"{what}: {len(slices)} slices, {len(flows)} arrows; ranges: {ranges}; {len(profiles)} profiles; {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
