// Decodes and encodes whole if that fits into memory, in exact bands if it doesn't, and in tiles if
// nothing else fits. Plain functions, so that `npm test` runs them without WebAssembly.
//
// The host asks `decide` for a plan, and again after each plan that failed. It checks and clamps
// the answer: a policy advises, and can't break anything.

// The smallest tile, in pixels of the decoded picture.
const LEAST = 64;

/**
 * A plan for a request after its attempts failed, the latest last; at first there are none.
 * `request.direction` is decode or encode; `price` asks the host what plans would cost.
 */
export function decide(request, attempts, tile, price) {
    if (attempts.length === 0) {
        // The device: half the bytes if a probe found bf16 no slower. `request.device.arch`
        // ("gfx1151") is for rules about one chip.
        return best(request, request.device.fastDtypes.includes("bf16") ? ["bf16", "f32"] : ["f32"], tile, price);
    }
    const { plan, failure } = attempts.at(-1);
    if (failure.tag === "non-finite") {
        // NaN or infinity: a type with a wider range.
        if (plan.precision.tag === "uniform" && plan.precision.val === "f32") throw "not finite in f32";
        return best(request, ["f32"], tile, price);
    }
    // Too much memory: of a clip fewer frames at once, else smaller tiles.
    const frames = plan.time.tag === "carried" ? Math.floor(plan.time.val / 2) : 0;
    if (frames >= request.temporalScale) {
        return { ...plan, time: { tag: "carried", val: frames }, reason: "memory ran out: fewer frames at once" };
    }
    // A thrown text is an honest answer: the host then uses its own plan.
    if (request.underWay) throw "a clip that has begun keeps its tiles";
    const side = smaller(plan, request, tile);
    if (!side) throw `no tiles below ${LEAST} pixels`;
    return { ...tiles(plan, side), reason: `memory ran out: tiles of ${side}` };
}

/** The best plan by the user's objective, of those that fit into memory. */
function best(request, dtypes, tile, price) {
    // The memory limit of the user, and at most the memory that is free now.
    const budget = Math.min(request.memory.limitBytes, request.device.freeBytes);

    const whole = quickest(dtypes, request, price);
    const tiled = [whole];
    for (let side; (side = smaller(tiled.at(-1), request, tile)); ) tiled.push(tiles(tiled.at(-1), side));
    // Bands give the whole picture's output, where the host can run them.
    const heights = request.capabilities.exact ? tiled.slice(1).map((plan) => plan.space.val.height) : [];
    const bands = heights.filter((height) => height < request.height).map((height) => exact(whole, height, request));
    const plans = [whole, ...bands, ...tiled.slice(1)];
    const costs = price(plans);
    const priced = plans.map((plan, number) => ({ plan, cost: costs[number] }));
    let fitting = priced.filter(({ cost }) => cost && cost.peakBytes <= budget);
    if (fitting.length === 0) return { ...plans.at(-1), reason: "nothing is expected to fit: the smallest tiles" };
    // Tiles are cross-faded: unless the user allows that, they are the last resort.
    const unblended = fitting.filter(({ plan }) => plan.space.tag !== "blended");
    if (unblended.length > 0 && !request.allowsBlended) fitting = unblended;

    // The user's objective. Balanced takes the first that fits: larger parts are computed faster.
    const least = (figure) => fitting.reduce((best, next) => (figure(next.cost) < figure(best.cost) ? next : best));
    const chosen = {
        fastest: () => least((cost) => cost.elapsedNs),
        leanest: () => least((cost) => cost.peakBytes),
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
        reason: "",
    };
}

/** The same plan in tiles that are cross-faded over an eighth of their side. */
function tiles(plan, side) {
    const tile = { height: side, width: side, overlap: Math.floor(side / 8) };
    return { ...plan, space: { tag: "blended", val: tile } };
}

/** The same plan in bands that give the whole picture's output. */
function exact(plan, height, request) {
    return { ...plan, space: { tag: "exact", val: { height, width: request.width, overlap: 0 } } };
}

/**
 * The next smaller tile than the plan's: the user's side, half of it, a quarter, and so on; undefined
 * if that is too small.
 */
function smaller(plan, request, tile) {
    const than = plan.space.tag === "whole" ? Math.max(request.height, request.width) : plan.space.val.height;
    let side = tile;
    while (side >= than) side = Math.floor(side / 2);
    return side >= LEAST ? side : undefined;
}
