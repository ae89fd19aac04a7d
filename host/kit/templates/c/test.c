// Runs natively, without WebAssembly, with a stub of the host:
//
//     mkdir -p build && cc -Isdk -o build/test test.c decide.c sample.c && build/test

#include "tilewright.h"

#include <stdio.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

static int failures = 0;
#define CHECK(what) ((what) ? (void)0 : (void)(failures++, printf("test.c:%d: not so: %s\n", __LINE__, #what)))

// A host for which a pixel of a tile costs a kilobyte, in sixteen frames at once, and one memory
// order is faster than the other.
void tw_estimate(const tw_plan *plans, size_t count, tw_cost *costs) {
    for (size_t i = 0; i < count; i++) {
        uint32_t side = plans[i].space.tag == TW_WHOLE ? 1024 : plans[i].space.val.blended.height;
        uint32_t frames = plans[i].time.tag == TW_TIME_CARRIED ? plans[i].time.val.carried : 16;
        uint64_t elapsed_ns = plans[i].layout == TW_CHANNELS_LAST ? 1000 : 2000, peak_bytes = (uint64_t)side * side * frames << 6;
        costs[i] = (tw_cost){.memory.peak_bytes = peak_bytes, .elapsed_ns = elapsed_ns, .tiles = 1, .shapes = 1, .rework = 1.0};
    }
}

// A host for which weights take a gigabyte in bf16, and work 100 MiB; twice as much in f32 if it
// counts types.
static bool counts_types = false;
void tw_estimate_samples(const tw_sample_plan *plans, size_t count, tw_sample_cost *costs) {
    static const uint64_t weights[] = {1000, 100, 50};
    for (size_t i = 0; i < count; i++) {
        const tw_sample_plan *plan = &plans[i];
        bool together = plan->guidance == TW_TOGETHER;
        uint64_t peak = together ? 200 : plan->samples.is_some ? 50 : 100;
        uint8_t place = plan->residency.tag;
        uint64_t step_ns = 1000 * (place + 1) - together;
        uint64_t unit = counts_types && plan->precision.val.uniform == TW_F32 ? 2 * MIB : MIB;
        costs[i] = (tw_sample_cost){.memory = {.peak_bytes = peak * unit, .weights_bytes = weights[place] * unit}, .step_ns = step_ns};
    }
}

// A picture of 1024×1024 with this much memory.
static tw_request request(uint64_t limit_bytes) {
    tw_request request;
    memset(&request, 0, sizeof request);
    request.direction = TW_DECODE;
    request.batch = request.frames = request.temporal_scale = 1;
    request.height = request.width = 1024;
    request.limit_bytes = limit_bytes;
    request.device.free_bytes = 65536 * MIB;
    request.objective = TW_BALANCED;
    return request;
}

int main(void) {
    CHECK(tw_configure() == TW_OK);

    // Whole if it fits, tiles if it does not.
    tw_plan plan;
    tw_request roomy = request(2048 * MIB), tight = request(300 * MIB);
    CHECK(tw_decide(&roomy, NULL, 0, &plan) == TW_OK && plan.space.tag == TW_WHOLE && plan.layout == TW_CHANNELS_LAST);
    CHECK(tw_decide(&tight, NULL, 0, &plan) == TW_OK && plan.space.tag == TW_BLENDED && plan.space.val.blended.height == 512);
    // Bands come first where the host can run them, and tiles where they are allowed.
    tight.capabilities.exact = true;
    CHECK(tw_decide(&tight, NULL, 0, &plan) == TW_OK && plan.space.tag == TW_EXACT && plan.space.val.exact.height == 512);
    tight.capabilities.exact = false;
    roomy.objective = TW_LEANEST;
    CHECK(tw_decide(&roomy, NULL, 0, &plan) == TW_OK && plan.space.tag == TW_WHOLE);
    roomy.allows_blended = true;
    CHECK(tw_decide(&roomy, NULL, 0, &plan) == TW_OK && plan.space.val.blended.height == 64);

    // Tiles shrink until there is nothing smaller.
    tw_attempt attempt = {.plan = tw_whole(TW_F32), .failure = {.tag = TW_OUT_OF_MEMORY}};
    for (uint32_t side = 512; side >= 64; side /= 2) {
        CHECK(tw_decide(&tight, &attempt, 1, &plan) == TW_OK && plan.space.val.blended.height == side);
        attempt.plan = plan;
    }
    CHECK(tw_decide(&tight, &attempt, 1, &plan) != TW_OK);

    // A clip is taken in fewer frames at once.
    tw_request clip = roomy;
    clip.objective = TW_BALANCED;
    clip.frames = 81;
    clip.temporal_scale = 4;
    CHECK(tw_decide(&clip, NULL, 0, &plan) == TW_OK && plan.space.tag == TW_WHOLE && plan.time.val.carried == 16);
    attempt = (tw_attempt){.plan = plan, .failure = {.tag = TW_OVER_LIMIT}};
    CHECK(tw_decide(&clip, &attempt, 1, &plan) == TW_OK && plan.time.val.carried == 4);
    // Frames get fewer before anything is blended.
    clip.limit_bytes = MIB;
    clip.allows_blended = false;
    clip.capabilities.exact = true;
    CHECK(tw_decide(&clip, NULL, 0, &plan) == TW_OK && plan.space.tag == TW_EXACT && plan.space.val.exact.height == 64);
    CHECK(plan.time.val.carried == 4);

    // Samples are streamed if their weights do not fit.
    tw_sample_request sample;
    memset(&sample, 0, sizeof sample);
    sample.batch = sample.passes = 2;
    sample.limit_bytes = 2048 * MIB;
    sample.objective = TW_BALANCED;
    tw_sample_plan streamed;
    CHECK(tw_decide_sample(&sample, NULL, 0, &streamed) == TW_OK && streamed.residency.tag == TW_RESIDENT);
    CHECK(streamed.guidance == TW_TOGETHER);
    sample.limit_bytes = 300 * MIB;
    CHECK(tw_decide_sample(&sample, NULL, 0, &streamed) == TW_OK && streamed.residency.tag == TW_STREAMED);
    tw_sample_attempt failed = {.plan = streamed, .failure = {.tag = TW_OUT_OF_MEMORY}};
    CHECK(tw_decide_sample(&sample, &failed, 1, &streamed) == TW_OK && streamed.residency.tag == TW_HOST);
    failed.plan = streamed;
    CHECK(tw_decide_sample(&sample, &failed, 1, &streamed) != TW_OK);
    // A narrow type is for what fits in no other way, and not for what overflowed in it.
    counts_types = true;
    CHECK(tw_decide_sample(&sample, NULL, 0, &streamed) == TW_OK && streamed.precision.val.uniform == TW_F32);
    sample.limit_bytes = 150 * MIB;
    CHECK(tw_decide_sample(&sample, NULL, 0, &streamed) == TW_OK && streamed.precision.val.uniform == TW_BF16);
    failed = (tw_sample_attempt){.plan = streamed, .failure = {.tag = TW_NON_FINITE}};
    CHECK(tw_decide_sample(&sample, &failed, 1, &streamed) != TW_OK);

    // A tile out of range is refused.
    tw_describe.settings[0].integer = 100;
    CHECK(tw_configure() != TW_OK);

    printf(failures ? "%d failed\n" : "all passed\n", failures);
    return failures != 0;
}
