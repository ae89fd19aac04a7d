#!/bin/bash
# One run on a lent machine with a GPU, beside a folder .gpu in the repository's root, which
# `cargo xtask device-day` made. Results are in $OUT, by default out/device-day; TOTAL is the most seconds it takes.
set -u
cd "$(dirname "$0")/../.." || exit 1
OUT=${OUT:-out/device-day}; mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
WORK=$(mktemp -d /dev/shm/tilewright.XXXX 2>/dev/null || mktemp -d) || exit 1
trap 'rm -rf "$WORK"' EXIT
trap 'exit 143' TERM INT
export XDG_CACHE_HOME=$WORK/cache HOME=$WORK TMPDIR=$WORK
KIT=${KIT:-.gpu}
if [ -z "${TILEWRIGHT:-}" ]; then
    tar -xzf "$KIT/tilewright-check.tar.gz" -C "$WORK" || exit 1
    TILEWRIGHT=$WORK/tilewright-check/tilewright
fi
if [ -d "$KIT/wheels" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --target "$WORK/site" "$KIT"/wheels/*.whl || exit 1
    export PYTHONPATH=$WORK/site
fi
if [ -z "${TILEWRIGHT_LIBTORCH:-}" ]; then
    TILEWRIGHT_LIBTORCH=$(python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])") || exit 1
    export TILEWRIGHT_LIBTORCH LD_LIBRARY_PATH=$TILEWRIGHT_LIBTORCH/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
python3 benches/device-day/day.py --tilewright "$TILEWRIGHT" --work "$WORK" --out "$OUT" --total "${TOTAL:-570}" "$@" 2>&1 | tee "$OUT/log.txt"
exit "${PIPESTATUS[0]}"
