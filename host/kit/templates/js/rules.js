// Decodes whole where that fits into memory, and in tiles where it doesn't. Plain functions, so that `npm test` runs them without WebAssembly.
//
// The host asks `decide` once per decode, and `recover` after each plan that failed. What they answer is checked and clamped: a policy
// advises, and can't break anything.

// The smallest tile that `recover` goes down to, in pixels of the decoded picture.
const LEAST = 128;

/** How a request is to be run; `price` asks the host what a plan would cost. */
export function decide(request, tile, price) {
    // The device: half the bytes where a probe found bf16 no slower. `request.device.arch` ("gfx1151") is for rules about one chip.
    const dtype = request.device.fastDtypes.includes("bf16") ? "bf16" : "f32";
    // The memory: what the user allows, and no more than is free now.
    const budget = Math.min(request.memoryLimit, request.device.freeBytes);

    const plans = [whole(dtype), ...[tile, Math.floor(tile / 2)].map((side) => tiles(whole(dtype), request, side))];
    const priced = plans.map((plan) => ({ plan, cost: price(plan) }));
    const fitting = priced.filter(({ cost }) => cost && cost.peakBytes <= budget);
    if (fitting.length === 0) return { ...plans[2], reason: "nothing is expected to fit: the smallest tiles" };

    // The objective: what the user cares about. Balanced takes the first that fits: the fewer tiles, the nearer to the whole's output.
    const least = (figure) => fitting.reduce((best, next) => (figure(next.cost) < figure(best.cost) ? next : best));
    const best = {
        fastest: () => least((cost) => cost.elapsedNs),
        leanest: () => least((cost) => cost.peakBytes),
        balanced: () => fitting[0],
    }[request.objective]();
    return { ...best.plan, reason: `the best that fits, ${best.cost.tiles} tiles` };
}

/** How a request is to be run after the attempts failed, the latest last. */
export function recover(request, attempts, tile) {
    const { plan, failure } = attempts[attempts.length - 1];
    if (failure.tag === "non-finite") {
        // NaN or infinity: a type with a wider range.
        if (plan.precision.tag === "uniform" && plan.precision.val === "f32") throw "not finite in f32";
        return { ...plan, precision: { tag: "uniform", val: "f32" }, reason: "overflowed: f32" };
    }
    // Too much memory: tiles of half the side.
    const side = plan.space.tag === "whole" ? tile : Math.floor(plan.space.val.height / 2);
    // An error is an honest answer: the host goes on with its own default.
    if (side < LEAST) throw `no tiles below ${LEAST} pixels`;
    return { ...tiles(plan, request, side), reason: `memory ran out: tiles of ${side}` };
}

/** The whole picture at once: a start to change from. */
function whole(dtype) {
    return {
        space: { tag: "whole" },
        time: { tag: "whole" },
        batch: 1,
        precision: { tag: "uniform", val: dtype },
        layout: "channels-first",
        release: "at-end",
        offload: false,
        prefetch: 0,
        reason: "",
    };
}

/** The same plan in tiles that fade into each other over an eighth of their side; the whole, where one tile covers it. */
function tiles(plan, request, side) {
    const covers = side >= request.height && side >= request.width;
    const tile = { height: side, width: side, overlap: Math.floor(side / 8) };
    return { ...plan, space: covers ? { tag: "whole" } : { tag: "blended", val: tile } };
}
