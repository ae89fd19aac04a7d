// {{name}}: the way between the host and rules.js, where the decisions are made.
//
// A result that is an error is thrown, in a list it is { tag, val } as a variant is; names are in
// camelCase. wit/policy.wit says what each field means.

import { estimate } from "tilewright:policy/vae-host@0.2.0";
import { decide } from "./rules.js";

// The user's settings; `configure` fills it in.
let settings = new Map();

export const lifecycle = {
    // Shown by `tilewright policy inspect`. A setting's default says its type: flag, integer, number
    // or text. A stage that is not listed is the host's to decide.
    describe() {
        const tile = {
            name: "tile",
            summary: "The side of a tile in pixels, if tiles are needed: 256 to 4096.",
            default: { tag: "integer", val: 512 },
        };
        const summary = "Whole if it fits, tiles if it doesn't.";
        return { name: "{{name}}", version: "0.1.0", summary, stages: ["decode", "encode"], settings: [tile] };
    },

    // Every declared setting comes along. A text that is thrown keeps the policy from being put to
    // work: name the setting, say what is allowed.
    configure(given) {
        settings = new Map(given.map(([name, value]) => [name, value.val]));
        const tile = settings.get("tile");
        if (tile < 256 || tile > 4096) throw "tile: allowed is 256 to 4096";
    },
};

export const vaePolicy = {
    decide(request, attempts) {
        return decide(request, attempts, settings.get("tile"), price);
    },

    // Called with what was measured. Most policies need nothing here.
    learn(_request, _plan, _outcome) {},
};

/** The costs that the host expects of plans, in their order; undefined for one that it can't run. */
function price(plans) {
    return estimate(plans).map((cost) => (cost.tag === "ok" ? cost.val : undefined));
}
