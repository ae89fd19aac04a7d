#!/bin/bash
# One run on a lent machine with a GPU, beside a folder .gpu in the repository's root, which
# `cargo xtask device-day` made. Results are in $OUT, by default out/device-day; TOTAL is the most seconds it takes.
set -u
cd "$(dirname "$0")/../.." || exit 1
TOTAL=${TOTAL:-570}
case $TOTAL in '' | *[!0-9]*) echo "TOTAL=$TOTAL: give seconds, such as 570" >&2; exit 2 ;; esac
OUT=${OUT:-out/device-day}; mkdir -p "$OUT" || exit 1
# The log outlives a signal to all processes here, so that what they say as they end is in it.
exec > >(trap '' TERM INT HUP; exec tee "$OUT/log.txt") 2>&1; log=$!
day=; WORK=$(mktemp -d) || exit 1; WEIGHTS=$WORK
finish() {
    rm -rf "$WORK" "$WEIGHTS"
    exec >&- 2>&-
    wait "$log"
}
stop() {
    [ -n "$day" ] && kill "$day" 2>/dev/null && wait "$day"
    exit 143
}
trap finish EXIT
trap stop TERM INT HUP
# Weights (9 GB) are in memory where there is plenty of it. The program and packages never are: /dev/shm may be mounted noexec.
gib() { awk -v kib="$1" 'BEGIN { printf "%d", kib / 1048576 }'; }
shared=$(gib "$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)")
free=$(gib "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)")
if [ "$shared" -ge 12 ] && [ "$free" -ge 48 ]; then
    WEIGHTS=$(mktemp -d /dev/shm/tilewright.XXXX) || WEIGHTS=$WORK
fi
echo "weights in $WEIGHTS: /dev/shm has $shared GiB, $free GiB of memory are free"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 XDG_CACHE_HOME=$WORK/cache HOME=$WORK TMPDIR=$WORK
KIT=${KIT:-.gpu}
if [ -z "${TILEWRIGHT:-}" ]; then
    [ -f "$KIT/tilewright-check.tar.xz" ] || { echo "$KIT has no program: run cargo xtask device-day, or set TILEWRIGHT"; exit 2; }
    # Not tar, which asks for xz.
    python3 -m tarfile -e "$KIT/tilewright-check.tar.xz" "$WORK" || exit 1
    TILEWRIGHT=$WORK/tilewright-check/tilewright
fi
if [ -d "$KIT/wheels" ]; then
    # Without them the program's own rows are still to be had.
    if python3 -m pip install -q --no-index --no-deps --no-compile --target "$WORK/site" "$KIT"/wheels/*.whl; then
        export PYTHONPATH=$WORK/site${PYTHONPATH:+:$PYTHONPATH}
    else
        echo "the wheels were not installed: the machine's own packages are used"
    fi
fi
if [ -z "${TILEWRIGHT_LIBTORCH:-}" ]; then
    TILEWRIGHT_LIBTORCH=$(python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])") || exit 1
    export TILEWRIGHT_LIBTORCH LD_LIBRARY_PATH=$TILEWRIGHT_LIBTORCH/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
# In the background, as bash would only heed signals after a process in the foreground. SECONDS are those since this script began.
python3 benches/device-day/day.py --tilewright "$TILEWRIGHT" --work "$WORK" --weights "$WEIGHTS" --out "$OUT" \
    --total $((TOTAL - SECONDS)) "$@" &
day=$!
wait "$day"
