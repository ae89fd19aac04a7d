// {{name}}: decodes and encodes whole if that fits into memory, in exact bands if it doesn't, and
// in tiles if nothing else fits. Samples are in sample.c.
//
// The host asks tw_decide for a plan, and again after each plan that failed. It checks and clamps
// the answer: a policy advises, and can't break anything. sdk/policy.wit explains every field;
// sdk/tilewright.h has short names for them.

#include "tilewright.h"

// The smallest tile, in pixels of the decoded picture.
#define LEAST 64

// The sides of tiles, the largest first: 4096 to LEAST.
#define SIDES 7
_Static_assert(LEAST << (SIDES - 1) == 4096, "SIDES goes with LEAST and the largest tile that tw_configure takes");

// The most plans to ask the price of: whole and bands, for a clip each with fewer frames too, the
// smallest bands twice more, and tiles.
#define PLANS (2 * (1 + SIDES) + 2 + SIDES)

// The settings that a user may change, with their defaults. When tw_configure is called, `integer`
// (or flag, number, text) holds the user's value.
static tw_setting settings[] = {
    {.name = "tile", .summary = "The side of a tile in pixels, if tiles are needed: 256 to 4096.", .type = TW_INTEGER, .integer = 512},
};
#define TILE ((uint32_t)settings[0].integer)

// The stages that it answers; the host decides a stage that is not listed.
static const tw_stage stages[] = {TW_STAGE_DECODE, TW_STAGE_ENCODE, TW_STAGE_DENOISE};

// Shown by `tilewright policy inspect`.
const tw_description tw_describe = {
    .name = "{{name}}",
    .version = "0.1.0",
    .summary = "Whole if it fits, tiles if it doesn't.",
    .stages = stages,
    .stage_count = 3,
    .settings = settings,
    .setting_count = 1,
};

// A text is an error, after which the policy is not put to work: name the setting and the allowed
// values.
const char *tw_configure(void) {
    return settings[0].integer < 256 || settings[0].integer > 4096 ? "tile: allowed is 256 to 4096" : TW_OK;
}

// The longer side of the picture.
static uint32_t longest(const tw_request *request) {
    return request->height > request->width ? request->height : request->width;
}

// The next smaller tile than this many pixels: the user's side, half of it, a quarter, and so on; 0
// if that is too small.
static uint32_t smaller(uint32_t than) {
    uint32_t side = TILE;
    while (side >= than && side >= LEAST) side /= 2;
    return side < LEAST ? 0 : side;
}

// The same plan in tiles that are cross-faded over an eighth of their side; with a side of 0,
// whole.
static tw_plan tiles(tw_plan plan, uint32_t side) {
    plan.space.tag = side == 0 ? TW_WHOLE : TW_BLENDED;
    plan.space.val.blended = (tw_tile){.height = side, .width = side, .overlap = side / 8};
    return plan;
}

// The same plan in bands of this height, which give the whole picture's output.
static tw_plan bands(tw_plan plan, const tw_request *request, uint32_t height) {
    plan.space.tag = TW_EXACT;
    plan.space.val.exact = (tw_tile){.height = height, .width = request->width};
    return plan;
}

// The whole picture, or a few frames of a clip at once, in one type and memory order.
static tw_plan whole(const tw_request *request, tw_dtype dtype, uint8_t layout) {
    tw_plan plan = tw_whole(dtype);
    plan.layout = layout;
    if (request->frames > 1) {
        // The causal cache is carried.
        plan.time.tag = TW_TIME_CARRIED;
        plan.time.val.carried = 4 * request->temporal_scale;
    }
    return plan;
}

// The fastest of both memory orders, and of the type and f32, by the host's prices; it is the
// fastest in tiles, too.
static tw_plan quickest(const tw_request *request, tw_dtype dtype) {
    tw_plan plans[4];
    tw_cost costs[4];
    size_t count = dtype == TW_F32 ? 2 : 4, best = 0;
    for (size_t i = 0; i < count; i++)
        plans[i] = whole(request, i < 2 ? dtype : TW_F32, i % 2 == 0 ? TW_CHANNELS_FIRST : TW_CHANNELS_LAST);
    tw_estimate(plans, count, costs);
    for (size_t i = 1; i < count; i++)
        if (costs[i].elapsed_ns < costs[best].elapsed_ns) best = i;
    return plans[best];
}

// The same plan with fewer frames of a clip at once.
static tw_plan carried(tw_plan plan, uint32_t frames) {
    plan.time.val.carried = frames;
    return plan;
}

// Plans with the types and memory order of the whole picture, the largest parts first: at most
// PLANS. Gives their count.
static size_t candidates(const tw_request *request, tw_plan whole, tw_plan *plans) {
    size_t count = 0;
    uint32_t scale = request->temporal_scale;
    bool is_clip = request->frames > 1;
    tw_plan exact = whole;
    plans[count++] = whole;
    if (is_clip) plans[count++] = carried(whole, scale);
    // Bands give the whole picture's output, where the host can run them.
    for (uint32_t side = smaller(longest(request)); request->capabilities.exact && side != 0; side = smaller(side)) {
        if (side >= request->height) continue;
        plans[count++] = exact = bands(whole, request, side);
        // A clip also gets plans with as many frames as the model takes at once.
        if (is_clip) plans[count++] = carried(exact, scale);
    }
    // And fewer in the smallest bands.
    for (uint32_t few = 2; is_clip && few != 0; few--)
        if (few < scale) plans[count++] = carried(exact, few);
    if (is_clip) whole = carried(whole, scale);
    for (uint32_t side = smaller(longest(request)); side != 0; side = smaller(side)) plans[count++] = tiles(whole, side);
    return count;
}

// The number of the best plan by the user's objective, of those that are expected to fit into
// memory; `count` if none is.
static size_t best(const tw_request *request, const tw_plan *plans, size_t count, uint64_t budget) {
    // One question for all plans takes less time than one for each.
    tw_cost costs[PLANS];
    tw_estimate(plans, count, costs);
    size_t best = count;
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        if (tw_held(&costs[i].memory) > budget) continue;
        // Tiles are cross-faded: unless the user allows that, they are the last resort.
        if (plans[i].space.tag == TW_BLENDED && !request->allows_blended && best < count && plans[best].space.tag != TW_BLENDED) continue;
        // Balanced takes the first that fits: larger parts are computed faster.
        uint64_t price = request->objective == TW_FASTEST ? costs[i].elapsed_ns
                       : request->objective == TW_LEANEST ? tw_held(&costs[i].memory)
                                                          : i;
        if (price < least) {
            least = price;
            best = i;
        }
    }
    return best;
}

// A plan for a request after `count` attempts failed, the latest last; at first there are none.
// `request->direction` is decode or encode.
const char *tw_decide(const tw_request *request, const tw_attempt *attempts, size_t count, tw_plan *plan) {
    // The device: half the bytes if a probe found bf16 no slower. `request->device.arch` ("gfx1151")
    // is for rules about one chip.
    tw_dtype dtype = tw_is_fast(request, TW_BF16) ? TW_BF16 : TW_F32;
    // The user's limit, which goes by what is free if none was given.
    uint64_t budget = request->limit_bytes;
    for (size_t i = 0; i < count; i++) {
        const tw_attempt *attempt = &attempts[i];
        if (attempt->failure.tag == TW_NON_FINITE) {
            // NaN or infinity: a type with a wider range.
            if (attempt->plan.precision.val.uniform == TW_F32) return "not finite in f32";
            dtype = TW_F32;
            continue;
        }
        // Too much memory, and more than expected: the next plan has to be expected well below.
        tw_cost cost;
        tw_estimate(&attempt->plan, 1, &cost);
        uint64_t below = tw_held(&cost.memory) / 10 * 7;
        if (budget > below) budget = below;
    }
    // An error is an honest answer: the host then uses its own plan.
    if (count > 0 && request->under_way.is_some) return "what a clip under way may change is best known to the host";
    tw_plan plans[PLANS];
    size_t tried = candidates(request, quickest(request, dtype), plans);
    size_t chosen = best(request, plans, tried, budget);
    if (chosen == tried && count > 0) return "nothing smaller is expected to fit";
    *plan = plans[chosen < tried ? chosen : tried - 1];
    tw_because(plan, chosen < tried ? "the best that fits" : "nothing is expected to fit: the smallest tiles");
    return TW_OK;
}

// Called with the outcome of a plan. Most policies need nothing here.
void tw_learn(const tw_request *request, const tw_plan *plan, const tw_outcome *outcome) {
    (void)request, (void)plan, (void)outcome;
}
