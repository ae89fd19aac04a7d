"""Differences of an output from the whole decode, along tile borders and elsewhere."""

import math

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from network import Unfit

# Pictures span −1…1.
SPAN = 2.0


def read_sample(path):
    try:
        return load_file(path)["sample"].float()
    except (OSError, KeyError, SafetensorError) as error:
        raise Unfit(f"no tensor 'sample' in {path.name}: {error}") from None


def near(lines, extent, width):
    """Which places of an axis lie within `width` of a line between two places."""
    mask = torch.zeros(extent, dtype=torch.bool)
    for line in lines:
        mask[max(0, line - width):line + width] = True
    return mask


def differences(sample, reference, lines, width):
    """`lines`: for rows and for columns, where tiles begin and end, in pixels; empty without tiles."""
    if sample.shape != reference.shape:
        raise Unfit(f"the output has shape {list(sample.shape)}, not {list(reference.shape)}: another latent or network was decoded")
    gap = (sample - reference).abs()
    square = gap.double().square().mean().item()
    found = {"max": gap.max().item(), "mean": gap.mean().item(),
             "psnr": 10 * math.log10(SPAN ** 2 / square) if square > 0 else None}
    rows, columns = (near(axis, extent, width) for axis, extent in zip(lines, gap.shape[2:], strict=True))
    along = rows[:, None] | columns
    if along.any() and not along.all():
        place = gap.mean((0, 1))
        found |= {"border": place[along].mean().item(), "inside": place[~along].mean().item()}
    return found
