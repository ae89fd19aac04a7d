// Run natively by `npm test` (node --test): no WebAssembly, and a stand-in for the host.

import assert from "node:assert";
import { test } from "node:test";

import { decide, recover } from "./rules.js";

const MIB = 2 ** 20;

/** A host for which a pixel of a tile costs a kilobyte. */
function price(plan) {
    const side = plan.space.tag === "whole" ? 1024 : plan.space.val.height;
    return { peakBytes: side * side * 1024, elapsedNs: 1000, tiles: (1024 / side) ** 2, shapes: 1, rework: 1 };
}

/** A picture of 1024×1024 with this much memory. */
function request(memoryLimit) {
    const device = { backend: "rocm", arch: "gfx1151", freeBytes: 65536 * MIB, fastDtypes: [] };
    return { device, batch: 1, frames: 1, height: 1024, width: 1024, memoryLimit, objective: "balanced", hints: [] };
}

test("whole where it fits, and tiles where it does not", () => {
    assert.equal(decide(request(2048 * MIB), 512, price).space.tag, "whole");
    assert.deepEqual(decide(request(300 * MIB), 512, price).space.val, { height: 512, width: 512, overlap: 64 });
    const leanest = { ...request(2048 * MIB), objective: "leanest" };
    assert.equal(decide(leanest, 512, price).space.val.height, 256);
});

test("tiles shrink until there is nothing smaller", () => {
    const sides = [];
    let plan = decide(request(300 * MIB), 512, price);
    const next = () => recover(request(300 * MIB), [{ plan, failure: { tag: "out-of-memory", val: MIB } }], 512);
    assert.throws(() => {
        for (;;) {
            plan = next();
            sides.push(plan.space.val.height);
        }
    });
    assert.deepEqual(sides, [256, 128]);
});
