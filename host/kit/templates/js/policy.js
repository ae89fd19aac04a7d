// {{name}}: connects the host with rules.js and sample.js, which make the decisions.
//
// An error as a result is thrown; in a list it is { tag, val }, as a variant is. Names are in
// camelCase. wit/policy.wit explains every field.

import { estimate as estimateSamples } from "tilewright:policy/denoise-host@0.2.0";
import { estimate } from "tilewright:policy/vae-host@0.2.0";
import { decide } from "./rules.js";
import { decideSample } from "./sample.js";

// The user's settings; `configure` fills it in.
let settings = new Map();

export const lifecycle = {
    // Shown by `tilewright policy inspect`. A setting's default has its type: flag, integer, number
    // or text. The host decides a stage that is not listed.
    describe() {
        const tile = {
            name: "tile",
            summary: "The side of a tile in pixels, if tiles are needed: 256 to 4096.",
            default: { tag: "integer", val: 512 },
        };
        const summary = "Whole if it fits, tiles if it doesn't.";
        const stages = ["decode", "encode", "denoise"];
        return { name: "{{name}}", version: "0.1.0", summary, stages, settings: [tile] };
    },

    // Gets every declared setting. After a thrown text the policy is not put to work: name the
    // setting and the allowed values.
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

    // Called with the outcome of a plan. Most policies need nothing here.
    learn(_request, _plan, _outcome) {},
};

export const denoisePolicy = {
    decide(request, attempts) {
        return decideSample(request, attempts, priceSamples);
    },

    learn(_request, _plan, _outcome) {},
};

// Text encoders: left to the host, since `describe` does not list the stage.
export const textPolicy = {
    decide(_request, _attempts) {
        throw "it has no rules for text encoders";
    },

    learn(_request, _plan, _outcome) {},
};

/** The expected costs of plans, in their order; undefined for one that it can't run. */
function price(plans) {
    return estimate(plans).map((cost) => (cost.tag === "ok" ? cost.val : undefined));
}

function priceSamples(plans) {
    return estimateSamples(plans).map((cost) => (cost.tag === "ok" ? cost.val : undefined));
}
