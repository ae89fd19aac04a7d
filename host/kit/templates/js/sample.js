// Samples: everything on the device if that fits into memory, streamed and divided if it doesn't.
// Plain functions, so that `npm test` runs them without WebAssembly.

/**
 * A plan for a sample after its attempts failed, the latest last; at first there are none. `price`
 * asks the host what plans would cost.
 */
export function decideSample(request, attempts, price) {
    // The device: half the bytes if a probe found bf16 no slower.
    const isFast = request.device.backend !== "cpu" && request.device.fastDtypes.includes("bf16");
    let dtype = isFast ? "bf16" : "f32";
    let budget = request.limitBytes;
    for (const { plan, failure } of attempts) {
        if (failure.tag === "non-finite") {
            // NaN or infinity: a type with a wider range.
            if (plan.precision.val === "f32") throw "not finite in f32";
            dtype = "f32";
        } else {
            // Too much memory: the next plan has to be expected to hold less.
            const [cost] = price([plan]);
            if (cost) budget = Math.min(budget, held(cost) - 1);
        }
    }
    const plans = list(request, dtype);
    const costs = price(plans);
    const priced = plans.map((plan, number) => ({ plan, cost: costs[number] }));
    const fitting = priced.filter(({ cost }) => cost && held(cost) <= budget);
    // A thrown text is an honest answer: the host then uses its own plan.
    if (fitting.length === 0) throw attempts.length ? "nothing smaller is left" : "nothing is expected to fit";

    // The user's objective.
    const figure = request.objective === "leanest" ? held : (cost) => cost.stepNs;
    const best = fitting.reduce((best, next) => (figure(next.cost) < figure(best.cost) ? next : best));
    return { ...best.plan, reason: "the best that fits" };
}

/** Bytes that are held at once, which the limit is compared with. */
function held(cost) {
    return cost.peakBytes + cost.weightsBytes;
}

/** Plans that each hold less than the one before. */
function list(request, dtype) {
    const plain = {
        precision: { tag: "uniform", val: dtype },
        products: "precision",
        weights: "packed",
        residency: { tag: "resident" },
        attention: { tag: "fused" },
        guidance: "in-turn",
        samples: undefined,
        feedForward: 1,
        reuse: { tag: "off" },
        release: "keep",
        reason: "",
    };
    return [
        // The passes of guidance together, where there are two.
        { ...plain, guidance: request.passes > 1 ? "together" : "in-turn" },
        plain,
        // Blocks of weights come while the one before computes.
        { ...plain, residency: { tag: "streamed", val: 1 } },
        // Each block comes when its turn does, and samples go one by one.
        { ...plain, residency: { tag: "host" }, samples: request.batch > 1 ? 1 : undefined, feedForward: 8 },
    ];
}
