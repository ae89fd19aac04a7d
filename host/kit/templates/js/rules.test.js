// Runs natively by `npm test` (node --test): no WebAssembly, and a stub of the host.

import assert from "node:assert";
import { test } from "node:test";

import { decide } from "./rules.js";
import { decideSample } from "./sample.js";

const MIB = 2 ** 20;

/** A host for which a pixel of a tile costs a kilobyte, in sixteen frames at once. */
function cost(plan) {
    const side = plan.space.tag === "whole" ? 1024 : plan.space.val.height;
    const frames = plan.time.tag === "carried" ? plan.time.val : 16;
    const memory = { peakBytes: side * side * frames * 64, weightsBytes: 0 };
    return { memory, elapsedNs: 1000, tiles: (1024 / side) ** 2, shapes: 1, rework: 1 };
}

const price = (plans) => plans.map(cost);

/** A picture of 1024×1024 with this much memory. */
function request(limitBytes) {
    const device = { backend: "rocm", arch: "gfx1151", freeBytes: 65536 * MIB, fastDtypes: [] };
    const extents = { batch: 1, frames: 1, height: 1024, width: 1024, spatialScale: 8, temporalScale: 1 };
    const wishes = { objective: "balanced", allowsBlended: false };
    const capabilities = { exact: true };
    return { direction: "decode", model: { family: "flux" }, device, limitBytes, ...wishes, ...extents, capabilities, hints: [] };
}

/** The same, on a host that can't run exact bands. */
const withoutBands = (limitBytes) => ({ ...request(limitBytes), capabilities: { exact: false } });

test("whole if it fits, and tiles if it does not", () => {
    assert.equal(decide(request(2048 * MIB), [], 512, price).space.tag, "whole");
    const bands = { tag: "exact", val: { height: 512, width: 1024, overlap: 0 } };
    assert.deepEqual(decide(request(300 * MIB), [], 512, price).space, bands);
    // Tiles are the last resort, or allowed.
    const tile = { tag: "blended", val: { height: 512, width: 512, overlap: 64 } };
    assert.deepEqual(decide(withoutBands(300 * MIB), [], 512, price).space, tile);
    const leanest = { ...withoutBands(2048 * MIB), objective: "leanest" };
    assert.equal(decide(leanest, [], 512, price).space.tag, "whole");
    assert.equal(decide({ ...leanest, allowsBlended: true }, [], 512, price).space.val.height, 64);
});

test("the quickest memory order is taken", () => {
    const isLast = (plan) => plan.layout === "channels-last";
    const lastIsQuick = (plans) => plans.map((plan) => ({ ...cost(plan), elapsedNs: isLast(plan) ? 1 : 2 }));
    assert.equal(decide(request(2048 * MIB), [], 512, lastIsQuick).layout, "channels-last");
    const onlyLast = (plans) => plans.map((plan) => (isLast(plan) ? cost(plan) : undefined));
    assert.equal(decide(request(2048 * MIB), [], 512, onlyLast).layout, "channels-last");
});

test("tiles shrink until there is nothing smaller", () => {
    const sides = [];
    let plan = decide(withoutBands(300 * MIB), [], 512, price);
    const next = () => decide(withoutBands(300 * MIB), [{ plan, failure: { tag: "out-of-memory", val: MIB } }], 512, price);
    assert.throws(() => {
        for (;;) {
            plan = next();
            sides.push(plan.space.val.height);
        }
    });
    assert.deepEqual(sides, [256, 128, 64]);
});

test("a clip is taken in fewer frames at once", () => {
    const clip = { ...request(2048 * MIB), frames: 81, temporalScale: 4 };
    const plan = decide(clip, [], 512, price);
    assert.deepEqual([plan.space.tag, plan.time], ["whole", { tag: "carried", val: 16 }]);
    const failure = { tag: "over-limit", val: 4096 * MIB };
    assert.equal(decide(clip, [{ plan, failure }], 512, price).time.val, 4);
    // Frames get fewer before anything is blended.
    const tight = decide({ ...clip, limitBytes: MIB }, [], 512, price);
    assert.deepEqual([tight.space.tag, tight.space.val.height, tight.time.val], ["exact", 64, 4]);
});

test("samples are streamed if their weights do not fit", () => {
    const price = (plans) =>
        plans.map(({ residency, guidance, samples }) => ({
            memory: {
                peakBytes: (guidance === "together" ? 200 : samples === 1 ? 50 : 100) * MIB,
                weightsBytes: { resident: 1000, streamed: 100, host: 50 }[residency.tag] * MIB,
            },
            movedBytes: 0,
            stepNs: { resident: 1, streamed: 2, host: 3 }[residency.tag] * 1000 - (guidance === "together" ? 1 : 0),
        }));
    const device = { backend: "rocm", arch: "gfx1151", fastDtypes: ["bf16"] };
    const sample = (limitBytes) => ({ device, limitBytes, objective: "balanced", batch: 2, passes: 2, steps: 20 });
    const roomy = decideSample(sample(2048 * MIB), [], price);
    assert.deepEqual([roomy.residency.tag, roomy.guidance, roomy.precision.val], ["resident", "together", "bf16"]);
    const tight = decideSample(sample(300 * MIB), [], price);
    assert.equal(tight.residency.tag, "streamed");
    const failure = { tag: "out-of-memory", val: MIB };
    assert.equal(decideSample(sample(300 * MIB), [{ plan: tight, failure }], price).residency.tag, "host");
    const overflow = { tag: "non-finite", val: 3 };
    assert.equal(decideSample(sample(2048 * MIB), [{ plan: roomy, failure: overflow }], price).precision.val, "f32");
});

test("a narrow type is for what fits in no other way", () => {
    const price = (plans) =>
        plans.map(({ precision }) => ({
            memory: { peakBytes: (precision.val === "f32" ? 4 : 2) * MIB, weightsBytes: 0 },
            movedBytes: 0,
            stepNs: precision.val === "f32" ? 4 : 2,
        }));
    const device = { backend: "cpu", arch: "x86_v3", fastDtypes: ["f32"] };
    const sample = (limitBytes) => ({ device, limitBytes, objective: "fastest", batch: 1, passes: 1, steps: 20 });
    assert.equal(decideSample(sample(4 * MIB), [], price).precision.val, "f32");
    const narrow = decideSample(sample(3 * MIB), [], price);
    assert.equal(narrow.precision.val, "bf16");
    const overflowed = [{ plan: narrow, failure: { tag: "non-finite", val: 3 } }];
    assert.throws(() => decideSample(sample(3 * MIB), overflowed, price), /nothing/);
});
