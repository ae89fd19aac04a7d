// {{name}}: decodes and encodes whole if that fits into memory, in exact bands if it doesn't, and
// in tiles if nothing else fits. Samples are in sample.c.
//
// The host asks tw_decide for a plan, and again after each plan that failed. It checks and clamps
// the answer: a policy advises, and can't break anything. sdk/policy.wit explains every field;
// sdk/tilewright.h has short names for them.

#include "tilewright.h"

// The smallest tile, in pixels of the decoded picture.
#define LEAST 64

// The most plans to ask the price of: whole, bands and tiles down to the smallest.
#define PLANS 16

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

// The best plan by the user's objective, of those that fit into memory.
static tw_plan best(const tw_request *request, tw_dtype dtype) {
    // The memory limit of the user, and at most the memory that is free now.
    uint64_t budget = request->memory.limit_bytes;
    if (budget > request->device.free_bytes) budget = request->device.free_bytes;

    // One question for all plans takes less time than one for each.
    tw_plan plans[PLANS];
    tw_cost costs[PLANS];
    size_t count = 0;
    plans[count++] = quickest(request, dtype);
    // Bands, where the host can run them, then tiles.
    for (int is_tiled = !request->capabilities.exact; is_tiled <= 1; is_tiled++)
        for (uint32_t side = smaller(longest(request)); side != 0 && count < PLANS; side = smaller(side))
            if (is_tiled || side < request->height)
                plans[count++] = is_tiled ? tiles(plans[0], side) : bands(plans[0], request, side);
    tw_estimate(plans, count, costs);

    // The user's objective. Balanced takes the first that fits: larger parts are computed faster.
    // Tiles are cross-faded: unless the user allows that, they are the last resort.
    size_t best = count;
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        if (costs[i].peak_bytes > budget) continue;
        if (plans[i].space.tag == TW_BLENDED && !request->allows_blended && best < count && plans[best].space.tag != TW_BLENDED) continue;
        uint64_t price = request->objective == TW_FASTEST ? costs[i].elapsed_ns
                       : request->objective == TW_LEANEST ? costs[i].peak_bytes
                                                          : i;
        if (price < least) {
            least = price;
            best = i;
        }
    }
    tw_plan chosen = plans[best < count ? best : count - 1];
    tw_because(&chosen, best < count ? "the best that fits" : "nothing is expected to fit: the smallest tiles");
    return chosen;
}

// A plan for a request after `count` attempts failed, the latest last; at first there are none.
// `request->direction` is decode or encode.
const char *tw_decide(const tw_request *request, const tw_attempt *attempts, size_t count, tw_plan *plan) {
    if (count == 0) {
        // The device: half the bytes if a probe found bf16 no slower. `request->device.arch`
        // ("gfx1151") is for rules about one chip.
        *plan = best(request, tw_is_fast(request, TW_BF16) ? TW_BF16 : TW_F32);
        return TW_OK;
    }
    const tw_attempt *last = &attempts[count - 1];
    *plan = last->plan;
    if (last->failure.tag == TW_NON_FINITE) {
        // NaN or infinity: a type with a wider range.
        if (plan->precision.val.uniform == TW_F32) return "not finite in f32";
        *plan = best(request, TW_F32);
        return TW_OK;
    }
    // Too much memory: of a clip fewer frames at once, else smaller tiles.
    if (plan->time.tag == TW_TIME_CARRIED && plan->time.val.carried / 2 >= request->temporal_scale) {
        plan->time.val.carried /= 2;
        tw_because(plan, "memory ran out: fewer frames at once");
        return TW_OK;
    }
    // An error is an honest answer: the host then uses its own plan.
    if (request->under_way.is_some) return "a clip that has begun keeps its tiles";
    uint32_t side = smaller(plan->space.tag == TW_WHOLE ? longest(request) : plan->space.val.blended.height);
    if (side == 0) return "no tiles below 64 pixels";
    *plan = tiles(*plan, side);
    tw_because(plan, "memory ran out: smaller tiles");
    return TW_OK;
}

// Called with the outcome of a plan. Most policies need nothing here.
void tw_learn(const tw_request *request, const tw_plan *plan, const tw_outcome *outcome) {
    (void)request, (void)plan, (void)outcome;
}
