// {{name}}: decodes whole where that fits into memory, and in tiles where it doesn't.
//
// The host asks tw_decide once per decode, and tw_recover after each plan that failed. What it answers is checked and clamped: a policy
// advises, and can't break anything. sdk/policy.wit says what each field means; sdk/tilewright.h has short names for them.

#include "tilewright.h"

// The smallest tile, in pixels of the decoded picture.
#define LEAST 64

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

// The longer side of the picture.
static uint32_t longest(const tw_request *request) {
    return request->height > request->width ? request->height : request->width;
}

// The next smaller tile than this many pixels: the user's side, or a half of it, a quarter, and so on; 0 where that is too small.
static uint32_t smaller(uint32_t than) {
    uint32_t side = TILE;
    while (side >= than && side >= LEAST) side /= 2;
    return side < LEAST ? 0 : side;
}

// The same plan in tiles that fade into each other over an eighth of their side; with a side of 0, whole.
static tw_plan tiles(tw_plan plan, uint32_t side) {
    plan.space.tag = side == 0 ? TW_WHOLE : TW_BLENDED;
    plan.space.val.blended = (tw_tile){.height = side, .width = side, .overlap = side / 8};
    return plan;
}

// The whole picture, or a few frames of a clip at once, in one type and memory order.
static tw_plan whole(const tw_request *request, tw_dtype dtype, uint8_t layout) {
    tw_plan plan = tw_whole(dtype);
    plan.layout = layout;
    if (request->frames > 1) {
        // What the network remembers of the past is carried along.
        plan.time.tag = TW_TIME_CARRIED;
        plan.time.val.carried = 4 * request->model.temporal_scale;
    }
    return plan;
}

// The quickest of both memory orders, and of f32 beside the type, by the host's word: what is quickest whole is so in tiles, too.
static tw_plan quickest(const tw_request *request, tw_dtype dtype) {
    tw_plan best = whole(request, dtype, TW_CHANNELS_FIRST);
    uint64_t least = UINT64_MAX;
    for (int number = 0; number < (dtype == TW_F32 ? 2 : 4); number++) {
        tw_plan next = whole(request, number < 2 ? dtype : TW_F32, number % 2 == 0 ? TW_CHANNELS_FIRST : TW_CHANNELS_LAST);
        tw_cost cost;
        if (!tw_estimate(&next, &cost) || cost.elapsed_ns >= least) continue;
        least = cost.elapsed_ns;
        best = next;
    }
    return best;
}

// What suits the user's objective best, of what fits into memory.
static tw_plan best(const tw_request *request, tw_dtype dtype) {
    // The memory: what the user allows, and no more than is free now.
    uint64_t budget = request->memory_limit;
    if (budget > request->device.free_bytes) budget = request->device.free_bytes;

    // The host says what each plan would cost; one that it can't run is left out.
    tw_plan next = quickest(request, dtype);
    tw_plan best = next;
    uint64_t least = UINT64_MAX;
    uint32_t side = 0, order = 0;
    do {
        next = tiles(next, side);
        side = smaller(side == 0 ? longest(request) : side);
        tw_cost cost;
        if (!tw_estimate(&next, &cost) || cost.peak_bytes > budget) continue;
        // The objective: what the user cares about. Balanced takes the first that fits: the fewer tiles, the nearer to the whole's output.
        uint64_t price = request->objective == TW_FASTEST ? cost.elapsed_ns
                       : request->objective == TW_LEANEST ? cost.peak_bytes
                                                          : order++;
        if (price < least) {
            least = price;
            best = next;
        }
    } while (side != 0);
    if (least == UINT64_MAX) best = next;
    tw_because(&best, least == UINT64_MAX ? "nothing is expected to fit: the smallest tiles" : "the best that fits");
    return best;
}

const char *tw_decide(const tw_request *request, tw_plan *plan) {
    // The device: half the bytes where a probe found bf16 no slower. `request->device.arch` ("gfx1151") is for rules about one chip.
    *plan = best(request, tw_is_fast(request, TW_BF16) ? TW_BF16 : TW_F32);
    return TW_OK;
}

const char *tw_recover(const tw_request *request, const tw_attempt *attempts, size_t count, tw_plan *plan) {
    if (count == 0) return tw_decide(request, plan);
    const tw_attempt *last = &attempts[count - 1];
    *plan = last->plan;
    if (last->failure.tag == TW_NON_FINITE) {
        // NaN or infinity: a type with a wider range.
        if (plan->precision.val.uniform == TW_F32) return "not finite in f32";
        *plan = best(request, TW_F32);
        return TW_OK;
    }
    // Too much memory: of a clip fewer frames at once, else smaller tiles.
    if (plan->time.tag == TW_TIME_CARRIED && plan->time.val.carried / 2 >= request->model.temporal_scale) {
        plan->time.val.carried /= 2;
        tw_because(plan, "memory ran out: fewer frames at once");
        return TW_OK;
    }
    // An error is an honest answer: the host goes on with its own default.
    if (tw_hint(request, "clip.done") != NULL) return "a clip that has begun keeps its tiles";
    uint32_t side = smaller(plan->space.tag == TW_WHOLE ? longest(request) : plan->space.val.blended.height);
    if (side == 0) return "no tiles below 64 pixels";
    *plan = tiles(*plan, side);
    tw_because(plan, "memory ran out: smaller tiles");
    return TW_OK;
}

// Called with what was measured. Most policies need nothing here.
void tw_learn(const tw_request *request, const tw_plan *plan, const tw_outcome *outcome) {
    (void)request, (void)plan, (void)outcome;
}
