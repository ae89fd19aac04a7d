"""Pipelines of diffusers by policy: the same outputs as without, within a limit, and everything given back."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")
pytest.importorskip("tilewright._native")

import pipelines
from apart import Apart
from diffusers import AutoPipelineForImage2Image

from tilewright import Policy, TilewrightError, records
from tilewright.diffusers import Governed, govern, release
from tilewright.executor.parts import Parts

torch.set_num_threads(1)

GOVERNED = ("flux", "sdxl", "sd3", "wan", "qwen")

#: The most that exact plans may differ by from the module's own way, in f32.
EXACT = 1e-5


class Folders:
    """Pipelines in folders, each made when it is first asked for."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._plain: dict[str, torch.Tensor] = {}

    def load(self, name: str, **options: Any) -> Any:
        folder = self._base / name
        if not folder.exists():
            pipelines.save(name, folder)
        return pipelines.load(folder, **options)

    def plain(self, name: str) -> torch.Tensor:
        """The output of the pipeline without anyone's help."""
        if name not in self._plain:
            self._plain[name] = pipelines.run(name, self.load(name))
        return self._plain[name]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("pipelines"))


@pytest.fixture(scope="session")
def adaptive() -> Policy:
    return Policy("adaptive")


def stages(governed: Governed) -> list[str]:
    return [str(record.stage) for record in governed.records]


def last(governed: Governed, stage: str) -> Any:
    return [record for record in governed.records if record.stage == stage][-1]


def attributes(pipe: Any) -> dict[str, set[str]]:
    """The names of what instances have of their own."""
    owners = {"": pipe, **{name: part for name, part in pipe.components.items() if isinstance(part, torch.nn.Module)}}
    # A call leaves some that begin so on the pipeline itself.
    return {
        name: {one for one in vars(owner) if name or not one.startswith("_") or "tilewright" in one}
        for name, owner in owners.items()
    }


def weights(pipe: Any) -> dict[str, tuple[int, torch.dtype, torch.Tensor]]:
    found: dict[str, tuple[int, torch.dtype, torch.Tensor]] = {}
    for name, part in pipe.components.items():
        if isinstance(part, torch.nn.Module):
            for key, tensor in Parts.of(part).tensors():
                found[f"{name}.{key}"] = id(tensor), tensor.dtype, tensor.detach().clone()
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        one[key][:2] == other[key][:2] and torch.equal(one[key][2], other[key][2]) for key in one
    )


@pytest.mark.parametrize("name", GOVERNED)
def test_a_governed_pipeline_gives_what_it_gives_without_whole_and_in_exact_bands(
    name: str, folders: Folders
) -> None:
    pipe = folders.load(name)
    height = 128
    expected = pipelines.run(name, pipe, height=height)
    owned, before = attributes(pipe), weights(pipe)
    governed = govern(pipe, settings={"precision": "f32"})
    assert pipe.tilewright is governed
    assert (pipelines.run(name, pipe, height=height) - expected).abs().max() <= EXACT
    assert set(stages(governed)) == {"text", "denoise", "decode"}
    whole = last(governed, "decode").estimate.peak_bytes
    # Pictures so small have bands that hold about as much as the whole: a policy takes them that is told to.
    banded = {"space": "exact", "tile": 64, "precision": "f32"}
    governed = govern(pipe, "fixed", settings=banded, memory_limit=whole)
    assert (pipelines.run(name, pipe, height=height) - expected).abs().max() <= EXACT
    record = last(governed, "decode")
    assert isinstance(record.plan.space, records.ExactSpace) and record.outcome.attempts == 1
    assert record.estimate.peak_bytes <= whole
    sample = last(governed, "denoise")
    assert sample.request.steps == 2 and sample.outcome.attempts == 1 and sample.outcome.step_ms > 0
    assert sample.plan.precision == records.UniformPrecision(dtype="f32")
    for one in governed.records:
        assert type(one).from_json(one.to_json()) == one and one.outcome is not None
    release(pipe)
    assert attributes(pipe) == owned and same(weights(pipe), before)


def test_requests_say_what_the_pipeline_was_asked_for(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("wan")
    governed = govern(pipe, adaptive)
    pipelines.run("wan", pipe)
    pipelines.run("wan", pipe)
    sample = last(governed, "denoise").request
    assert (sample.model.family, sample.model.blocks, sample.passes) == ("wan-2.1", 3, 2)
    assert (sample.batch, sample.frames, sample.height, sample.width) == (1, 3, 8, 8)
    assert (sample.text_tokens, sample.image_tokens, sample.sampler) == (16, 48, "UniPCMultistepScheduler")
    text = last(governed, "text").request
    assert text.tokens == (16,) and text.model.kind == "umt5-32" and text.model.blocks == 3
    pipe = folders.load("flux")
    governed = govern(pipe, adaptive)
    pipelines.run("flux", pipe, num_images_per_prompt=2)
    sample = last(governed, "denoise").request
    assert (sample.model.family, sample.batch, sample.height, sample.width) == ("flux", 2, 8, 8)
    assert (sample.text_tokens, sample.image_tokens, sample.model.blocks) == (16, 16, 4)
    assert [record.request.model.kind for record in governed.records if record.stage == "text"] == ["clip-32", "t5-32"]


def test_other_pipelines_are_governed_as_well(folders: Folders, adaptive: Policy) -> None:
    expected, pipe = folders.plain("sd15"), folders.load("sd15")
    governed = govern(pipe, adaptive)
    assert (pipelines.run("sd15", pipe) - expected).abs().max() <= EXACT
    assert last(governed, "denoise").request.model.family == "sd"


def test_encodes_give_the_same_distribution(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sdxl")
    picture = torch.rand(1, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        own = pipe.vae.encode(picture).latent_dist
        governed = govern(pipe, adaptive)
        made = pipe.vae.encode(picture)
        short = pipe.vae.encode(picture, return_dict=False)[0]
        latents = torch.randn(1, 4, 8, 8)
        pair = pipe.vae.decode(latents, return_dict=False), pipe.vae.decode(latents, generator=None).sample
    assert type(made).__name__ == "AutoencoderKLOutput" and type(made.latent_dist) is type(own)
    assert (made.latent_dist.mean - own.mean).abs().max() <= EXACT and torch.equal(short.mean, made.latent_dist.mean)
    seeds = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert (made.latent_dist.sample(seeds[0]) - own.sample(seeds[1])).abs().max() <= EXACT
    assert torch.equal(pair[0][0], pair[1])
    assert stages(governed) == ["encode", "encode", "decode", "decode"]


def test_gradients_go_through_the_modules_own_way(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sdxl")
    governed = govern(pipe, adaptive)
    latents = torch.randn(1, 4, 8, 8, requires_grad=True)
    pipe.vae.decode(latents).sample.mean().backward()
    assert latents.grad is not None and governed.records == []


def test_what_its_user_set_is_put_aside_and_comes_back(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sdxl")
    pipe.vae.enable_tiling()
    before = pipe.vae.config
    govern(pipe, adaptive)
    assert not pipe.vae.use_tiling and not pipe.vae.use_slicing and pipe.vae.config is before
    pipe.vae.enable_slicing()
    release(pipe)
    assert pipe.vae.use_tiling and pipe.vae.use_slicing
    release(pipe)


def test_governing_anew_takes_the_place_of_what_was_there(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sd15")
    owned = attributes(pipe)
    first = govern(pipe, adaptive)
    second = govern(pipe, adaptive, objective="leanest")
    assert first.is_released and not second.is_released and pipe.tilewright is second
    pipelines.run("sd15", pipe)
    assert first.records == [] and last(second, "denoise").request.objective == "leanest"
    first.release()
    assert pipe.tilewright is second
    second.release()
    assert attributes(pipe) == owned and not hasattr(pipe, "tilewright")


def test_pipelines_share_their_parts(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sd15")
    owned = attributes(pipe)
    other = AutoPipelineForImage2Image.from_pipe(pipe)
    first, second = govern(pipe, adaptive), govern(other, adaptive)
    latents = torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        pipe.vae.decode(latents)
        assert (len(first.records), len(second.records)) == (0, 1)
        second.release()
        pipe.vae.decode(latents)
        assert (len(first.records), len(second.records)) == (1, 1)
    second = govern(other, adaptive)
    first.release()
    with torch.no_grad():
        pipe.vae.decode(latents)
    assert len(second.records) == 1
    del other, second
    gc.collect()
    assert attributes(pipe) == owned, "parts that outlive their pipeline are given back"


def test_copies_and_files_of_a_governed_pipeline_are_not_governed(
    folders: Folders, adaptive: Policy, tmp_path: Path
) -> None:
    expected, pipe = folders.plain("sd15"), folders.load("sd15")
    governed = govern(pipe, adaptive)
    copied, pickled = copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))
    pipe.save_pretrained(tmp_path)
    for one in (copied, pickled, pipelines.load(tmp_path)):
        assert (pipelines.run("sd15", one) - expected).abs().max() <= EXACT
        assert getattr(one, "tilewright", None) is None
    assert governed.records == []
    pipelines.run("sd15", pipe)
    assert len(governed.records) >= 3
    again = govern(copied, adaptive)
    pipelines.run("sd15", copied)
    assert len(again.records) >= 3
    again.release()
    assert torch.equal(pipelines.run("sd15", copied), expected)


def test_a_governed_pipeline_is_freed(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sd15")
    governed = govern(pipe, adaptive)
    pipelines.run("sd15", pipe)
    gone = weakref.ref(pipe), weakref.ref(pipe.unet), weakref.ref(pipe.vae)
    kept = governed.records
    del pipe, governed
    gc.collect()
    assert [one() for one in gone] == [None] * 3 and kept


@pytest.mark.parametrize("is_released", [False, True])
def test_what_govern_returned_keeps_no_part(is_released: bool, folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sd15")
    governed = govern(pipe, adaptive)
    pipelines.run("sd15", pipe)
    gone = [weakref.ref(one) for one in (pipe, pipe.unet, pipe.vae, pipe.text_encoder)]
    if is_released:
        governed.release()
    del pipe
    gc.collect()
    assert [one() for one in gone] == [None] * 4 and len(governed.records) >= 3
    governed.release()
    assert governed.is_released


def test_threads_that_share_networks_take_turns(folders: Folders) -> None:
    first = folders.load("sd15", torch_dtype=torch.bfloat16)
    shared = {**first.components, "scheduler": copy.deepcopy(first.scheduler)}
    pipes = (first, type(first)(**shared, requires_safety_checker=False))
    for pipe in pipes:
        pipe.set_progress_bar_config(disable=True)
        govern(pipe, settings={"precision": "f32"})
    before = weights(first)
    expected = [pipelines.run("sd15", pipe, num_inference_steps=3) for pipe in pipes]
    found: dict[int, Any] = {}

    def run(index: int) -> None:
        try:
            outputs = [pipelines.run("sd15", pipes[index], num_inference_steps=3) for _ in range(3)]
        except BaseException as error:
            found[index] = error
        else:
            found[index] = max(float((one - expected[index]).abs().max()) for one in outputs)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert same(weights(first), before), "each parameter has its type and its values"
    assert found == {0: 0.0, 1: 0.0}
    for pipe in reversed(pipes):
        release(pipe)


def test_another_thread_that_asks_for_a_networks_type_is_told_its_own(folders: Folders) -> None:
    pipe = folders.load("sd15", torch_dtype=torch.bfloat16)
    pipe.set_progress_bar_config(disable=True)
    govern(pipe, settings={"precision": "f32"})
    begun, goes_on = threading.Event(), threading.Event()
    within: list[torch.dtype] = []

    def wait(*_: Any) -> None:
        within.append(pipe.unet.dtype)
        begun.set()
        goes_on.wait(60)

    pipe.unet.conv_in.register_forward_pre_hook(wait)
    runs = threading.Thread(target=lambda: pipelines.run("sd15", pipe, num_inference_steps=1))
    runs.start()
    assert begun.wait(60)
    told: list[torch.dtype] = []
    asks = threading.Thread(target=lambda: told.append(pipe.unet.dtype))
    asks.start()
    # Time enough for an answer that does not wait.
    asks.join(0.5)
    goes_on.set()
    asks.join()
    runs.join()
    assert (set(within), told) == ({torch.float32}, [torch.bfloat16])
    release(pipe)


def test_the_users_last_word_on_tiling_counts(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sd15")
    pipe.vae.enable_tiling()
    pipe.vae.enable_slicing()
    govern(pipe, adaptive)
    assert not pipe.vae.use_tiling and not pipe.vae.use_slicing
    pipe.vae.disable_tiling()
    govern(pipe, adaptive)
    release(pipe)
    assert pipe.vae.use_tiling is False and pipe.vae.use_slicing is True


def test_copies_of_governed_parts_are_as_their_user_had_them(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sd15")
    pipe.vae.enable_tiling()
    owned = attributes(pipe), set(vars(pipe.vae))
    govern(pipe, adaptive)
    for one in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe)), copy.copy(pipe)):
        assert set(vars(one)) == set(vars(pipe)) - {
            "progress_bar", "maybe_free_model_hooks", "tilewright", "_tilewright_replacements", "__getstate__"
        }
    for vae in (copy.deepcopy(pipe.vae), pickle.loads(pickle.dumps(pipe.vae)), copy.copy(pipe.vae)):
        assert vae.use_tiling is True and set(vars(vae)) == owned[1]
    release(pipe)
    assert attributes(pipe) == owned[0]


def test_a_vae_that_was_changed_runs_as_it_is_and_the_notes_say_so(folders: Folders) -> None:
    pipe = folders.load("sd15")
    pipe.vae.decoder.mid_block.register_parameter("adapter", torch.nn.Parameter(torch.ones(3)))
    expected = pipelines.run("sd15", pipe)
    governed = govern(pipe, settings={"precision": "f32"})
    assert (pipelines.run("sd15", pipe) - expected).abs().max() <= EXACT
    said = last(governed, "decode").plan.reason
    assert "the VAE was changed (tensor decoder.mid_block.adapter" in said and "/" not in said
    assert f"vae: {said}" in governed.notes


def test_places_that_the_user_chose_stay(folders: Folders, adaptive: Policy) -> None:
    expected = folders.plain("sd15")
    pipe = folders.load("sd15")
    from accelerate import cpu_offload

    for part in (pipe.unet, pipe.text_encoder, pipe.vae):
        cpu_offload(part, torch.device("cpu"))
    governed = govern(pipe, adaptive)
    assert any(note.startswith("unet: Accelerate offloads it") for note in governed.notes)
    assert (pipelines.run("sd15", pipe) - expected).abs().max() <= EXACT
    assert stages(governed) == ["decode"]
    pipe = folders.load("sd15")
    pipe.enable_group_offload(torch.device("cpu"), torch.device("cpu"), "leaf_level")
    governed = govern(pipe, adaptive)
    assert any(note.startswith("unet: group offloading moves it") for note in governed.notes)
    assert (pipelines.run("sd15", pipe) - expected).abs().max() <= EXACT
    assert stages(governed) == ["decode"]
    release(pipe)
    assert torch.equal(pipelines.run("sd15", pipe), expected)


def test_offload_that_begins_later_is_respected(folders: Folders, adaptive: Policy) -> None:
    expected, pipe = folders.plain("sd15"), folders.load("sd15")
    governed = govern(pipe, adaptive)
    pipe.unet.enable_group_offload(torch.device("cpu"), torch.device("cpu"), "leaf_level")
    assert (pipelines.run("sd15", pipe) - expected).abs().max() <= EXACT
    assert "denoise" not in stages(governed) and any("group offloading" in note for note in governed.notes)


@pytest.mark.parametrize("ahead", ["0", "1", "all"])
@pytest.mark.parametrize("name", ["flux", "sdxl"])
def test_weights_come_as_plans_have_it_on_a_device_apart(name: str, ahead: str, folders: Folders) -> None:
    expected, pipe = folders.plain(name), folders.load(name)
    before = weights(pipe)
    places = Apart()
    governed = govern(pipe, settings={"ahead": ahead, "kept": False, "place": "device"}, places=places)
    assert (pipelines.run(name, pipe) - expected).abs().max() <= EXACT
    sample = last(governed, "denoise")
    network = pipe.components.get("transformer") or pipe.unet
    parts = Parts.of(network)
    streamed = sum(block.bytes for block in parts.blocks)
    assert sample.plan.ahead == (None if ahead == "all" else int(ahead))
    assert sample.outcome.moved_bytes == (0 if ahead == "all" else 2 * streamed)
    largest = max(block.bytes for block in parts.blocks)
    most = parts.bytes if ahead == "all" else parts.rest.bytes + (int(ahead) + 1) * largest
    assert sample.outcome.weights_bytes <= most
    texts = [record for record in governed.records if record.stage == "text"]
    assert all(record.plan.place == "device" and not record.plan.kept for record in texts)
    assert all(record.outcome.weights_bytes > 0 for record in texts)
    held = parts.bytes if ahead == "all" else parts.rest.bytes
    assert places.held_bytes() == held, "text encoders have left"
    release(pipe)
    assert places.held_bytes() == 0 and same(weights(pipe), before)
    # Weights begin at other addresses than in a file, which changes the order of some sums.
    assert (pipelines.run(name, pipe) - expected).abs().max() <= EXACT


def test_a_limit_that_the_denoiser_does_not_fit_has_its_blocks_streamed(folders: Folders, adaptive: Policy) -> None:
    expected, pipe = folders.plain("sdxl"), folders.load("sdxl")
    places = Apart()
    parts = Parts.of(pipe.unet)
    limit = parts.rest.bytes + 2 * max(block.bytes for block in parts.blocks) + (8 << 20)
    assert limit < parts.bytes + (8 << 20)
    governed = govern(pipe, Policy("adaptive"), memory_limit=limit, places=places)
    pipelines.run("sdxl", pipe)
    assert (pipelines.run("sdxl", pipe) - expected).abs().max() <= EXACT
    sample = last(governed, "denoise")
    if sample.plan.ahead is None:
        assert sample.estimate.peak_bytes + sample.estimate.weights_bytes <= limit
    else:
        assert sample.outcome.weights_bytes < parts.bytes


def test_text_encoders_run_on_the_host_if_a_plan_says_so(folders: Folders) -> None:
    expected, pipe = folders.plain("flux"), folders.load("flux")
    places = Apart()
    governed = govern(pipe, settings={"place": "host"}, places=places)
    assert (pipelines.run("flux", pipe) - expected).abs().max() <= EXACT
    texts = [record for record in governed.records if record.stage == "text"]
    assert [record.plan.place for record in texts] == ["host", "host"]
    assert all(record.outcome.weights_bytes == 0 and record.outcome.host_bytes > 0 for record in texts)
    denoiser = Parts.of(pipe.transformer).bytes
    assert places.most_bytes == denoiser


def test_a_sample_that_runs_out_of_memory_goes_on_by_another_plan(folders: Folders) -> None:
    expected, pipe = folders.plain("flux"), folders.load("flux")
    places = Apart()
    governed = govern(pipe, places=places)
    calls = []

    def run_out(module: Any, inputs: Any) -> None:
        calls.append(places.held_bytes())
        # At the second step, while all weights are on the device.
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")

    handle = pipe.transformer.single_transformer_blocks[0].register_forward_pre_hook(run_out)
    made = pipelines.run("flux", pipe)
    handle.remove()
    assert (made - expected).abs().max() <= EXACT
    sample = last(governed, "denoise")
    assert sample.outcome.attempts == 2 and len(sample.attempts) == 1 and len(calls) == 3
    failed = sample.attempts[0]
    assert failed.plan.ahead is None and failed.failure == records.OutOfMemoryFailure(bytes=int(2.5 * 2**30))
    assert failed.step == 1 and sample.plan.ahead is not None and calls[2] < calls[1]


def test_an_error_that_no_plan_avoids_is_raised_as_it_is(folders: Folders, adaptive: Policy) -> None:
    expected, pipe = folders.plain("sd15"), folders.load("sd15")
    governed = govern(pipe, adaptive)

    def fail(module: Any, inputs: Any) -> None:
        raise ValueError("broken")

    handle = pipe.unet.mid_block.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="broken"):
        pipelines.run("sd15", pipe)
    handle.remove()
    assert "denoise" not in stages(governed)
    assert (pipelines.run("sd15", pipe) - expected).abs().max() <= EXACT
    assert stages(governed).count("denoise") == 1


def test_a_narrow_type_is_only_that_of_the_work(folders: Folders) -> None:
    expected, pipe = folders.plain("sdxl"), folders.load("sdxl")
    before = weights(pipe)
    governed = govern(pipe, settings={"precision": "bf16"})
    made = pipelines.run("sdxl", pipe)
    sample = last(governed, "denoise")
    assert sample.plan.precision == records.UniformPrecision(dtype="bf16")
    assert 0 < (made - expected).abs().max() < 0.2
    assert same(weights(pipe), before)


def test_weights_in_bf16_can_be_computed_in_f32(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("flux").to(torch.bfloat16)
    before = weights(pipe)
    plain = pipelines.run("flux", pipe)
    exact = pipelines.run("flux", copy.deepcopy(pipe).to(torch.float32))
    governed = govern(pipe, settings={"precision": "f32"})
    made = pipelines.run("flux", pipe)
    assert last(governed, "denoise").plan.precision == records.UniformPrecision(dtype="f32")
    assert (made - exact).abs().mean() < (plain - exact).abs().mean()
    assert same(weights(pipe), before)


def test_the_kernel_of_attention_is_a_plans_and_only_for_the_sample(folders: Folders) -> None:
    expected, pipe = folders.plain("flux"), folders.load("flux")
    processors = list(pipe.transformer.attn_processors.values())
    seen = set()

    def look(module: Any, inputs: Any) -> None:
        seen.update(processor._attention_backend for processor in processors)

    pipe.transformer.norm_out.register_forward_pre_hook(look)
    governed = govern(pipe, "fixed", settings={"options": "attention-backend=_native_math"})
    assert (pipelines.run("flux", pipe) - expected).abs().max() <= EXACT
    assert seen == {"_native_math"}
    assert last(governed, "denoise").plan.options == (("attention-backend", "_native_math"),)
    assert {processor._attention_backend for processor in processors} == {None}


def test_a_forward_outside_of_a_pipelines_loop_is_a_sample_of_one_step(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sd15")
    governed = govern(pipe, adaptive)
    with torch.no_grad():
        pipe.unet(torch.randn(1, 4, 8, 8), 3, torch.randn(1, 7, 32))
    assert stages(governed) == ["denoise"] and governed.records[0].request.steps == 1


def test_a_pipeline_without_a_vae_is_governed_for_the_rest(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("flux", vae=None)
    governed = govern(pipe, adaptive)
    assert governed.notes == ["the pipeline has no VAE: the rest of it is governed"]
    pipelines.run("flux", pipe, output_type="latent")
    assert stages(governed) == ["text", "text", "denoise"]


def test_wrong_arguments_are_refused_in_a_line_before_anything_changes(folders: Folders, adaptive: Policy) -> None:
    pipe = folders.load("sd15")
    owned = attributes(pipe)
    with pytest.raises(TypeError, match="expected a pipeline of diffusers, not UNet2DConditionModel"):
        govern(pipe.unet)
    with pytest.raises(TypeError, match="expected a pipeline"):
        release(3)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"policy": "adaptiv"}, "adaptiv"),
        ({"policy": "nowhere.wasm"}, "nowhere.wasm"),
        ({"settings": {"precison": "f32"}}, "precison"),
        ({"policy": adaptive, "settings": {"precision": "f32"}}, "settings"),
        ({"memory_limit": "much"}, "memory_limit"),
        ({"memory_limit": -1}, "memory_limit"),
        ({"objective": "cheapest"}, "objective: expected fastest, balanced or leanest, not 'cheapest'"),
        ({"device": "cuda:99"}, "cuda"),
        ({"device": "mps"}, "mps"),
        ({"device": "nothing"}, "device"),
        ({"device": ""}, "device"),
    ]
    for arguments, words in wrong:
        with pytest.raises(TilewrightError, match=words) as caught:
            govern(pipe, **arguments)
        assert "\n" not in str(caught.value)
    others: list[dict[str, Any]] = [
        {"allows_blended": 1},
        *({"device": one} for one in (False, [], b"cpu", 1.5)),
        *({"settings": one} for one in ([], "precision=f32", 0)),
        {"places": "cpu"},
    ]
    for arguments in others:
        with pytest.raises(TypeError, match=next(iter(arguments))):
            govern(pipe, **arguments)
    assert attributes(pipe) == owned


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device 0")
def test_a_devices_number_is_no_absent_device(folders: Folders, adaptive: Policy) -> None:
    with pytest.raises(TilewrightError, match="cuda:0"):
        govern(folders.load("sd15"), adaptive, device=0)


def test_parts_of_an_answer_that_can_not_be_carried_out_are_told(folders: Folders) -> None:
    pipe = folders.load("flux")
    governed = govern(pipe, "fixed", settings={"options": "attention-backend=bogus"})
    pipelines.run("flux", pipe)
    assert last(governed, "denoise").fallback.detail in governed.notes[-1] and "bogus" in governed.notes[-1]
    governed = govern(pipe, "fixed", settings={"ahead": 0, "samples": 2})
    pipelines.run("flux", pipe)
    told = last(governed, "denoise").adjusted
    assert [line.split()[0] for line in sorted(told)] == ["ahead", "samples"]


#: A decode of 384x384 by a VAE of Flux's widths, in a process of its own: its highest memory beyond what it had before.
DECODE = """
import sys, json, torch
from pathlib import Path
torch.set_num_threads(1)
torch.manual_seed(0)
from diffusers import AutoencoderKL, FluxPipeline, FlowMatchEulerDiscreteScheduler
from tilewright.diffusers import govern
def status(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
vae = AutoencoderKL(block_out_channels=(128, 256, 512, 512), down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2, latent_channels=16, use_quant_conv=False,
    use_post_quant_conv=False, shift_factor=0.1159, scaling_factor=0.3611).eval()
pipe = FluxPipeline(scheduler=FlowMatchEulerDiscreteScheduler(), vae=vae, text_encoder=None, tokenizer=None,
    text_encoder_2=None, tokenizer_2=None, transformer=None)
latents = torch.randn(1, 16, 48, 48)
with torch.no_grad():
    if sys.argv[1] != "plain":
        limit = int(sys.argv[1])
        governed = govern(pipe, memory_limit=limit)
        pipe.vae.decode(torch.randn(1, 16, 8, 8))
    else:
        pipe.vae.decode(torch.randn(1, 16, 8, 8))
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    made = pipe.vae.decode(latents).sample
    peak = status("VmHWM") - before
said = {"peak": peak, "sum": made.double().sum().item(), "head": made.flatten()[::9973].tolist()}
if sys.argv[1] != "plain":
    record = pipe.tilewright.records[-1]
    said |= {"space": record.plan.space.kind, "estimate": record.estimate.peak_bytes}
    said |= {"measured": record.outcome.peak_bytes}
print(json.dumps(said))
"""


def _decoded(argument: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", DECODE, argument], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell a process's peak")
def test_a_limit_is_kept_as_the_processs_peak_shows(adaptive: Policy) -> None:
    plain = _decoded("plain")
    limit = int(plain["peak"] * 0.6)
    governed = _decoded(str(limit))
    assert governed["space"] == "exact" and governed["estimate"] <= limit
    assert governed["peak"] <= limit < plain["peak"]
    assert max(abs(one - other) for one, other in zip(plain["head"], governed["head"], strict=True)) <= 1e-4
