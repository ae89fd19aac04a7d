"""Ways to decode with diffusers' network that people use today. Each takes a network and gives `decode(latent) -> sample`."""

import itertools

import torch

from network import read_latent


def eager(vae, _):
    """As shipped: channels-first, the whole picture at once."""
    return lambda latent: vae.decode(latent, return_dict=False)[0]


def eager_channels_last(vae, _):
    vae.to(memory_format=torch.channels_last)
    return lambda latent: vae.decode(latent.contiguous(memory_format=torch.channels_last), return_dict=False)[0]


def compiled(vae, options):
    """torch.compile's default mode, on the decoder alone: around `decode` it would also trace diffusers' hooks."""
    vae.decoder = torch.compile(vae.decoder)
    return eager(vae, options)


def compiled_channels_last(vae, options):
    vae.decoder = torch.compile(vae.decoder)
    return eager_channels_last(vae, options)


def openvino(precision):
    """The decoder traced and compiled by OpenVINO for the CPU, which is told what to compute in; the latent and the sample are f32."""

    def contestant(vae, options):
        import openvino

        class Decoder(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.vae = vae.float()

            def forward(self, latent):
                return self.vae.decode(latent, return_dict=False)[0]

        latent = read_latent(options["latent"])
        traced = openvino.convert_model(Decoder().eval(), example_input=latent, input=[tuple(latent.shape)])
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": options["threads"], "PERFORMANCE_HINT": "LATENCY"}
        compiled = openvino.compile_model(traced, "CPU", settings)
        return lambda latent: torch.from_numpy(compiled(latent.float().numpy())[0])

    return contestant


def tiled(vae, options):
    """diffusers' own tiling. Its tile is the model's sample size; set here, so that it is the same for every network."""
    vae.enable_tiling()
    vae.tile_sample_min_size = options["tile"]
    vae.tile_latent_min_size = options["tile"] // options["scale"]
    vae.tile_overlap_factor = options["overlap_factor"]
    return eager(vae, options)


def tiled_lines(extent, options):
    """Where tiles begin and end along an axis of `extent` pixels."""
    step = int(options["tile"] * (1 - options["overlap_factor"]))
    starts = range(0, extent, step)
    return inner(itertools.chain.from_iterable((start, start + options["tile"]) for start in starts), extent)


# ComfyUI's tiled decode, written anew from what it does: comfy/sd.py `VAE.decode_tiled_` (three passes and their mean) and
# comfy/utils.py `tiled_scale_multidim` (places, masks, sums), both of Comfy-Org/ComfyUI as of 2025-2026. Latent units.
COMFYUI_TILE, COMFYUI_OVERLAP = 64, 16


def comfyui_shapes():
    """(height, width) of the tiles of each pass: tall, wide, square."""
    tile = COMFYUI_TILE
    return [(tile * 2, tile // 2), (tile // 2, tile * 2), (tile, tile)]


def comfyui_spans(extent, tile):
    """(start, length) of the tiles along an axis. The last ones may be short, down to the overlap."""
    if extent <= tile:
        return [(0, extent)]
    return [(start, min(tile, extent - start)) for start in range(0, extent - COMFYUI_OVERLAP, tile - COMFYUI_OVERLAP)]


def feather(length, width):
    """A mask along one axis that rises over `width` places from both ends, the picture's own borders not excepted."""
    mask = torch.ones(length)
    if width < length:
        ramp = torch.arange(1, width + 1) / width
        mask[:width] *= ramp
        mask[length - width:] *= ramp.flip(0)
    return mask


def comfyui_pass(decode, latent, shape, scale):
    samples, _, height, width = latent.shape
    if height <= shape[0] and width <= shape[1]:
        return decode(latent)
    total, weight = torch.zeros(samples, 3, height * scale, width * scale), torch.zeros(1, 1, height * scale, width * scale)
    for (top, rows), (left, columns) in itertools.product(comfyui_spans(height, shape[0]), comfyui_spans(width, shape[1])):
        sample = decode(latent[:, :, top:top + rows, left:left + columns]).to("cpu", torch.float32)
        mask = feather(rows * scale, COMFYUI_OVERLAP * scale)[:, None] * feather(columns * scale, COMFYUI_OVERLAP * scale)
        place = (..., slice(top * scale, (top + rows) * scale), slice(left * scale, (left + columns) * scale))
        total[place] += sample * mask
        weight[place] += mask
    return total.div_(weight)


def comfyui(vae, options):
    """A batch is decoded at once here and sample by sample there: the same for the batch of one that is timed."""
    whole = eager(vae, options)

    def decode(latent):
        passes = [comfyui_pass(whole, latent, shape, options["scale"]) for shape in comfyui_shapes()]
        return (passes[0] + passes[1] + passes[2]) / 3

    return decode


def comfyui_lines(extent, options):
    scale = options["scale"]
    spans = {span for tile in {side for shape in comfyui_shapes() for side in shape} for span in comfyui_spans(extent // scale, tile)}
    return inner((edge * scale for start, length in spans for edge in (start, start + length)), extent)


def inner(edges, extent):
    return sorted({edge for edge in edges if 0 < edge < extent})


CONTESTANTS = {
    "eager": eager, "eager-channels-last": eager_channels_last, "compiled": compiled, "compiled-channels-last": compiled_channels_last,
    "openvino-f32": openvino("f32"), "openvino-bf16": openvino("bf16"), "tiled": tiled, "comfyui": comfyui,
}
LINES = {"tiled": tiled_lines, "comfyui": comfyui_lines}
