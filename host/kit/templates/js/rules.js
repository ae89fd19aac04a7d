// Decodes and encodes whole if that fits into memory, in exact bands if it doesn't, and in tiles if
// nothing else fits. Plain functions, so that `npm test` runs them without WebAssembly.
//
// The host asks `decide` for a plan, and again after each plan that failed. It checks and clamps
// the answer: a policy advises, and can't break anything.

import { held } from "./sample.js";

// The smallest tile, in pixels of the decoded picture.
const LEAST = 64;

/**
 * A plan for a request after its attempts failed, the latest last; at first there are none.
 * `request.direction` is decode or encode; `price` asks the host what plans would cost.
 */
export function decide(request, attempts, tile, price) {
    // The device: half the bytes if a probe found bf16 no slower. `request.device.arch` ("gfx1151")
    // is for rules about one chip.
    let dtypes = request.device.fastDtypes.includes("bf16") ? ["bf16", "f32"] : ["f32"];
    // The user's limit, which goes by what is free if none was given.
    let budget = request.limitBytes;
    for (const { plan, failure } of attempts) {
        if (failure.tag === "non-finite") {
            // NaN or infinity: a type with a wider range.
            if (plan.precision.tag === "uniform" && plan.precision.val === "f32") throw "not finite in f32";
            dtypes = ["f32"];
        } else {
            // Too much memory, and more than expected: the next plan has to be expected well below.
            const [cost] = price([plan]);
            budget = Math.min(budget, cost ? held(cost) * 0.7 : 0);
        }
    }
    // A thrown text is an honest answer: the host then uses its own plan.
    if (attempts.length > 0 && request.underWay) throw "what a clip under way may change is best known to the host";
    const plans = candidates(request, quickest(dtypes, request, price), tile);
    const plan = best(request, plans, budget, price);
    if (plan) return plan;
    if (attempts.length > 0) throw "nothing smaller is expected to fit";
    return { ...plans.at(-1), reason: "nothing is expected to fit: the smallest tiles" };
}

/** Plans with the types and memory order of the whole picture, the largest parts first. */
function candidates(request, whole, tile) {
    const sides = [];
    for (let side = Math.max(request.height, request.width); (side = smaller(side, tile)); ) sides.push(side);
    // Bands give the whole picture's output, where the host can run them.
    const heights = request.capabilities.exact ? sides.filter((side) => side < request.height) : [];
    const exact = [whole, ...heights.map((height) => bands(whole, height, request))];
    if (request.frames <= 1) return [...exact, ...sides.map((side) => tiles(whole, side))];
    // A clip also gets plans with as many frames as the model takes at once, and fewer in the smallest bands.
    const frames = (plan, val) => ({ ...plan, time: { tag: "carried", val } });
    const scale = request.temporalScale;
    const few = [2, 1].filter((few) => few < scale).map((few) => frames(exact.at(-1), few));
    const tiled = sides.map((side) => tiles(frames(whole, scale), side));
    return [...exact.flatMap((plan) => [plan, frames(plan, scale)]), ...few, ...tiled];
}

/** The best plan by the user's objective, of those that are expected to fit; undefined if none does. */
function best(request, plans, budget, price) {
    const costs = price(plans);
    const priced = plans.map((plan, number) => ({ plan, cost: costs[number] }));
    let fitting = priced.filter(({ cost }) => cost && held(cost) <= budget);
    if (fitting.length === 0) return undefined;
    // Tiles are cross-faded: unless the user allows that, they are the last resort.
    const unblended = fitting.filter(({ plan }) => plan.space.tag !== "blended");
    if (unblended.length > 0 && !request.allowsBlended) fitting = unblended;

    // Balanced takes the first that fits: larger parts are computed faster.
    const least = (figure) => fitting.reduce((best, next) => (figure(next.cost) < figure(best.cost) ? next : best));
    const chosen = {
        fastest: () => least((cost) => cost.elapsedNs),
        leanest: () => least(held),
        balanced: () => fitting[0],
    }[request.objective]();
    return { ...chosen.plan, reason: `the best that fits, ${chosen.cost.tiles} tiles` };
}

/**
 * The fastest of these types and both memory orders, by the host's prices; it is the fastest in
 * tiles, too.
 */
function quickest(dtypes, request, price) {
    const layouts = ["channels-first", "channels-last"];
    const plans = dtypes.flatMap((dtype) => layouts.map((layout) => whole(dtype, layout, request)));
    const costs = price(plans);
    const priced = plans.map((plan, number) => ({ plan, elapsed: costs[number]?.elapsedNs }));
    return priced.reduce((best, next) => (next.elapsed < best.elapsed || best.elapsed === undefined ? next : best)).plan;
}

/** The whole picture at once, or a few frames of a clip, with the causal cache carried. */
function whole(dtype, layout, request) {
    const clip = { tag: "carried", val: 4 * request.temporalScale };
    return {
        space: { tag: "whole" },
        time: request.frames > 1 ? clip : { tag: "whole" },
        batch: 1,
        precision: { tag: "uniform", val: dtype },
        layout,
        release: "at-end",
        offload: false,
        prefetch: 0,
        options: [],
        reason: "",
    };
}

/** The same plan in tiles that are cross-faded over an eighth of their side. */
function tiles(plan, side) {
    const tile = { height: side, width: side, overlap: Math.floor(side / 8) };
    return { ...plan, space: { tag: "blended", val: tile } };
}

/** The same plan in bands that give the whole picture's output. */
function bands(plan, height, request) {
    return { ...plan, space: { tag: "exact", val: { height, width: request.width, overlap: 0 } } };
}

/**
 * The next smaller tile than this many pixels: the user's side, half of it, a quarter, and so on;
 * undefined if that is too small.
 */
function smaller(than, tile) {
    let side = tile;
    while (side >= than) side = Math.floor(side / 2);
    return side >= LEAST ? side : undefined;
}
