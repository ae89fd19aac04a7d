// Samples: everything on the device if that fits into memory, streamed and divided if it doesn't.
// Plain functions, so that `npm test` runs them without WebAssembly.

/**
 * A plan for a sample after its attempts failed, the latest last; at first there are none. `price`
 * asks the host what plans would cost.
 */
export function decideSample(request, attempts, price) {
    // The device: half the bytes if a probe found bf16 no slower. Elsewhere a narrow type is for
    // what fits in no other way, since it alone changes the result.
    const isNarrow = request.device.backend !== "cpu" && request.device.fastDtypes.includes("bf16");
    let dtypes = isNarrow ? ["bf16"] : ["f32", "bf16"];
    let budget = request.limitBytes;
    for (const { plan, failure } of attempts) {
        if (failure.tag === "non-finite") {
            // NaN or infinity: a type with a wider range.
            if (plan.precision.val === "f32") throw "not finite in f32";
            dtypes = ["f32"];
        } else {
            // Too much memory: the next plan has to be expected to hold less.
            const [cost] = price([plan]);
            if (cost) budget = Math.min(budget, held(cost) - 1);
        }
    }
    for (const dtype of dtypes) {
        const best = bestPlan(request, dtype, budget, price);
        if (best) return best;
    }
    // A thrown text is an honest answer: the host then uses its own plan.
    throw attempts.length ? "nothing smaller is left" : "nothing is expected to fit";
}

/**
 * The plan in a dtype that serves the user's objective best, of those that hold no more than the
 * budget, in bytes.
 */
function bestPlan(request, dtype, budget, price) {
    const plans = list(request, dtype);
    const costs = price(plans);
    const priced = plans.map((plan, number) => ({ plan, cost: costs[number] }));
    const fitting = priced.filter(({ cost }) => cost && held(cost) <= budget);
    if (fitting.length === 0) return undefined;
    const figure = request.objective === "leanest" ? held : (cost) => cost.stepNs;
    const best = fitting.reduce((best, next) => (figure(next.cost) < figure(best.cost) ? next : best));
    return { ...best.plan, reason: "the best that fits" };
}

/** Bytes that are held at once, which the limit is compared with. */
export function held({ memory }) {
    return memory.peakBytes + memory.weightsBytes;
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
        options: [],
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
