// Decodes whole where that fits into memory, and in tiles where it doesn't. Plain functions, so that `npm test` runs them without WebAssembly.
//
// The host asks `decide` once per decode, and `recover` after each plan that failed. What they answer is checked and clamped: a policy
// advises, and can't break anything.

// The smallest tile, in pixels of the decoded picture.
const LEAST = 64;

/** How a request is to be run; `price` asks the host what a plan would cost. */
export function decide(request, tile, price) {
    // The device: half the bytes where a probe found bf16 no slower. `request.device.arch` ("gfx1151") is for rules about one chip.
    return best(request, request.device.fastDtypes.includes("bf16") ? ["bf16", "f32"] : ["f32"], tile, price);
}

/** How a request is to be run after the attempts failed, the latest last. */
export function recover(request, attempts, tile, price) {
    const { plan, failure } = attempts.at(-1);
    if (failure.tag === "non-finite") {
        // NaN or infinity: a type with a wider range.
        if (plan.precision.tag === "uniform" && plan.precision.val === "f32") throw "not finite in f32";
        return best(request, ["f32"], tile, price);
    }
    // Too much memory: of a clip fewer frames at once, else smaller tiles.
    const frames = plan.time.tag === "carried" ? Math.floor(plan.time.val / 2) : 0;
    if (frames >= request.model.temporalScale) {
        return { ...plan, time: { tag: "carried", val: frames }, reason: "memory ran out: fewer frames at once" };
    }
    // What is thrown is an honest answer: the host goes on with its own default.
    if (request.hints.some((hint) => hint.name === "clip.done")) throw "a clip that has begun keeps its tiles";
    const side = smaller(plan, request, tile);
    if (!side) throw `no tiles below ${LEAST} pixels`;
    return { ...tiles(plan, side), reason: `memory ran out: tiles of ${side}` };
}

/** What suits the user's objective best, of what fits into memory. */
function best(request, dtypes, tile, price) {
    // The memory: what the user allows, and no more than is free now.
    const budget = Math.min(request.memoryLimit, request.device.freeBytes);

    const plans = [quickest(dtypes, request, price)];
    for (let side; (side = smaller(plans.at(-1), request, tile)); ) plans.push(tiles(plans.at(-1), side));
    const priced = plans.map((plan) => ({ plan, cost: price(plan) }));
    const fitting = priced.filter(({ cost }) => cost && cost.peakBytes <= budget);
    if (fitting.length === 0) return { ...plans.at(-1), reason: "nothing is expected to fit: the smallest tiles" };

    // The objective: what the user cares about. Balanced takes the first that fits: the fewer tiles, the nearer to the whole's output.
    const least = (figure) => fitting.reduce((best, next) => (figure(next.cost) < figure(best.cost) ? next : best));
    const chosen = {
        fastest: () => least((cost) => cost.elapsedNs),
        leanest: () => least((cost) => cost.peakBytes),
        balanced: () => fitting[0],
    }[request.objective]();
    return { ...chosen.plan, reason: `the best that fits, ${chosen.cost.tiles} tiles` };
}

/** The quickest of these types and both memory orders, by the host's word: what is quickest whole is so in tiles, too. */
function quickest(dtypes, request, price) {
    const layouts = ["channels-first", "channels-last"];
    const plans = dtypes.flatMap((dtype) => layouts.map((layout) => whole(dtype, layout, request)));
    const priced = plans.map((plan) => ({ plan, elapsed: price(plan)?.elapsedNs }));
    return priced.reduce((best, next) => (next.elapsed < best.elapsed || best.elapsed === undefined ? next : best)).plan;
}

/** The whole picture at once, or of a clip a few frames, with what the network remembers of the past carried along. */
function whole(dtype, layout, request) {
    const clip = { tag: "carried", val: 4 * request.model.temporalScale };
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

/** The same plan in tiles that fade into each other over an eighth of their side. */
function tiles(plan, side) {
    const tile = { height: side, width: side, overlap: Math.floor(side / 8) };
    return { ...plan, space: { tag: "blended", val: tile } };
}

/** The next smaller tile than the plan's: the user's side, or a half of it, a quarter, and so on; nothing where that is too small. */
function smaller(plan, request, tile) {
    const than = plan.space.tag === "whole" ? Math.max(request.height, request.width) : plan.space.val.height;
    let side = tile;
    while (side >= than) side = Math.floor(side / 2);
    return side >= LEAST ? side : undefined;
}
