"""Speeds of convolutions, attention and memory, measured with the caller's PyTorch in about a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .running import Cancelled

#: The version of these probes: measurements of another one are made again.
PROBE = 1

#: Seconds that a CPU's and a GPU's probes share; each at least runs once.
CPU_TIME = 1.2
GPU_TIME = 1.5

#: Channels of the two convolutions that a rate goes through, and the sides that they may have, the one that counts
#: first.
CPU_SIDES = {128: (48, 24, 12), 512: (24, 12, 8)}
GPU_SIDES = {128: (256, 64), 512: (128, 32)}

#: Channels and side of the convolution whose memory is measured.
GPU_SCRATCH = (512, 32)

#: A narrow type that takes so many times as long as f32 in a small convolution is not tried on a large one.
HOPELESS = 6.0

#: The probe's attention: width of a head, and tokens. An autoencoder has one head, a transformer several.
WIDTH = 512
CPU_TOKENS, GPU_TOKENS = 512, 4096
HEADS, HEAD_WIDTH = 8, 128

#: Values of the elementwise operation, in f32: more than caches hold.
CPU_VALUES, GPU_VALUES = 8 << 20, 64 << 20

#: Bytes that are copied to a GPU and back.
TRANSFERRED = 64 << 20

#: The size of a sample, in values, up to which PyTorch's own convolution in f32 runs on a CPU, which holds nine copies
#: of the input (PyTorch 2.11.0, aten/src/ATen/native/Convolution.cpp, `ConvParams::use_mkldnn`).
CPU_SMALL = 20480

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_LAYOUTS = {"channels-first": torch.contiguous_format, "channels-last": torch.channels_last}

#: Widths of heads whose attention is asked for on a GPU: those of published transformers and of small test models.
TRIED_WIDTHS = (32, 40, 64, 72, 80, 96, 128)


@dataclass(slots=True)
class _Convolutions:
    """The convolutions of one type and memory order."""

    #: Seconds of a pixel and tap, by channels.
    seconds: dict[int, float]
    #: Operations a second of the larger one, a multiply-add counted as two.
    rate: float


class Probes:
    """The probes of a device, one after the other; `is_cancelled` is asked between them."""

    def __init__(self, device: torch.device, is_cancelled: Callable[[], bool] | None = None) -> None:
        self.device = device
        self.on_cpu = device.type == "cpu"
        #: A timing in f32, which all else is compared with, rests on one run alone: there was too little time.
        self.hurried = False
        self._is_single = False
        self._is_cancelled = is_cancelled
        self._until = time.perf_counter() + (CPU_TIME if self.on_cpu else GPU_TIME)

    def measured(self, backend: str, *, is_integrated: bool = False) -> dict[str, Any]:
        """All measurements, as a device's description has them.

        Args:
            backend: `cpu`, `cuda` or `rocm`.
            is_integrated: a GPU's memory is the host's.

        Raises:
            Cancelled: `is_cancelled` said so.
            RuntimeError: not even f32 runs.
        """
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            self._wake()
            speeds: list[dict[str, Any]] = []
            single: dict[str, _Convolutions] = {}
            for dtype in _NAMES:
                try:
                    speeds += self._speeds(dtype, single)
                except RuntimeError:
                    # A device may lack a narrow type.
                    if dtype == torch.float32:
                        raise
            return {
                "speeds": speeds,
                "bytes_per_second": self._bandwidth(),
                "transfer_bytes_per_second": None if self.on_cpu or is_integrated else self._transfer(),
                "backend": backend,
                "hurried": self.hurried,
            }

    def fused_heads(self) -> list[dict[str, Any]]:
        """The widths of heads whose attention a GPU fuses, each in each type."""
        return [
            {"width": width, "dtype": name, "fused": self._is_fused(width, dtype)}
            for width in TRIED_WIDTHS
            for dtype, name in _NAMES.items()
        ]

    def _speeds(self, dtype: torch.dtype, single: dict[str, _Convolutions]) -> list[dict[str, Any]]:
        """The speeds of a type, one for each memory order. `single` are those of f32, which come first."""
        self._is_single = dtype == torch.float32
        layouts = [name for name in _LAYOUTS if name == "channels-first" or not _is_slow_in_channels_last(self.device)]
        found = {name: self._convolutions(dtype, _LAYOUTS[name], single.get(name)) for name in layouts}
        if dtype == torch.float32:
            single.update(found)
        fastest = max(one.rate for one in found.values())
        base = max(one.rate for one in single.values())
        is_hopeless = fastest * HOPELESS < base
        fused = self.on_cpu or self._is_fused(WIDTH, dtype)
        tokens = CPU_TOKENS if self.on_cpu else GPU_TOKENS
        attention = fastest if is_hopeless else self._attention(dtype, 1, WIDTH, tokens)
        heads: dict[str, Any] | None = None
        if not self.on_cpu and not is_hopeless and self._is_fused(HEAD_WIDTH, dtype):
            heads = {"flops_per_second": self._attention(dtype, HEADS, HEAD_WIDTH, tokens), "apart": False}
        return [
            {
                "dtype": _NAMES[dtype],
                "layout": name,
                "flops_per_second": one.rate,
                "plain": _rate_through(one.seconds),
                "winograd": None,
                "attention_flops_per_second": attention,
                "fused_attention": fused,
                "heads": heads,
                "norm_bytes_per_second": None,
                "scratch": self._scratch(dtype, name),
            }
            for name, one in found.items()
        ]

    def _convolutions(
        self, dtype: torch.dtype, layout: torch.memory_format, single: _Convolutions | None
    ) -> _Convolutions:
        sides = CPU_SIDES if self.on_cpu else GPU_SIDES
        seconds: dict[int, float] = {}
        rate = 0.0
        is_hopeless = False
        for channels in sorted(sides):
            if is_hopeless and single is not None:
                # A type that nobody will take is not worth the time: it is as much slower in a larger one.
                factor = seconds[min(sides)] / single.seconds[min(sides)]
                seconds[channels] = single.seconds[channels] * factor
                rate = single.rate / factor
                continue
            *larger, smallest = sides[channels]
            work = self._convolution(dtype, layout, channels, smallest)
            quick = self._least(work)
            side = smallest
            known = None if single is None else single.seconds.get(channels)
            is_hopeless = known is not None and quick > HOPELESS * known * 9 * smallest * smallest
            for candidate in larger:
                # A larger picture is more like a decoder's, if there is time for three runs of it.
                expected = 3 * quick * (candidate / smallest) ** 2
                if not is_hopeless and time.perf_counter() + expected <= self._until:
                    quick, side = self._least(self._convolution(dtype, layout, channels, candidate)), candidate
                    break
            seconds[channels] = quick / (9 * side * side)
            rate = 18 * channels * channels * side * side / quick
        return _Convolutions(seconds, rate)

    def _convolution(
        self, dtype: torch.dtype, layout: torch.memory_format, channels: int, side: int
    ) -> Callable[[], Tensor]:
        picture = self._filled((1, channels, side, side), dtype).contiguous(memory_format=layout)
        weight = self._filled((channels, channels, 3, 3), dtype).contiguous(memory_format=layout)
        bias = self._filled((channels,), dtype)
        return lambda: functional.conv2d(picture, weight, bias, padding=1)

    def _attention(self, dtype: torch.dtype, heads: int, width: int, tokens: int) -> float:
        token = self._filled((1, heads, tokens, width), dtype)
        seconds = self._least(lambda: functional.scaled_dot_product_attention(token, token, token))
        return 4 * heads * tokens * tokens * width / seconds

    def _bandwidth(self) -> float:
        count = CPU_VALUES
        if not self.on_cpu:
            free, _ = torch.cuda.mem_get_info(self.device)
            count = max(min(GPU_VALUES, free // 32), CPU_VALUES)
        values = self._filled((count,), torch.float32)
        return 8 * count / self._least(lambda: functional.silu(values))

    def _transfer(self) -> float | None:
        """Bytes a second to the device and back, from pinned memory; None where none can be had."""
        try:
            host = torch.empty(TRANSFERRED, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:
            return None
        there = torch.empty(TRANSFERRED, dtype=torch.uint8, device=self.device)

        def both_ways() -> Tensor:
            there.copy_(host, non_blocking=True)
            return host.copy_(there, non_blocking=True)

        return 2 * TRANSFERRED / self._least(both_ways)

    def _scratch(self, dtype: torch.dtype, layout: str) -> dict[str, Any]:
        """The memory of a convolution beside its input and its output, in copies of the input and of the weights."""
        if self.on_cpu:
            return _cpu_scratch(dtype, layout)
        channels, side = GPU_SCRATCH
        memory_format = _LAYOUTS[layout]
        peaks: list[int] = []
        weight = self._filled((channels, channels, 3, 3), dtype).contiguous(memory_format=memory_format)
        for samples in (1, 2):
            picture = self._filled((samples, channels, side, side), dtype).contiguous(memory_format=memory_format)
            functional.conv2d(picture, weight, None, padding=1)
            torch.cuda.synchronize(self.device)
            before = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            functional.conv2d(picture, weight, None, padding=1)
            torch.cuda.synchronize(self.device)
            peaks.append(torch.cuda.max_memory_allocated(self.device) - before)
        one, two = peaks
        size = weight.element_size()
        # Input and output are of one size here: one of the copies that are counted is the output.
        copies = (two - one) / (channels * side * side * size) - 1
        weights = (2 * one - two) / (weight.numel() * size)
        return {"inputs": _quarters(copies), "weights": _quarters(weights), "small": 0}

    def _is_fused(self, width: int, dtype: torch.dtype) -> bool:
        """True if a kernel of the device computes attention with heads of a width without scores in memory."""
        token = self._filled((1, 1, 64, width), dtype)
        try:
            kernels: Any = torch.backends.cuda
            asked = kernels.SDPAParams(token, token, token, None, 0.0, False, False)
            return bool(kernels.can_use_flash_attention(asked) or kernels.can_use_efficient_attention(asked))
        except (AttributeError, RuntimeError, TypeError):
            return False

    def _wake(self) -> None:
        """Starts threads and loads libraries, which says nothing about speed."""
        for _ in range(2):
            self._convolution(torch.float32, torch.contiguous_format, 16, 16)()
        self._wait()

    def _least(self, work: Callable[[], Tensor]) -> float:
        """The least seconds of a few runs, of which the first warms up; one at least counts."""
        if self._is_cancelled is not None and self._is_cancelled():
            raise Cancelled
        warm = self._seconds(work, 1)
        if not self.on_cpu and warm < 0.005:
            # A launch takes as long as a small piece of work: many are queued.
            times = min(max(int(0.005 / max(warm, 1e-5)), 1), 64)
            return min(self._seconds(work, times) for _ in range(2))
        found: list[float] = []
        while len(found) < 3 and (not found or time.perf_counter() + warm <= self._until):
            if not found and warm > 0.25:
                # A run that long has not much of a start in it.
                self.hurried |= self._is_single
                return warm
            found.append(self._seconds(work, 1))
        self.hurried |= self._is_single and len(found) < 2
        return max(min(found), 1e-9)

    def _seconds(self, work: Callable[[], Tensor], times: int) -> float:
        self._wait()
        begun = time.perf_counter()
        results: list[Tensor] = []
        for _ in range(times):
            # The last one is freed after the time is taken.
            results = [work()]
        self._wait()
        elapsed = time.perf_counter() - begun
        del results
        return elapsed / times

    def _wait(self) -> None:
        if not self.on_cpu:
            torch.cuda.synchronize(self.device)

    def _filled(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.full(shape, 0.5, dtype=dtype, device=self.device)


def has_onednn(dtype: torch.dtype) -> bool:
    """True if oneDNN computes a type's convolutions on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.float32:
        return True
    name = "_is_mkldnn_bf16_supported" if dtype == torch.bfloat16 else "_is_mkldnn_fp16_supported"
    try:
        return bool(getattr(torch.ops.mkldnn, name)())
    except (AttributeError, RuntimeError):
        return False


def _cpu_scratch(dtype: torch.dtype, layout: str) -> dict[str, Any]:
    """The memory of a CPU's convolution. oneDNN brings pictures in channels-first order and weights in either into an
    order of its own; PyTorch's own convolution lays the input out once per tap."""
    small = CPU_SMALL if dtype == torch.float32 else 0
    if not has_onednn(dtype):
        return {"inputs": 9.0, "weights": 0.0, "small": small}
    return {"inputs": 1.0 if layout == "channels-first" else 0.0, "weights": 1.0, "small": small}


def _is_slow_in_channels_last(device: torch.device) -> bool:
    """True if convolutions copy pictures and weights back into channels-first order in each call, as MIOpen's do."""
    if device.type != "cuda" or torch.version.hip is None:
        return False
    return os.environ.get("PYTORCH_MIOPEN_SUGGEST_NHWC") != "1"


def _rate_through(seconds: dict[int, float]) -> dict[str, float]:
    """Seconds of a pixel and tap: for each product of two channels, and for each channel that is read or written."""
    (fewer, quick), (more, slow) = sorted(seconds.items())
    per_product = (slow / more - quick / fewer) / (more - fewer)
    per_value = (quick / fewer - per_product * fewer) / 2
    if per_product > 0 and per_value >= 0:
        return {"per_product": per_product, "per_value": per_value}
    # More channels that take less time are noise: the larger convolution counts.
    return {"per_product": slow / (more * more), "per_value": 0.0}


def _quarters(copies: float) -> float:
    """Copies, in whole quarters: allocators round up."""
    return max(round(copies * 4), 0) / 4
