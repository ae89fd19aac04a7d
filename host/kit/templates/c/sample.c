// Samples: everything on the device if that fits into memory, streamed and divided if it doesn't.

#include "tilewright.h"

// Plans that each hold less than the one before.
#define PLANS 4

static void list(const tw_sample_request *request, tw_dtype dtype, tw_sample_plan plans[PLANS]) {
    for (size_t i = 0; i < PLANS; i++) {
        plans[i] = tw_plain(dtype);
        // The passes of guidance together, where there are two.
        if (i == 0 && request->passes > 1) plans[i].guidance = TW_TOGETHER;
        // Blocks of weights come while the one before computes.
        if (i == 2) {
            plans[i].residency.tag = TW_STREAMED;
            plans[i].residency.val.streamed = 1;
        }
        // Each block comes when its turn does, and samples go one by one.
        if (i == 3) {
            plans[i].residency.tag = TW_HOST;
            plans[i].samples.is_some = request->batch > 1;
            plans[i].samples.val = 1;
            plans[i].feed_forward = 8;
        }
    }
}

// The plan in a dtype that serves the user's objective best, of those that hold no more than the
// budget, in bytes; false if none does.
static bool take_best(const tw_sample_request *request, tw_dtype dtype, uint64_t budget, tw_sample_plan *plan) {
    // One question for all plans takes less time than one for each.
    tw_sample_plan plans[PLANS];
    tw_sample_cost costs[PLANS];
    list(request, dtype, plans);
    tw_estimate_samples(plans, PLANS, costs);

    size_t best = PLANS;
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < PLANS; i++) {
        if (tw_held(&costs[i].memory) > budget) continue;
        uint64_t price = request->objective == TW_LEANEST ? tw_held(&costs[i].memory) : costs[i].step_ns;
        if (price < least) {
            least = price;
            best = i;
        }
    }
    if (best == PLANS) return false;
    *plan = plans[best];
    tw_because_sample(plan, "the best that fits");
    return true;
}

// A plan for a sample after `count` attempts failed, the latest last; at first there are none.
const char *tw_decide_sample(
    const tw_sample_request *request, const tw_sample_attempt *attempts, size_t count, tw_sample_plan *plan) {
    // The device: half the bytes if a probe found bf16 no slower. Elsewhere a narrow type is for
    // what fits in no other way, since it alone changes the result.
    tw_dtype dtype = TW_F32;
    bool may_narrow = true;
    for (size_t i = 0; i < request->device.fast_dtypes.len; i++)
        if (request->device.backend != TW_CPU && request->device.fast_dtypes.ptr[i] == TW_BF16) dtype = TW_BF16;
    uint64_t budget = request->limit_bytes;
    for (size_t i = 0; i < count; i++) {
        const tw_sample_attempt *failed = &attempts[i];
        if (failed->failure.tag == TW_NON_FINITE) {
            // NaN or infinity: a type with a wider range.
            if (failed->plan.precision.val.uniform == TW_F32) return "not finite in f32";
            dtype = TW_F32;
            may_narrow = false;
        } else {
            // Too much memory: the next plan has to be expected to hold less.
            tw_sample_cost cost;
            tw_estimate_samples(&failed->plan, 1, &cost);
            if (tw_held(&cost.memory) <= budget) budget = tw_held(&cost.memory) - 1;
        }
    }

    if (take_best(request, dtype, budget, plan)) return TW_OK;
    if (may_narrow && take_best(request, TW_BF16, budget, plan)) return TW_OK;
    return count ? "nothing smaller is left" : "nothing is expected to fit";
}
