"""Samplers by policy in a real ComfyUI, with a small transformer of WAN's."""

from __future__ import annotations

import json
import time
from typing import Any

import graphs
import pytest
from comfyui import Interrupted, PromptFailed, Server
from safetensors.torch import load_file

#: Plans that make no more of a batch than ComfyUI does: the same bits.
TOGETHER = {"policy": "fixed", "settings": "guidance=together"}

#: Plans that divide the work otherwise: the same to rounding.
DIVIDED = {
    "in turn": "guidance=in-turn",
    "one by one": "guidance=together\nsamples=1",
    "one by one, in turn": "guidance=in-turn\nsamples=1",
    "pieces": "guidance=together\nattention=24",
}


def _sample(server: Server, graph: graphs.Graph, name: str) -> tuple[Any, dict[str, Any]]:
    result = server.run(graph)
    record = json.loads(result.texts("record")[0]) if "record" in result.outputs else {}
    if "options" in result.outputs:
        left = json.loads(result.texts("options")[0])
        # Nothing of a run stays with the model that it was given.
        assert "optimized_attention_override" not in left["options"]
        assert "wrappers" not in left["options"]
        assert (left["patches"], left["own"], left["dtype"], left["hooks"]) == ([], [], "None", 0)
    return load_file(server.output(name))["values"], record


def _relative(one: Any, other: Any) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"sampler_name": "dpmpp_2m_sde", "scheduler": "karras", "denoise": 0.6},
        {"cfg": 1.0},
        {"advanced": {"start_at_step": 1, "end_at_step": 3, "return_with_leftover_noise": "enable"}},
        {"advanced": {"add_noise": "disable", "start_at_step": 2}},
    ],
    ids=str,
)
def test_latents_are_the_core_nodes_to_the_bit(server: Server, asked: dict[str, Any]) -> None:
    own, _ = _sample(server, graphs.guided("own", **asked), "own")
    governed, record = _sample(server, graphs.guided("governed", governed=TOGETHER, **asked), "governed")
    assert own.abs().max() > 0
    assert bool((own == governed).all())
    passes = 1 if asked.get("cfg") == 1.0 else 2
    assert record["request"]["passes"] == passes
    assert passes == 1 or record["plan"]["guidance"] == "together"


@pytest.mark.parametrize("guider", ["CFGGuider", "BasicGuider"])
@pytest.mark.parametrize("output", [0, 1])
def test_custom_latents_are_the_core_nodes_to_the_bit(server: Server, guider: str, output: int) -> None:
    own, _ = _sample(server, graphs.custom("own", guider=guider, output=output), "own")
    governed, record = _sample(
        server, graphs.custom("governed", governed=TOGETHER, guider=guider, output=output), "governed"
    )
    assert bool((own == governed).all())
    assert record["request"]["passes"] == (2 if guider == "CFGGuider" else 1)
    assert record["request"]["sampler"] == "euler"


@pytest.mark.parametrize("settings", DIVIDED.values(), ids=DIVIDED)
def test_divided_work_gives_the_same_latents_to_rounding(server: Server, settings: str) -> None:
    own, _ = _sample(server, graphs.guided("own"), "own")
    governed, record = _sample(
        server, graphs.guided("governed", governed={"policy": "fixed", "settings": settings}), "governed"
    )
    assert _relative(governed, own) <= 1e-4
    plan = record["plan"]
    assert plan["guidance"] == ("in-turn" if "in-turn" in settings else "together")
    assert plan.get("samples") == (1 if "samples=1" in settings else None)
    assert plan["attention"]["kind"] == ("pieces" if "attention" in settings else "fused")


def test_the_adaptive_policy_gives_the_same_latents_and_a_record(server: Server) -> None:
    own, _ = _sample(server, graphs.guided("own"), "own")
    governed, record = _sample(server, graphs.guided("governed", governed={}), "governed")
    assert _relative(governed, own) <= 1e-4
    assert record["stage"] == "denoise"
    assert record["request"]["steps"] == 4
    assert len(record["request"]["sigmas"]) == 5
    assert record["request"]["batch"] == 2
    assert record["outcome"]["step_ms"] > 0
    assert record.get("fallback") is None
    assert record["estimate"]["peak_bytes"] > 0
    assert server.records("TilewrightKSampler")[-1] == record


@pytest.mark.parametrize("policy", ["adaptive", "fixed"])
def test_a_sample_that_runs_out_of_memory_goes_on_by_the_next_plan(server: Server, policy: str) -> None:
    own, _ = _sample(server, graphs.guided("own"), "own")
    settings = {"settings": "guidance=together"} if policy == "fixed" else {}
    graph = graphs.guided("governed", governed={"policy": policy, **settings}, short=(1, 2))
    governed, record = _sample(server, graph, "governed")
    assert _relative(governed, own) <= 1e-4
    assert record["outcome"]["attempts"] == len(record["attempts"]) + 1 > 1
    assert record["attempts"][0]["failure"]["kind"] == "out-of-memory"
    # The first steps were not lost.
    assert record["attempts"][0]["step"] >= 1
    assert record["plan"].get("samples") == 1


def test_a_sample_that_no_plan_fits_fails_in_one_line(server: Server) -> None:
    with pytest.raises(PromptFailed) as raised:
        server.run(graphs.guided("never", governed={}, short=(0, 0)))
    [message] = raised.value.messages
    assert "out of memory" in message.lower()


def test_steps_are_reused_if_they_may_be(server: Server) -> None:
    settings = {"policy": "fixed", "settings": "guidance=together"}
    own, _ = _sample(server, graphs.guided("own", steps=20), "own")
    graph = graphs.guided("governed", steps=20, governed={**settings, "step_reuse": 0.9})
    governed, record = _sample(server, graph, "governed")
    assert record["plan"]["reuse"] == {"kind": "output", "threshold": 0.9}
    assert record["outcome"]["reused"] > 0
    assert 0 < _relative(governed, own) < 2
    assert 0 < record["outcome"]["reuse_deviation"] < 0.9


def test_narrower_types_are_taken_only_if_they_may_be(server: Server) -> None:
    own, _ = _sample(server, graphs.guided("own"), "own")
    settings = {"policy": "fixed", "settings": "guidance=together\nprecision=bf16"}
    kept, record = _sample(server, graphs.guided("kept", governed=settings), "kept")
    assert record["plan"]["precision"]["dtype"] == "f32"
    assert bool((own == kept).all())
    narrow, record = _sample(server, graphs.guided("narrow", governed={**settings, "allow_lossy": True}), "narrow")
    assert record["plan"]["precision"]["dtype"] == "bf16"
    assert 1e-5 < _relative(narrow, own) < 0.1


def test_cancelling_a_sample_ends_within_two_seconds(server: Server) -> None:
    server.run(graphs.guided("before", governed={}))
    prompt = server.queue(graphs.guided("never", governed={}, latent="2,16,5,64,64", steps=50))
    server.wait_until_running(prompt)
    time.sleep(2.0)
    cancelled = time.monotonic()
    server.interrupt()
    with pytest.raises(Interrupted):
        server.wait(prompt)
    assert time.monotonic() - cancelled < 2.0
    own, _ = _sample(server, graphs.guided("own"), "own")
    after, _ = _sample(server, graphs.guided("after", governed=TOGETHER), "after")
    assert bool((own == after).all())


def test_prompts_right_after_a_cancel_run_while_the_cancelled_one_ends(server: Server) -> None:
    server.run(graphs.guided("before", governed={}))
    for turn in range(5):
        prompt = server.queue(graphs.guided(f"never{turn}", governed={}, latent="2,16,5,64,64", steps=50))
        server.wait_until_running(prompt)
        # Another layer each time.
        time.sleep(1.0 + 0.13 * turn)
        server.interrupt()
        with pytest.raises(Interrupted):
            server.wait(prompt)
        server.run(graphs.guided(f"own{turn}", latent="2,16,3,32,32"))


def test_the_inputs_are_the_core_nodes(server: Server) -> None:
    for core in ("KSampler", "KSamplerAdvanced", "SamplerCustomAdvanced"):
        own, governed = server.nodes(core)[core], server.nodes(f"Tilewright{core}")[f"Tilewright{core}"]
        for name, said in own["input"]["required"].items():
            kind, options = (*governed["input"]["required"][name], {})[:2]
            # Newer nodes say a list of words in another way.
            words = options.get("options") if kind == "COMBO" else kind
            assert words == (said[0] if said[0] != "COMBO" else said[1]["options"])
            for key in ("default", "min", "max", "step", "round", "control_after_generate"):
                if len(said) > 1 and key in said[1]:
                    assert options[key] == said[1][key], (core, name, key)
        assert governed["output"][: len(own["output"])] == own["output"]
        assert governed["output_name"][: len(own["output"])] == own["output_name"]
