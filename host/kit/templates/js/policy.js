// {{name}}: the way between the host and rules.js, where the decisions are made.
//
// A result that is an error is thrown, a variant is { tag, val }, names are in camelCase; wit/policy.wit says what each field means.

import { estimate } from "tilewright:policy/decoding-host@0.1.0";
import { decide, recover } from "./rules.js";

// What the user set; `configure` fills it in.
let settings = new Map();

export const lifecycle = {
    // What `tilewright policy inspect` shows. A setting's default says its type: flag, integer, number or text.
    describe() {
        const tile = {
            name: "tile",
            summary: "The side of a tile in pixels, where tiles are needed: 256 to 4096.",
            default: { tag: "integer", val: 512 },
        };
        return { name: "{{name}}", version: "0.1.0", summary: "Whole where it fits, tiles where it doesn't.", settings: [tile] };
    },

    // Every declared setting comes along. What is thrown keeps the policy from being put to work: name the setting, say what is allowed.
    configure(given) {
        settings = new Map(given.map(([name, value]) => [name, value.val]));
        const tile = settings.get("tile");
        if (tile < 256 || tile > 4096) throw "tile: allowed is 256 to 4096";
    },
};

export const decodingPolicy = {
    decide(request) {
        return decide(request, settings.get("tile"), price);
    },

    recover(request, attempts) {
        return recover(request, attempts, settings.get("tile"), price);
    },

    // Called with what was measured. Most policies need nothing here.
    learn(_request, _plan, _outcome) {},
};

/** What the host expects a plan to cost; nothing where it can't run it. */
function price(plan) {
    try {
        return estimate(plan);
    } catch {
        return undefined;
    }
}
