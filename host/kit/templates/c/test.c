// Runs natively, without WebAssembly, with a stand-in for the host:
//
//     mkdir -p build && cc -Isdk -o build/test test.c decide.c && build/test

#include "tilewright.h"

#include <stdio.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

static int failures = 0;
#define CHECK(what) ((what) ? (void)0 : (void)(failures++, printf("test.c:%d: not so: %s\n", __LINE__, #what)))

// A host for which a pixel of a tile costs a kilobyte, and one memory order is quicker than the other.
bool tw_estimate(const tw_plan *plan, tw_cost *cost) {
    uint32_t side = plan->space.tag == TW_WHOLE ? 1024 : plan->space.val.blended.height;
    uint64_t elapsed_ns = plan->layout == TW_CHANNELS_LAST ? 1000 : 2000;
    *cost = (tw_cost){.peak_bytes = (uint64_t)side * side << 10, .elapsed_ns = elapsed_ns, .tiles = 1, .shapes = 1, .rework = 1.0};
    return true;
}

// A picture of 1024×1024 with this much memory.
static tw_request request(uint64_t memory_limit) {
    tw_request request;
    memset(&request, 0, sizeof request);
    request.batch = request.frames = 1;
    request.height = request.width = 1024;
    request.memory_limit = memory_limit;
    request.device.free_bytes = 65536 * MIB;
    request.objective = TW_BALANCED;
    return request;
}

int main(void) {
    CHECK(tw_configure() == TW_OK);

    // Whole where it fits, tiles where it does not.
    tw_plan plan;
    tw_request roomy = request(2048 * MIB), tight = request(300 * MIB);
    CHECK(tw_decide(&roomy, &plan) == TW_OK && plan.space.tag == TW_WHOLE && plan.layout == TW_CHANNELS_LAST);
    CHECK(tw_decide(&tight, &plan) == TW_OK && plan.space.tag == TW_BLENDED && plan.space.val.blended.height == 512);
    roomy.objective = TW_LEANEST;
    CHECK(tw_decide(&roomy, &plan) == TW_OK && plan.space.val.blended.height == 64);

    // Tiles shrink until there is nothing smaller.
    tw_attempt attempt = {.plan = tw_whole(TW_F32), .failure = {.tag = TW_OUT_OF_MEMORY}};
    for (uint32_t side = 512; side >= 64; side /= 2) {
        CHECK(tw_recover(&tight, &attempt, 1, &plan) == TW_OK && plan.space.val.blended.height == side);
        attempt.plan = plan;
    }
    CHECK(tw_recover(&tight, &attempt, 1, &plan) != TW_OK);

    // A clip is taken in fewer frames at once.
    tw_request clip = roomy;
    clip.objective = TW_BALANCED;
    clip.frames = 81;
    clip.model.temporal_scale = 4;
    CHECK(tw_decide(&clip, &plan) == TW_OK && plan.space.tag == TW_WHOLE && plan.time.val.carried == 16);
    attempt = (tw_attempt){.plan = plan, .failure = {.tag = TW_OVER_LIMIT}};
    CHECK(tw_recover(&clip, &attempt, 1, &plan) == TW_OK && plan.time.val.carried == 8);

    // A tile out of range is refused.
    tw_describe.settings[0].integer = 100;
    CHECK(tw_configure() != TW_OK);

    printf(failures ? "%d failed\n" : "all passed\n", failures);
    return failures != 0;
}
