// Asks the price of a few plans and takes the fastest that fits. Uses every part of contract 0.1.0: settings of each type, logging,
// prices, trials, errors, attempts and outcomes.
#include <stdlib.h>
#include <string.h>

#include "policy.h"

typedef tilewright_policy_decoding_plan_t Plan;
typedef tilewright_policy_decoding_request_t Request;

extern void forget(void);

static uint32_t most = 2048;
static bool talks = false;
static double share = 1.0;
static bool exact = false;
static uint64_t learnt = 0;

static policy_string_t text(const char *chars) {
    return (policy_string_t){(uint8_t *)chars, strlen(chars)};
}

static bool is(policy_string_t string, const char *chars) {
    if (string.len != strlen(chars)) return false;
    for (size_t i = 0; i < string.len; i++) if (string.ptr[i] != (uint8_t)chars[i]) return false;
    return true;
}

void exports_tilewright_policy_lifecycle_describe(exports_tilewright_policy_lifecycle_description_t *ret) {
    typedef exports_tilewright_policy_lifecycle_setting_t Setting;
    static Setting settings[4];
    settings[0] = (Setting){text("most"), text("The largest side of a tile, in pixels."), {EXPORTS_TILEWRIGHT_POLICY_LIFECYCLE_VALUE_INTEGER, {.integer = 2048}}};
    settings[1] = (Setting){text("talks"), text("Say what is asked."), {EXPORTS_TILEWRIGHT_POLICY_LIFECYCLE_VALUE_FLAG, {.flag = false}}};
    settings[2] = (Setting){text("share"), text("The part of the memory limit to use."), {EXPORTS_TILEWRIGHT_POLICY_LIFECYCLE_VALUE_NUMBER, {.number = 1.0}}};
    settings[3] = (Setting){text("tiles"), text("blended or exact"), {EXPORTS_TILEWRIGHT_POLICY_LIFECYCLE_VALUE_TEXT, {.text = text("blended")}}};
    *ret = (exports_tilewright_policy_lifecycle_description_t){text("cheapest"), text("0.1.0"), text("The fastest of a few plans that fits, in C."), {settings, 4}};
}

bool exports_tilewright_policy_lifecycle_configure(exports_tilewright_policy_lifecycle_list_tuple2_string_value_t *settings, policy_string_t *err) {
    for (size_t i = 0; i < settings->len; i++) {
        policy_string_t name = settings->ptr[i].f0;
        exports_tilewright_policy_lifecycle_value_t value = settings->ptr[i].f1;
        if (is(name, "most")) most = (uint32_t)value.val.integer;
        if (is(name, "talks")) talks = value.val.flag;
        if (is(name, "share")) share = value.val.number;
        if (is(name, "tiles")) exact = is(value.val.text, "exact");
    }
    if (share > 0.0 && share <= 1.0) return true;
    *err = text("share: more than 0 and at most 1");
    return false;
}

static Plan plan(uint32_t side, uint8_t dtype) {
    Plan plan;
    memset(&plan, 0, sizeof plan);
    plan.batch = 1;
    plan.precision = (tilewright_policy_decoding_precision_t){TILEWRIGHT_POLICY_DECODING_PRECISION_UNIFORM, {.uniform = dtype}};
    plan.layout = TILEWRIGHT_POLICY_DECODING_LAYOUT_CHANNELS_LAST;
    plan.release = TILEWRIGHT_POLICY_DECODING_RELEASE_AT_END;
    if (side) {
        plan.space.tag = exact ? TILEWRIGHT_POLICY_DECODING_SPACE_EXACT : TILEWRIGHT_POLICY_DECODING_SPACE_BLENDED;
        plan.space.val.blended = (tilewright_policy_decoding_tile_t){side, side, side / 8};
    }
    plan.reason = text("");
    return plan;
}

static bool fastest(Request *request, uint64_t limit, uint8_t dtype, Plan *ret) {
    static const uint32_t sides[] = {0, 2048, 1536, 1024, 768, 512, 256, 128};
    bool found = false;
    uint64_t least = 0;
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        if (sides[i] > most) continue;
        Plan candidate = plan(sides[i], dtype);
        // One frame at a time where causal state is carried.
        if (request->frames > 1) candidate.time = (tilewright_policy_decoding_time_t){TILEWRIGHT_POLICY_DECODING_TIME_CARRIED, {.carried = request->model.temporal_scale}};
        tilewright_policy_decoding_cost_t cost;
        policy_string_t error;
        if (!tilewright_policy_decoding_host_estimate(&candidate, &cost, &error)) continue;
        if (cost.peak_bytes <= limit && (!found || cost.elapsed_ns < least)) {
            found = true;
            least = cost.elapsed_ns;
            *ret = candidate;
        }
    }
    return found;
}

bool exports_tilewright_policy_decoding_policy_decide(Request *request, Plan *ret, policy_string_t *err) {
    uint64_t limit = (uint64_t)((double)request->memory_limit * share);
    uint8_t dtype = request->device.fast_dtypes.len ? request->device.fast_dtypes.ptr[0] : TILEWRIGHT_POLICY_TYPES_DTYPE_F32;
    tilewright_policy_decoding_host_list_trial_t trials;
    tilewright_policy_decoding_host_trials(2, &trials);
    if (talks) {
        policy_string_t line = text(trials.len ? "measured before" : "never measured");
        tilewright_policy_host_log(TILEWRIGHT_POLICY_HOST_LEVEL_INFO, &line);
    }
    bool found = true;
    if (trials.len && trials.ptr[0].outcome.peak_bytes <= limit) {
        *ret = trials.ptr[0].plan;
        ret->reason = text("measured before");
    } else {
        found = fastest(request, limit, dtype, ret);
        if (found) ret->reason = text(learnt > limit ? "the fastest that fits, by now" : "the fastest that fits");
        else *err = text("nothing fits");
    }
    forget();
    return found;
}

bool exports_tilewright_policy_decoding_policy_recover(Request *request, exports_tilewright_policy_decoding_policy_list_attempt_t *attempts, Plan *ret, policy_string_t *err) {
    tilewright_policy_decoding_attempt_t last = attempts->ptr[attempts->len - 1];
    bool found = true;
    if (last.failure.tag == TILEWRIGHT_POLICY_DECODING_FAILURE_NON_FINITE) {
        *ret = last.plan;
        ret->precision.val.uniform = TILEWRIGHT_POLICY_TYPES_DTYPE_F32;
        ret->reason = text("f32 after values overflowed");
    } else {
        tilewright_policy_decoding_cost_t cost;
        policy_string_t error;
        uint64_t limit = request->memory_limit;
        if (tilewright_policy_decoding_host_estimate(&last.plan, &cost, &error)) limit = cost.peak_bytes / 2;
        found = fastest(request, limit, last.plan.precision.val.uniform, ret);
        if (found) ret->reason = text("half of what failed");
        else *err = text("nothing smaller fits");
    }
    forget();
    return found;
}

void exports_tilewright_policy_decoding_policy_learn(Request *request, Plan *plan, exports_tilewright_policy_decoding_policy_outcome_t *outcome) {
    (void)request;
    (void)plan;
    if (outcome->peak_bytes > learnt) learnt = outcome->peak_bytes;
    forget();
}
