#!/bin/sh
# Checks this machine's GPU, or its processor, with the PyTorch 2.11 that python3 has, or that TILEWRIGHT_LIBTORCH names.
# Arguments are those of "tilewright device check": ./check.sh --quick
set -eu
here=$(dirname "$(readlink -f "$0")")
find_torch="import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
torch=${TILEWRIGHT_LIBTORCH:-$(python3 -c "$find_torch" 2>/dev/null)} || {
    echo "error: python3 has no PyTorch: install torch 2.11, or name its folder in TILEWRIGHT_LIBTORCH" >&2
    exit 2
}
if ! grep -q "^__version__ = '2\.11\." "$torch/version.py" 2>/dev/null; then
    echo "error: $torch is no PyTorch 2.11" >&2
    exit 2
fi
# AMD's own wheels have ROCm's libraries beside torch.
libraries=$torch/lib
for folder in "$torch"/../_rocm_sdk_core/lib "$torch"/../_rocm_sdk_libraries*/lib; do
    if [ -d "$folder" ]; then libraries=$libraries:$folder; fi
done
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
TILEWRIGHT_LIBTORCH=$torch
export LD_LIBRARY_PATH TILEWRIGHT_LIBTORCH
exec "$here/tilewright" device check --report check.json "$@"
