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
    const model = { family: "flux", temporalScale: 1 };
    return { model, device, batch: 1, frames: 1, height: 1024, width: 1024, memoryLimit, objective: "balanced", hints: [] };
}

test("whole where it fits, and tiles where it does not", () => {
    assert.equal(decide(request(2048 * MIB), 512, price).space.tag, "whole");
    assert.deepEqual(decide(request(300 * MIB), 512, price).space.val, { height: 512, width: 512, overlap: 64 });
    const leanest = { ...request(2048 * MIB), objective: "leanest" };
    assert.equal(decide(leanest, 512, price).space.val.height, 64);
});

test("the quickest memory order is taken", () => {
    const lastIsQuick = (plan) => ({ ...price(plan), elapsedNs: plan.layout === "channels-last" ? 1 : 2 });
    assert.equal(decide(request(2048 * MIB), 512, lastIsQuick).layout, "channels-last");
    assert.equal(decide(request(2048 * MIB), 512, (plan) => (plan.layout === "channels-last" ? price(plan) : undefined)).layout, "channels-last");
});

test("tiles shrink until there is nothing smaller", () => {
    const sides = [];
    let plan = decide(request(300 * MIB), 512, price);
    const next = () => recover(request(300 * MIB), [{ plan, failure: { tag: "out-of-memory", val: MIB } }], 512, price);
    assert.throws(() => {
        for (;;) {
            plan = next();
            sides.push(plan.space.val.height);
        }
    });
    assert.deepEqual(sides, [256, 128, 64]);
});

test("a clip is taken in fewer frames at once", () => {
    const clip = { ...request(2048 * MIB), frames: 81, model: { temporalScale: 4 } };
    const plan = decide(clip, 512, price);
    assert.deepEqual([plan.space.tag, plan.time], ["whole", { tag: "carried", val: 16 }]);
    const failure = { tag: "over-limit", val: 4096 * MIB };
    assert.equal(recover(clip, [{ plan, failure }], 512, price).time.val, 8);
});
