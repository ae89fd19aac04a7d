// {{name}}: decodes whole where that fits into memory, and in tiles where it doesn't.
//
// The host asks tw_decide once per decode, and tw_recover after each plan that failed. What it answers is checked and clamped: a policy
// advises, and can't break anything. sdk/policy.wit says what each field means; sdk/tilewright.h has short names for them.

#include "tilewright.h"

// The smallest tile that tw_recover goes down to, in pixels of the decoded picture.
#define LEAST 128

// The knobs that a user may set, with their defaults. When tw_configure is called, `integer` (or flag, number, text) holds what was given.
static tw_setting settings[] = {
    {.name = "tile", .summary = "The side of a tile in pixels, where tiles are needed: 256 to 4096.", .type = TW_INTEGER, .integer = 512},
};
#define TILE ((uint32_t)settings[0].integer)

// What `tilewright policy inspect` shows.
const tw_description tw_describe = {
    .name = "{{name}}",
    .version = "0.1.0",
    .summary = "Whole where it fits, tiles where it doesn't.",
    .settings = settings,
    .setting_count = 1,
};

// A text is an error, which keeps the policy from being put to work: name the setting, say what is allowed.
const char *tw_configure(void) {
    return settings[0].integer < 256 || settings[0].integer > 4096 ? "tile: allowed is 256 to 4096" : TW_OK;
}

// The same plan in tiles that fade into each other over an eighth of their side. Tiles larger than the picture are the whole of it.
static tw_plan tiles(tw_plan plan, const tw_request *request, uint32_t side) {
    plan.space.tag = side >= request->height && side >= request->width ? TW_WHOLE : TW_BLENDED;
    plan.space.val.blended = (tw_tile){.height = side, .width = side, .overlap = side / 8};
    return plan;
}

const char *tw_decide(const tw_request *request, tw_plan *plan) {
    // The device: half the bytes where a probe found bf16 no slower. `request->device.arch` ("gfx1151") is for rules about one chip.
    tw_dtype dtype = tw_is_fast(request, TW_BF16) ? TW_BF16 : TW_F32;
    // The memory: what the user allows, and no more than is free now.
    uint64_t budget = request->memory_limit;
    if (budget > request->device.free_bytes) budget = request->device.free_bytes;

    // The host says what each plan would cost; one that it can't run is left out.
    tw_plan whole = tw_whole(dtype);
    tw_plan plans[] = {whole, tiles(whole, request, TILE), tiles(whole, request, TILE / 2)};
    uint64_t least = UINT64_MAX;
    const tw_plan *best = NULL;
    for (uint32_t i = 0; i < 3; i++) {
        tw_cost cost;
        if (!tw_estimate(&plans[i], &cost) || cost.peak_bytes > budget) continue;
        // The objective: what the user cares about. Balanced takes the first that fits: the fewer tiles, the nearer to the whole's output.
        uint64_t price = request->objective == TW_FASTEST ? cost.elapsed_ns
                       : request->objective == TW_LEANEST ? cost.peak_bytes
                                                          : i;
        if (best == NULL || price < least) {
            least = price;
            best = &plans[i];
        }
    }
    *plan = best == NULL ? plans[2] : *best;
    tw_because(plan, best == NULL ? "nothing is expected to fit: the smallest tiles" : "the best that fits");
    return TW_OK;
}

const char *tw_recover(const tw_request *request, const tw_attempt *attempts, size_t count, tw_plan *plan) {
    if (count == 0) return tw_decide(request, plan);
    const tw_attempt *last = &attempts[count - 1];
    *plan = last->plan;
    if (last->failure.tag == TW_NON_FINITE) {
        // NaN or infinity: a type with a wider range.
        if (plan->precision.val.uniform == TW_F32) return "not finite in f32";
        *plan = tw_whole(TW_F32);
        plan->space = last->plan.space;
        plan->time = last->plan.time;
        tw_because(plan, "overflowed: f32");
        return TW_OK;
    }
    // Too much memory: tiles of half the side.
    uint32_t side = plan->space.tag == TW_WHOLE ? TILE : plan->space.val.blended.height / 2;
    // An error is an honest answer: the host goes on with its own default.
    if (side < LEAST) return "no tiles below 128 pixels";
    *plan = tiles(*plan, request, side);
    tw_because(plan, "memory ran out: smaller tiles");
    return TW_OK;
}

// Called with what was measured. Most policies need nothing here.
void tw_learn(const tw_request *request, const tw_plan *plan, const tw_outcome *outcome) {
    (void)request, (void)plan, (void)outcome;
}
