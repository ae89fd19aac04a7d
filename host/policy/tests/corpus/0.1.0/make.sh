#!/usr/bin/env bash
# How the files beside this were made. For the record: what is built by other versions of these tools is another file.
# Wants wit-bindgen 0.60.0 (cargo install wit-bindgen-cli@0.60.0), wasm-tools 1.254.x, clang and wasm-ld 14, and the shipped policies in
# target/policies (cargo xtask setup).
set -euo pipefail
cd "$(dirname "$0")"
root=../../../../..
wit=$root/wit/released/0.1.0/policy.wit
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# A core module as a component of the released world.
component() {
    wasm-tools component embed --world policy "$wit" "$1" -o "$made/embedded.wasm"
    wasm-tools component new "$made/embedded.wasm" -o "$2"
}

for name in comfyui gfx1151; do
    cp "$root/target/policies/$name.wasm" "rust-$name.wasm"
done
for name in fixed diffusers; do
    component "$root/target/policies/$name.wasm" "rust-$name-component.wasm"
done

wit-bindgen c --world policy --out-dir "$made" "$wit"
clang --target=wasm32 -Os -Wall -ffreestanding -fno-builtin -nostdlib -Ic/freestanding -I"$made" \
    -Wl,--no-entry -Wl,--strip-all -Wl,-z,stack-size=65536 -o c-cheapest.wasm c/cheapest.c c/memory.c "$made/policy.c"
component c-cheapest.wasm c-cheapest-component.wasm

for name in whole asks; do
    wasm-tools parse "wat/$name.wat" -o "wat-$name.wasm"
done
component wat-asks.wasm wat-asks-component.wasm

gzip -9n -- *.wasm
