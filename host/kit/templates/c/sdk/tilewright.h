// Short names for the contract's types, and the functions that a policy in C defines and may call.
// policy.wit explains every field.
#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#include "contract.h"

typedef exports_tilewright_policy_vae_policy_request_t tw_request;
typedef exports_tilewright_policy_vae_policy_plan_t tw_plan;
typedef exports_tilewright_policy_vae_policy_attempt_t tw_attempt;
typedef exports_tilewright_policy_vae_policy_outcome_t tw_outcome;
typedef tilewright_policy_vae_tile_t tw_tile;
typedef tilewright_policy_vae_cost_t tw_cost;
typedef tilewright_policy_vae_trial_t tw_trial;
typedef exports_tilewright_policy_denoise_policy_request_t tw_sample_request;
typedef exports_tilewright_policy_denoise_policy_plan_t tw_sample_plan;
typedef exports_tilewright_policy_denoise_policy_attempt_t tw_sample_attempt;
typedef exports_tilewright_policy_denoise_policy_outcome_t tw_sample_outcome;
typedef tilewright_policy_denoise_cost_t tw_sample_cost;
typedef exports_tilewright_policy_text_policy_request_t tw_text_request;
typedef exports_tilewright_policy_text_policy_plan_t tw_text_plan;
typedef exports_tilewright_policy_text_policy_attempt_t tw_text_attempt;
typedef exports_tilewright_policy_text_policy_outcome_t tw_text_outcome;
typedef tilewright_policy_text_cost_t tw_text_cost;
typedef tilewright_policy_types_dtype_t tw_dtype;
typedef tilewright_policy_types_stage_t tw_stage;
typedef tilewright_policy_types_memory_t tw_memory;

enum { TW_DECODE, TW_ENCODE };                                                            // request->direction
enum { TW_STAGE_TEXT, TW_STAGE_DENOISE, TW_STAGE_DECODE, TW_STAGE_ENCODE };               // tw_stage
enum { TW_CPU, TW_CUDA, TW_ROCM, TW_METAL };                                              // request->device.backend
enum { TW_F32, TW_TF32, TW_BF16, TW_F16, TW_F8_E4M3, TW_F8_E5M2, TW_I8, TW_I4 };          // tw_dtype
enum { TW_FASTEST, TW_BALANCED, TW_LEANEST };                                             // request->objective
enum { TW_WHOLE, TW_BLENDED, TW_EXACT };                                                  // plan->space.tag
enum { TW_TIME_WHOLE, TW_TIME_CARRIED, TW_TIME_BLENDED };                                 // plan->time.tag
enum { TW_UNIFORM, TW_MIXED };                                                            // plan->precision.tag
enum { TW_CHANNELS_FIRST, TW_CHANNELS_LAST };                                             // plan->layout
enum { TW_KEEP, TW_AT_END, TW_EACH_STEP };                                                // plan->release
enum { TW_OUT_OF_MEMORY, TW_NON_FINITE, TW_OVER_LIMIT };                                  // attempt->failure.tag
enum { TW_PACKED, TW_EXPANDED };                                                          // sample, text plan->weights
enum { TW_RESIDENT, TW_STREAMED, TW_HOST };                                               // sample plan->residency.tag
enum { TW_FUSED, TW_PIECES };                                                             // sample plan->attention.tag
enum { TW_TOGETHER, TW_IN_TURN };                                                         // sample plan->guidance
enum { TW_REUSE_OFF, TW_REUSE_OUTPUT, TW_REUSE_FIRST_BLOCK };                             // sample plan->reuse.tag
enum { TW_PLACE_DEVICE, TW_PLACE_HOST };                                                  // text plan->place
enum { TW_DEBUG, TW_INFO, TW_WARN };                                                      // tw_log

typedef enum { TW_FLAG, TW_INTEGER, TW_NUMBER, TW_TEXT } tw_type;

// A setting: its type selects one of the last four fields. Before tw_configure it holds the
// default, afterwards the user's value.
typedef struct {
    const char *name, *summary;
    tw_type type;
    bool flag;
    int64_t integer;
    double number;
    const char *text;
} tw_setting;

// Name and version are printable ASCII without blanks, 64 characters at most. Without a list of
// stages the policy answers decodes and encodes; the host decides a stage that is not listed.
typedef struct {
    const char *name, *version, *summary;
    const tw_stage *stages;
    size_t stage_count;
    tw_setting *settings;
    size_t setting_count;
} tw_description;

// Returned by a function below if all is well; anything else is an error in one line.
#define TW_OK ((const char *)0)

// Defined by the policy.
extern const tw_description tw_describe;
const char *tw_configure(void);
const char *tw_decide(const tw_request *request, const tw_attempt *attempts, size_t count, tw_plan *plan);
void tw_learn(const tw_request *request, const tw_plan *plan, const tw_outcome *outcome);
// The same for samples. A policy without them leaves samples to the host.
const char *tw_decide_sample(
    const tw_sample_request *request, const tw_sample_attempt *attempts, size_t count, tw_sample_plan *plan);
void tw_learn_sample(
    const tw_sample_request *request, const tw_sample_plan *plan, const tw_sample_outcome *outcome);

// The same for text encoders.
const char *tw_decide_text(
    const tw_text_request *request, const tw_text_attempt *attempts, size_t count, tw_text_plan *plan);
void tw_learn_text(const tw_text_request *request, const tw_text_plan *plan, const tw_text_outcome *outcome);

// The expected costs of `count` plans, in their order. A plan that makes no sense or can't be run
// gets UINT64_MAX for its time and peak.
void tw_estimate(const tw_plan *plans, size_t count, tw_cost *costs);
// The same for a sample's plans: UINT64_MAX is the time of a step and the peak.
void tw_estimate_samples(const tw_sample_plan *plans, size_t count, tw_sample_cost *costs);
// The same for a text encoder's plans.
void tw_estimate_texts(const tw_text_plan *plans, size_t count, tw_text_cost *costs);
// Measurements on this device for this model at about this size, newest first, at most `most`. They
// live until the call ends.
size_t tw_trials(uint32_t most, const tw_trial **trials);
// Bytes of the device's memory that are held at once, which the limit is compared with.
static inline uint64_t tw_held(const tw_memory *memory) {
    return memory->peak_bytes > UINT64_MAX - memory->weights_bytes ? UINT64_MAX : memory->peak_bytes + memory->weights_bytes;
}

// A line in the host's log.
void tw_log(uint8_t level, const char *message);

// The whole picture at once in one type: a start to change from.
static inline tw_plan tw_whole(tw_dtype dtype) {
    tw_plan plan = {.batch = 1, .release = TW_AT_END};
    plan.space.tag = TW_WHOLE;
    plan.time.tag = TW_TIME_WHOLE;
    plan.precision.tag = TW_UNIFORM;
    plan.precision.val.uniform = dtype;
    return plan;
}

// Adds a reason in a few words; the text has to outlive the call, as a literal does.
static inline void tw_because(tw_plan *plan, const char *reason) {
    plan->reason.ptr = (uint8_t *)reason;
    plan->reason.len = 0;
    while (reason[plan->reason.len]) plan->reason.len++;
}

// A sample at once in one type, with the passes of guidance in turn: a start to change from.
static inline tw_sample_plan tw_plain(tw_dtype dtype) {
    tw_sample_plan plan = {.weights = TW_PACKED, .guidance = TW_IN_TURN, .feed_forward = 1, .release = TW_KEEP};
    plan.precision.tag = TW_UNIFORM;
    plan.precision.val.uniform = dtype;
    plan.residency.tag = TW_RESIDENT;
    plan.attention.tag = TW_FUSED;
    plan.reuse.tag = TW_REUSE_OFF;
    return plan;
}

// Adds a reason in a few words to a sample's plan.
static inline void tw_because_sample(tw_sample_plan *plan, const char *reason) {
    plan->reason.ptr = (uint8_t *)reason;
    plan->reason.len = 0;
    while (reason[plan->reason.len]) plan->reason.len++;
}

// True if a probe on this device found the type no slower than f32.
static inline bool tw_is_fast(const tw_request *request, tw_dtype dtype) {
    for (size_t i = 0; i < request->device.fast_dtypes.len; i++)
        if (request->device.fast_dtypes.ptr[i] == dtype) return true;
    return false;
}

// True if a text of the request is equal to this one.
static inline bool tw_is(contract_string_t text, const char *word) {
    for (size_t i = 0; i < text.len; i++)
        if (!word[i] || text.ptr[i] != (uint8_t)word[i]) return false;
    return !word[text.len];
}

// The text of a hint of the request; NULL if there is none of that name.
static inline const contract_string_t *tw_hint(const tw_request *request, const char *name) {
    for (size_t i = 0; i < request->hints.len; i++)
        if (tw_is(request->hints.ptr[i].name, name)) return &request->hints.ptr[i].value;
    return 0;
}

#endif
