// Connects the contract's functions (contract.c, generated) with those that a policy defines.
// Nothing here needs to be changed.

#include "tilewright.h"

#include <stdlib.h>
#include <string.h>

// The trials returned during a call, to be freed when it ends.
static tilewright_policy_vae_host_list_trial_t handed_out;

static contract_string_t copied(const void *text, size_t length) {
    contract_string_t copy = {.ptr = length ? malloc(length) : NULL, .len = length};
    if (length) memcpy(copy.ptr, text, length);
    return copy;
}

static contract_string_t words(const char *text) {
    return copied(text, strlen(text));
}

// Ends a call: frees the memory that was lent. True if there is no error.
static bool ended(const char *error, contract_string_t *message) {
    tilewright_policy_vae_host_list_trial_free(&handed_out);
    handed_out = (tilewright_policy_vae_host_list_trial_t){0};
    if (error != TW_OK) *message = words(error);
    return error == TW_OK;
}

// A plan's reason and options become the host's to free.
#define HAND_OVER(plan)                                                                                          \
    do {                                                                                                         \
        (plan)->reason = copied((plan)->reason.ptr, (plan)->reason.len);                                         \
        __typeof__((plan)->options.ptr) given = (plan)->options.ptr;                                             \
        size_t count = (plan)->options.len;                                                                      \
        (plan)->options.ptr = count ? malloc(count * sizeof *given) : NULL;                                      \
        for (size_t i = 0; i < count; i++) {                                                                     \
            (plan)->options.ptr[i] = given[i];                                                                   \
            (plan)->options.ptr[i].f0 = copied(given[i].f0.ptr, given[i].f0.len);                                \
            if (given[i].f1.tag == TW_TEXT)                                                                      \
                (plan)->options.ptr[i].f1.val.text = copied(given[i].f1.val.text.ptr, given[i].f1.val.text.len); \
        }                                                                                                        \
    } while (0)

static bool answered(const char *error, tw_plan *plan, contract_string_t *message) {
    if (error == TW_OK) HAND_OVER(plan);
    return ended(error, message);
}

void exports_tilewright_policy_lifecycle_describe(exports_tilewright_policy_lifecycle_description_t *said) {
    size_t count = tw_describe.setting_count;
    said->name = words(tw_describe.name);
    said->version = words(tw_describe.version);
    said->summary = words(tw_describe.summary);
    static const tw_stage usual[] = {TW_STAGE_DECODE, TW_STAGE_ENCODE};
    const tw_stage *stages = tw_describe.stage_count ? tw_describe.stages : usual;
    said->stages.len = tw_describe.stage_count ? tw_describe.stage_count : sizeof usual / sizeof *usual;
    said->stages.ptr = malloc(said->stages.len * sizeof *stages);
    memcpy(said->stages.ptr, stages, said->stages.len * sizeof *stages);
    said->settings.len = count;
    said->settings.ptr = count ? malloc(count * sizeof *said->settings.ptr) : NULL;
    for (size_t i = 0; i < count; i++) {
        const tw_setting *setting = &tw_describe.settings[i];
        exports_tilewright_policy_lifecycle_setting_t *to = &said->settings.ptr[i];
        to->name = words(setting->name);
        to->summary = words(setting->summary);
        to->default_.tag = (uint8_t)setting->type;
        switch (setting->type) {
        case TW_FLAG: to->default_.val.flag = setting->flag; break;
        case TW_INTEGER: to->default_.val.integer = setting->integer; break;
        case TW_NUMBER: to->default_.val.number = setting->number; break;
        case TW_TEXT: to->default_.val.text = words(setting->text ? setting->text : ""); break;
        }
    }
}

bool exports_tilewright_policy_lifecycle_configure(
    exports_tilewright_policy_lifecycle_list_tuple2_string_value_t *given, contract_string_t *message) {
    for (size_t i = 0; i < given->len; i++) {
        const exports_tilewright_policy_lifecycle_value_t *value = &given->ptr[i].f1;
        for (size_t j = 0; j < tw_describe.setting_count; j++) {
            tw_setting *setting = &tw_describe.settings[j];
            if (!tw_is(given->ptr[i].f0, setting->name) || value->tag != (uint8_t)setting->type) continue;
            switch (setting->type) {
            case TW_FLAG: setting->flag = value->val.flag; break;
            case TW_INTEGER: setting->integer = value->val.integer; break;
            case TW_NUMBER: setting->number = value->val.number; break;
            case TW_TEXT: {
                // Kept for as long as the policy is in use.
                char *text = malloc(value->val.text.len + 1);
                memcpy(text, value->val.text.ptr, value->val.text.len);
                text[value->val.text.len] = 0;
                setting->text = text;
            }
            }
        }
    }
    exports_tilewright_policy_lifecycle_list_tuple2_string_value_free(given);
    return ended(tw_configure(), message);
}

bool exports_tilewright_policy_vae_policy_decide(
    tw_request *request, exports_tilewright_policy_vae_policy_list_attempt_t *attempts, tw_plan *plan,
    contract_string_t *message) {
    bool is_answered = answered(tw_decide(request, attempts->ptr, attempts->len, plan), plan, message);
    tilewright_policy_vae_request_free(request);
    exports_tilewright_policy_vae_policy_list_attempt_free(attempts);
    return is_answered;
}

void exports_tilewright_policy_vae_policy_learn(tw_request *request, tw_plan *plan, tw_outcome *outcome) {
    tw_learn(request, plan, outcome);
    contract_string_t none;
    ended(TW_OK, &none);
    tilewright_policy_vae_request_free(request);
    tilewright_policy_vae_plan_free(plan);
}

// Samples are left to the host unless the policy defines these two.
__attribute__((weak)) const char *tw_decide_sample(
    const tw_sample_request *request, const tw_sample_attempt *attempts, size_t count, tw_sample_plan *plan) {
    (void)request, (void)attempts, (void)count, (void)plan;
    return "it has no rules for samples";
}

__attribute__((weak)) void tw_learn_sample(
    const tw_sample_request *request, const tw_sample_plan *plan, const tw_sample_outcome *outcome) {
    (void)request, (void)plan, (void)outcome;
}

bool exports_tilewright_policy_denoise_policy_decide(
    tw_sample_request *request, exports_tilewright_policy_denoise_policy_list_attempt_t *attempts, tw_sample_plan *plan,
    contract_string_t *message) {
    const char *error = tw_decide_sample(request, attempts->ptr, attempts->len, plan);
    if (error == TW_OK) HAND_OVER(plan);
    bool is_answered = ended(error, message);
    tilewright_policy_denoise_request_free(request);
    exports_tilewright_policy_denoise_policy_list_attempt_free(attempts);
    return is_answered;
}

void exports_tilewright_policy_denoise_policy_learn(
    tw_sample_request *request, tw_sample_plan *plan, tw_sample_outcome *outcome) {
    tw_learn_sample(request, plan, outcome);
    tilewright_policy_denoise_request_free(request);
    tilewright_policy_denoise_plan_free(plan);
}

void tw_estimate_samples(const tw_sample_plan *plans, size_t count, tw_sample_cost *costs) {
    // Cast away: the host only reads the plans.
    tilewright_policy_denoise_host_list_plan_t asked = {.ptr = (tw_sample_plan *)plans, .len = count};
    tilewright_policy_denoise_host_list_result_cost_string_t answers;
    tilewright_policy_denoise_host_estimate(&asked, &answers);
    for (size_t i = 0; i < count; i++) {
        bool is_priced = i < answers.len && !answers.ptr[i].is_err;
        costs[i] = is_priced ? answers.ptr[i].val.ok : (tw_sample_cost){.memory.peak_bytes = UINT64_MAX, .step_ns = UINT64_MAX};
    }
    tilewright_policy_denoise_host_list_result_cost_string_free(&answers);
}

// So are text encoders.
__attribute__((weak)) const char *tw_decide_text(
    const tw_text_request *request, const tw_text_attempt *attempts, size_t count, tw_text_plan *plan) {
    (void)request, (void)attempts, (void)count, (void)plan;
    return "it has no rules for text encoders";
}

__attribute__((weak)) void tw_learn_text(
    const tw_text_request *request, const tw_text_plan *plan, const tw_text_outcome *outcome) {
    (void)request, (void)plan, (void)outcome;
}

bool exports_tilewright_policy_text_policy_decide(
    tw_text_request *request, exports_tilewright_policy_text_policy_list_attempt_t *attempts, tw_text_plan *plan,
    contract_string_t *message) {
    const char *error = tw_decide_text(request, attempts->ptr, attempts->len, plan);
    if (error == TW_OK) HAND_OVER(plan);
    bool is_answered = ended(error, message);
    tilewright_policy_text_request_free(request);
    exports_tilewright_policy_text_policy_list_attempt_free(attempts);
    return is_answered;
}

void exports_tilewright_policy_text_policy_learn(
    tw_text_request *request, tw_text_plan *plan, tw_text_outcome *outcome) {
    tw_learn_text(request, plan, outcome);
    tilewright_policy_text_request_free(request);
    tilewright_policy_text_plan_free(plan);
}

void tw_estimate_texts(const tw_text_plan *plans, size_t count, tw_text_cost *costs) {
    // Cast away: the host only reads the plans.
    tilewright_policy_text_host_list_plan_t asked = {.ptr = (tw_text_plan *)plans, .len = count};
    tilewright_policy_text_host_list_result_cost_string_t answers;
    tilewright_policy_text_host_estimate(&asked, &answers);
    for (size_t i = 0; i < count; i++) {
        bool is_priced = i < answers.len && !answers.ptr[i].is_err;
        costs[i] = is_priced ? answers.ptr[i].val.ok : (tw_text_cost){.memory.peak_bytes = UINT64_MAX, .elapsed_ns = UINT64_MAX};
    }
    tilewright_policy_text_host_list_result_cost_string_free(&answers);
}

void tw_estimate(const tw_plan *plans, size_t count, tw_cost *costs) {
    // Cast away: the host only reads the plans.
    tilewright_policy_vae_host_list_plan_t asked = {.ptr = (tw_plan *)plans, .len = count};
    tilewright_policy_vae_host_list_result_cost_string_t answers;
    tilewright_policy_vae_host_estimate(&asked, &answers);
    for (size_t i = 0; i < count; i++) {
        bool is_priced = i < answers.len && !answers.ptr[i].is_err;
        costs[i] = is_priced ? answers.ptr[i].val.ok : (tw_cost){.memory.peak_bytes = UINT64_MAX, .elapsed_ns = UINT64_MAX};
    }
    tilewright_policy_vae_host_list_result_cost_string_free(&answers);
}

size_t tw_trials(uint32_t most, const tw_trial **trials) {
    tilewright_policy_vae_host_list_trial_free(&handed_out);
    tilewright_policy_vae_host_trials(most, &handed_out);
    *trials = handed_out.ptr;
    return handed_out.len;
}

void tw_log(uint8_t level, const char *message) {
    contract_string_t text = {.ptr = (uint8_t *)message, .len = strlen(message)};
    tilewright_policy_host_log(level, &text);
}

// The bindings look here for the contract that the policy is built for; `tilewright policy build`
// puts it into the policy itself.
void __component_type_object_force_link_contract(void) {}
