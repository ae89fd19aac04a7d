"""KL autoencoders of published widths: closeness of exact bands, and their memory against what a quote says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_bands import difference, found, noise, own_decode, plan_of
from tilewright.executor.device import device_of
from tilewright.executor.running import Run
from tilewright.executor.shapes import model_of_autoencoder
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from weights import kl_comfyui, kl_diffusers

torch.set_num_threads(1)

#: Pixels of a side, and of a band.
SIDE, BAND = 256, 64


def with_peak(call: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """The output of a call, and the most bytes of tensors that it held at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        output = call()
    held = most = 0
    results: Any = profiled.profiler
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return output, most


@pytest.mark.parametrize(("make", "kind"), [(kl_diffusers, "flux"), (kl_comfyui, "sdxl")])
def test_bands_of_real_widths_are_close_in_the_memory_that_the_quote_says(make: Any, kind: str) -> None:
    module = make(kind)
    # Pictures have values up to about 1.
    conv_out = module.decoder.conv_out
    conv_out.weight /= 4
    conv_out.bias /= 4
    autoencoder = found(module)
    autoencoder.family = kind
    latents = noise(1, autoencoder.latent_channels, SIDE // 8, SIDE // 8)
    expected = own_decode(module, latents)
    assert 0.3 < expected.abs().max() < 1.5
    plan = plan_of(BAND)
    # The whole picture's width, as a quote's plans have it.
    output, peak = with_peak(lambda: autoencoder.decode(latents, Run.of(plan, "cpu")))
    assert difference(output, expected) < 1e-5
    quote = model_of_autoencoder(autoencoder).decode(device_of("cpu"), width=SIDE, height=SIDE)
    estimate = quote.estimate(plan).peak_bytes
    # oneDNN's own copies are no tensors.
    assert 0.9 * estimate < peak < 1.02 * estimate, (peak, estimate)
