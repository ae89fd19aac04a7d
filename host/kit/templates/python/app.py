"""{{name}}: decodes and encodes whole if that fits into memory, in exact bands if it doesn't, and in tiles if nothing else
fits. Samples are in sample.py.

The host asks `decide` for a plan, and again after each plan that failed. It checks and clamps what it is answered: a policy
advises, and can't break anything. wit/policy.wit explains every field; bindings/ has the same as Python, for your editor.
"""

from dataclasses import replace

from componentize_py_types import Err, Ok
from sample import DenoisePolicy, held
from wit_world.exports import lifecycle
from wit_world.imports import vae_host
from wit_world.imports.types import Dtype, Failure_NonFinite, Objective, Precision_Uniform, Release, Stage, Value_Integer
from wit_world.imports.vae import (
    Layout, Plan, Space_Blended, Space_Exact, Space_Whole, Tile, Time_Carried, Time_Whole,
)

# The smallest tile, in pixels of the decoded picture.
LEAST = 64

# The user's settings; `configure` fills it in.
settings = {}


class Lifecycle:
    def describe(self):
        """Shown by `tilewright policy inspect`. A setting's default has its type: Value_Flag,
        _Integer, _Number or _Text. The host decides a stage that is not listed."""
        tile = lifecycle.Setting(
            "tile", "The side of a tile in pixels, if tiles are needed: 256 to 4096.", Value_Integer(512))
        return lifecycle.Description(
            "{{name}}", "0.1.0", "Whole if it fits, tiles if it doesn't.", [Stage.DECODE, Stage.ENCODE, Stage.DENOISE],
            [tile])

    def configure(self, given):
        """Gets every declared setting. After an Err the policy is not put to work: name the setting
        and the allowed values."""
        settings.update({name: value.value for name, value in given})
        if not 256 <= settings["tile"] <= 4096:
            raise Err("tile: allowed is 256 to 4096")


class VaePolicy:
    def decide(self, request, attempts):
        """A plan for a request after its attempts failed, the latest last; at first there are none.
        `request.direction` is decode or encode."""
        # The device: half the bytes if a probe found bf16 no slower. `request.device.arch` ("gfx1151")
        # is for rules about one chip.
        dtypes = [Dtype.BF16, Dtype.F32] if Dtype.BF16 in request.device.fast_dtypes else [Dtype.F32]
        # The user's limit, which goes by what is free if none was given.
        budget = request.limit_bytes
        for attempt in attempts:
            if isinstance(attempt.failure, Failure_NonFinite):
                # NaN or infinity: a type with a wider range.
                if attempt.plan.precision == Precision_Uniform(Dtype.F32):
                    raise Err("not finite in f32")
                dtypes = [Dtype.F32]
            else:
                # Too much memory, and more than expected: the next plan has to be expected well below.
                cost = price([attempt.plan])[0]
                budget = min(budget, held(cost) * 7 // 10 if cost else 0)
        # An error is an honest answer: the host then uses its own plan.
        if attempts and request.under_way is not None:
            raise Err("what a clip under way may change is best known to the host")
        plans = candidates(request, quickest(dtypes, request))
        plan = best(request, plans, budget)
        if plan is None and attempts:
            raise Err("nothing smaller is expected to fit")
        return plan or replace(plans[-1], reason="nothing is expected to fit: the smallest tiles")

    def learn(self, request, plan, outcome):
        """Called with the outcome of a plan. `vae_host.trials` gives the same later, so most policies
        need nothing here."""


class TextPolicy:
    """Text encoders: left to the host, since `describe` does not list the stage."""

    def decide(self, request, attempts):
        raise Err("it has no rules for text encoders")

    def learn(self, request, plan, outcome):
        pass


def candidates(request, whole):
    """Plans with the types and memory order of the whole picture, the largest parts first."""
    sides, side = [], max(request.height, request.width)
    while side := smaller(side):
        sides.append(side)
    # Bands give the whole picture's output, where the host can run them.
    heights = [side for side in sides if request.capabilities.exact and side < request.height]
    exact = [whole, *(bands(whole, height, request) for height in heights)]
    if request.frames <= 1:
        return [*exact, *(tiles(whole, side) for side in sides)]
    # A clip also gets plans with as many frames as the model takes at once, and fewer in the smallest bands.
    scale = request.temporal_scale
    plans = [each for plan in exact for each in (plan, carried(plan, scale))]
    few = [carried(exact[-1], few) for few in (2, 1) if few < scale]
    return [*plans, *few, *(tiles(carried(whole, scale), side) for side in sides)]


def best(request, plans, budget):
    """The best plan by the user's objective, of those that are expected to fit; None if none does."""
    # One question for all plans takes less time than one for each.
    fitting = [(plan, cost) for plan, cost in zip(plans, price(plans)) if cost is not None and held(cost) <= budget]
    if not fitting:
        return None
    # Tiles are cross-faded: unless the user allows that, they are the last resort.
    unblended = [(plan, cost) for plan, cost in fitting if not isinstance(plan.space, Space_Blended)]
    if unblended and not request.allows_blended:
        fitting = unblended

    plan, cost = {
        Objective.FASTEST: lambda: min(fitting, key=lambda each: each[1].elapsed_ns),
        Objective.LEANEST: lambda: min(fitting, key=lambda each: held(each[1])),
        # The first that fits: larger parts are computed faster.
        Objective.BALANCED: lambda: fitting[0],
    }[request.objective]()
    return replace(plan, reason=f"the best that fits, {cost.tiles} tiles")


def quickest(dtypes, request):
    """The fastest of these types and both memory orders, by the host's prices; it is the fastest in
    tiles, too."""
    plans = [whole(dtype, layout, request) for dtype in dtypes for layout in (Layout.CHANNELS_FIRST, Layout.CHANNELS_LAST)]
    return min(zip(plans, price(plans)), key=lambda each: each[1].elapsed_ns if each[1] else float("inf"))[0]


def whole(dtype, layout, request):
    """The whole picture at once, or a few frames of a clip, with the causal cache carried."""
    time = Time_Carried(4 * request.temporal_scale) if request.frames > 1 else Time_Whole()
    return Plan(
        space=Space_Whole(), time=time, batch=1, precision=Precision_Uniform(dtype), layout=layout,
        release=Release.AT_END, offload=False, prefetch=0, options=[], reason="")


def tiles(plan, side):
    """The same plan in tiles that are cross-faded over an eighth of their side."""
    return replace(plan, space=Space_Blended(Tile(side, side, side // 8)))


def bands(plan, height, request):
    """The same plan in bands that give the whole picture's output."""
    return replace(plan, space=Space_Exact(Tile(height, request.width, 0)))


def carried(plan, frames):
    """The same plan with this many frames at once, and the causal cache carried."""
    return replace(plan, time=Time_Carried(frames))


def smaller(than):
    """The next smaller tile than this many pixels: the user's side, half of it, a quarter, and so on;
    None if that is too small."""
    side = settings["tile"]
    while side >= than:
        side //= 2
    return side if side >= LEAST else None


def price(plans):
    """The expected costs of plans, in their order; None for one that it can't run."""
    return [cost.value if isinstance(cost, Ok) else None for cost in vae_host.estimate(plans)]
