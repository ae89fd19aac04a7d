"""Layers of the caller's modules: called as they are, or by their own weights where a plan needs another type or a
part of a picture."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .own_code import has_hooks, has_library_forward
from .running import Run

#: Operations of a piece of a convolution or of attention on a CPU, after which a cancellation is looked at: half a
#: second of a slow core.
CPU_OPERATIONS = 1e10

#: Values of a strip of a picture, likewise.
STRIP = 1 << 26

#: The fewest rows of a piece of a convolution, and the fewest pieces: each holds its part of the result
#: once more.
LEAST_ROWS = 16
LEAST_PIECES = 16

#: Types that a convolution in f32 would lose bits of.
WIDE = torch.float64


@dataclass(frozen=True, slots=True)
class Format:
    """The types and the memory order that a network runs in.

    Attributes:
        compute: dtype of convolutions and matrix products.
        layer: dtype of the tensors between layers.
        single: dtype of norms in pieces: f32, or f64 of a module in f64.
        channels_last: True if pictures are [N, H, W, C] in memory.
        device: device that computes.
        run: the attempt, which is asked for an end between pieces.
    """

    compute: torch.dtype
    layer: torch.dtype
    single: torch.dtype
    channels_last: bool
    device: torch.device
    run: Run

    @classmethod
    def of(cls, run: Run, is_wide: bool) -> Format:
        """The format of a plan; one for f32 keeps a module in f64 in its own type."""
        compute = WIDE if is_wide and run.compute == torch.float32 else run.compute
        single = WIDE if compute == WIDE else torch.float32
        layer = single if run.mixed else compute
        return cls(compute, layer, single, run.plan.layout == "channels-last", run.device, run)

    @property
    def sums(self) -> torch.dtype:
        """The dtype that sums over pictures are added up in."""
        return torch.float32 if self.device.type == "mps" else WIDE

    def ordered(self, picture: Tensor) -> Tensor:
        """A picture [N, C, H, W] in the memory order; itself if it is."""
        wanted = torch.channels_last if self.channels_last else torch.contiguous_format
        return picture.contiguous(memory_format=wanted)

    def empty(self, batch: int, channels: int, height: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
        """A picture without values in the memory order, in the type between layers or another one."""
        wanted = torch.channels_last if self.channels_last else torch.contiguous_format
        shape = (batch, channels, height, width)
        return torch.empty(shape, dtype=dtype or self.layer, device=self.device, memory_format=wanted)

    def strips(self, picture: Tensor) -> Iterator[slice]:
        """Rows of a picture [N, C, H, W] that a pass over its values takes at once: all of them where nothing can end
        it."""
        batch, channels, height, width = picture.shape
        step = max(height, 1)
        if self.device.type == "cpu" and self.run.is_cancelled is not None:
            step = max(min(STRIP // max(batch * channels * width, 1), step), 1)
        for start in range(0, height, step):
            self.run.check()
            yield slice(start, min(start + step, height))

    def rows_at_once(self, rows: int, operations: float) -> int:
        """Rows of a piece of what takes some operations for all rows; all of them where nothing can end it."""
        if self.device.type != "cpu" or self.run.is_cancelled is None or operations <= CPU_OPERATIONS:
            return max(rows, 1)
        count = max(operations / CPU_OPERATIONS, LEAST_PIECES)
        return max(int(rows / count), LEAST_ROWS)


@contextmanager
def entered(module: nn.Module) -> Generator[None, None, None]:
    """Runs what accelerate and diffusers do before and after a module's own forward, which brings weights to the
    device and takes them away: once for all pieces that run inside."""
    with ExitStack() as stack:
        for hook in _hooks(module):
            hook.pre_forward(module)
            stack.callback(hook.post_forward, module, None)
        yield


def _hooks(module: nn.Module) -> Iterator[Any]:
    """A module's hooks, the outermost first."""
    hook = module.__dict__.get("_hf_hook")
    if hook is not None:
        yield hook
    registry = module.__dict__.get("_diffusers_hook")
    if registry is not None:
        yield from reversed(list(registry.hooks.values()))


def is_replaced(module: nn.Module) -> bool:
    """True if somebody has put another forward in a module's place, other than to run its hooks around it."""
    return "forward" in module.__dict__ and not any(name in module.__dict__ for name in ("_hf_hook", "_diffusers_hook"))


def is_own(module: nn.Module, kind: type[nn.Module]) -> bool:
    """True if a module's forward is that of a class of PyTorch, so that its weights say all that it does."""
    parts = "forward", "_conv_forward"
    is_same = all(getattr(type(module), name, None) is getattr(kind, name, None) for name in parts)
    return is_same and not is_replaced(module) and "_conv_forward" not in module.__dict__ and not has_hooks(module)


@contextmanager
def at_hand(module: nn.Module, kind: type[nn.Module]) -> Generator[None, None, None]:
    """Enters a layer of PyTorch's once for all of its pieces; any other one runs its hooks itself, when it is
    called."""
    with entered(module) if is_own(module, kind) else nullcontext():
        yield


def casts(module: nn.Module) -> bool:
    """True for a layer of ComfyUI's, which brings its weights to its input's type and device."""
    return hasattr(module, "forward_comfy_cast_weights") and not is_replaced(module)


def _call_casting(module: Any, values: Tensor) -> Tensor:
    """Calls a layer of ComfyUI's, as it does itself if its weights are to be changed on the way, or are of another
    type."""
    weight = module.weight
    if weight is None:
        return cast(Tensor, module(values))
    has_functions = bool(module.weight_function or module.bias_function)
    is_there = weight.dtype == values.dtype and weight.device == values.device
    if module.comfy_cast_weights or has_functions or is_there:
        return cast(Tensor, module(values))
    if has_hooks(module) or not has_library_forward(module):
        return cast(Tensor, module(values.to(weight.dtype)).to(values.dtype))
    return cast(Tensor, module.forward_comfy_cast_weights(values))


def _called(module: nn.Module, compute: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A layer that is nobody's we know: called in its own type."""
    own = next((one.dtype for one in module.parameters() if one.is_floating_point()), compute)
    known = own if own in (torch.float32, torch.float64, torch.bfloat16, torch.float16) else compute
    return lambda values: cast(Tensor, module(values.to(known)).to(compute))


#: A convolution of rows; see `Conv.opened`.
Product = Callable[[Tensor, int, int], Tensor]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a convolution's output, from `start` to before `end` of `height`; its input begins at row `first` of
    its own."""

    start: int
    end: int
    height: int
    first: int = 0


class Conv:
    """A convolution of a window of 1×1 or 3×3, stride 1, that keeps height and width; after an upsampling by 2 if it
    `upsamples`."""

    __slots__ = ("around", "into", "module", "out", "padding", "upsamples")

    def __init__(self, module: nn.Module, *, upsamples: bool = False, around: Sequence[nn.Module] = ()) -> None:
        self.module = module
        #: The blocks that it is in, the outermost first, whose hooks may bring its weights.
        self.around = around
        named = cast(Any, module)
        self.out: int = named.out_channels
        self.into: int = named.in_channels
        self.padding: int = named.kernel_size[0] // 2
        self.upsamples = upsamples

    @contextmanager
    def opened(self, to: Format) -> Generator[Product, None, None]:
        """The convolution of rows [N, C, h, W] that hold `above` and `below` neighbouring rows beside those that are
        wanted: to [N, out, h − above − below, W]. Where there is no such row, the picture ends. Within, its weights are
        at hand."""
        with at_hand(self.module, nn.Conv2d):
            product = self._product(to)
            yield lambda part, above, below: self._divided(to, product, part, above, below)

    @contextmanager
    def opened_again(self, to: Format) -> Generator[Product, None, None]:
        """The same after its blocks have ended."""
        with ExitStack() as stack:
            for block in self.around:
                stack.enter_context(entered(block))
            yield stack.enter_context(self.opened(to))

    def _divided(self, to: Format, product: Product, part: Tensor, above: int, below: int) -> Tensor:
        batch, _, height, width = part.shape
        rows = height - above - below
        step = to.rows_at_once(rows, self.operations(batch, rows, width))
        if step >= rows:
            to.run.check()
            return product(part, above, below)
        output: Tensor | None = None
        for start in range(0, rows, step):
            to.run.check()
            end = min(start + step, rows)
            first, last = max(start + above - self.padding, 0), min(end + above + self.padding, height)
            piece = product(part[:, :, first:last], start + above - first, last - end - above)
            if output is None:
                output = to.empty(batch, self.out, rows, width, piece.dtype)
            output[:, :, start:end] = piece
        assert output is not None
        return output

    def _product(self, to: Format) -> Product:
        module = cast(Any, self.module)
        if is_own(module, nn.Conv2d):
            weight = module.weight.detach().to(device=to.device, dtype=to.compute)
            bias = None if module.bias is None else module.bias.detach().to(device=to.device, dtype=to.compute)
            if self.padding == 0 and not to.channels_last:
                return lambda part, above, below: _pointwise(part, weight, bias)
            laid_out = to.ordered(weight)
            return lambda part, above, below: _windowed(to.ordered(part), laid_out, bias, self.padding, above, below)
        call: Callable[[Tensor], Tensor]
        call = (lambda part: _call_casting(module, part)) if casts(module) else _called(module, to.compute)

        def product(part: Tensor, above: int, below: int) -> Tensor:
            output = call(to.ordered(part))
            return output[:, :, above : output.shape[2] - below] if above or below else output

        return product

    def whole(self, to: Format, given: list[Tensor]) -> Tensor:
        """The convolution of a picture [N, C, H, W]. It is taken out of the list, so that it lives no longer than it
        is needed."""
        with self.opened(to) as product:
            part = given.pop().to(to.compute)
            if not self.upsamples:
                output = product(part, 0, 0)
            else:
                output = self._whole_upsampled(to, product, part)
            del part
            return output.to(to.layer)

    def _whole_upsampled(self, to: Format, product: Product, part: Tensor) -> Tensor:
        batch, _, height, width = part.shape
        height, width = 2 * height, 2 * width
        step = to.rows_at_once(height, self.operations(batch, height, width))
        if step >= height:
            return product(upsampled(part), 0, 0)
        output = to.empty(batch, self.out, height, width, to.compute)
        for start in range(0, height, step):
            rows = Rows(start, min(start + step, height), height)
            output[:, :, rows.start : rows.end] = self.rows(to, product, part, unchanged, rows)
        return output

    def operations(self, batch: int, rows: int, width: int) -> float:
        """Multiplications and additions for so many rows of the output."""
        return 2.0 * batch * rows * width * self.into * self.out * (2 * self.padding + 1) ** 2

    def rows(
        self, to: Format, product: Product, picture: Tensor, before: Callable[[Tensor], Tensor], rows: Rows
    ) -> Tensor:
        """Some rows of the output [N, out, h, W], of an input that goes through `before` and holds the rows that are
        needed: one more on either side if the picture goes on there."""
        scale = 2 if self.upsamples else 1
        first, last = max(rows.start - self.padding, 0), min(rows.end + self.padding, rows.height)
        stored = first // scale, (last + scale - 1) // scale
        part = before(picture[:, :, stored[0] - rows.first : stored[1] - rows.first]).to(to.compute)
        if self.upsamples:
            part = upsampled(part)[:, :, first - stored[0] * scale : last - stored[0] * scale]
        return product(part, rows.start - first, last - rows.end)


def unchanged(part: Tensor) -> Tensor:
    """The same."""
    return part


def upsampled(picture: Tensor) -> Tensor:
    """A picture of twice the size, by repeated pixels."""
    return F.interpolate(picture, scale_factor=2.0, mode="nearest")


def _pointwise(part: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A 1×1 convolution as the matrix product that it is: oneDNN's would reorder input and output."""
    (batch, into, height, width), out = part.shape, weight.shape[0]
    values = part.reshape(batch, into, height * width)
    matrix = weight.reshape(1, out, into).expand(batch, out, into)
    product = torch.bmm(matrix, values) if bias is None else torch.baddbmm(bias.reshape(1, out, 1), matrix, values)
    return product.reshape(batch, out, height, width)


def _windowed(part: Tensor, weight: Tensor, bias: Tensor | None, padding: int, above: int, below: int) -> Tensor:
    if above == below == padding:
        # The neighbours' rows are there in place of zeros.
        return F.conv2d(part, weight, bias, padding=(0, padding))
    output = F.conv2d(part, weight, bias, padding=padding)
    return output[:, :, above : output.shape[2] - below] if above or below else output


class Downsample:
    """A 3×3 convolution of stride 2 with zeros to the right and below alone: [N, C, H, W] to [N, C, H // 2, W // 2]."""

    __slots__ = ("module", "out")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.out: int = cast(Any, module).out_channels

    def forward(self, to: Format, picture: Tensor, track: Callable[[float], None]) -> Tensor:
        """Runs in pieces of rows, as a copy with zeros beside it would be another picture."""
        batch, _, height, width = picture.shape
        output = to.empty(batch, self.out, height // 2, width // 2)
        operations = 4.5 * batch * height * width * self.out**2
        step = min(max(height // 2 // LEAST_PIECES, LEAST_ROWS), to.rows_at_once(height // 2, operations))
        module = cast(Any, self.module)
        with at_hand(module, nn.Conv2d):
            call = self._call(to)
            for start in range(0, height // 2, step):
                to.run.check()
                end = min(start + step, height // 2)
                part = picture[:, :, 2 * start : 2 * end + 1].to(to.compute)
                zeros = 2 * (end - start) + 1 - part.shape[2]
                output[:, :, start:end] = call(F.pad(part, (0, 1, 0, zeros)))[:, :, :, : width // 2]
                del part
                track(end / (height // 2))
        return output

    def _call(self, to: Format) -> Callable[[Tensor], Tensor]:
        module = cast(Any, self.module)
        if casts(module):
            return lambda part: _call_casting(module, to.ordered(part))
        if is_own(module, nn.Conv2d):
            weight = to.ordered(module.weight.detach().to(device=to.device, dtype=to.compute))
            bias = None if module.bias is None else module.bias.detach().to(device=to.device, dtype=to.compute)
            return lambda part: F.conv2d(to.ordered(part), weight, bias, stride=2)
        return _called(module, to.compute)


class Linear:
    """A linear layer over the last axis of tokens [N, T, C]; some networks have it as a 1×1 convolution."""

    __slots__ = ("module",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def forward(self, to: Format, tokens: Tensor) -> Tensor:
        """[N, T, C] to [N, T, out], in the type of products."""
        module = cast(Any, self.module)
        kind = nn.Conv2d if isinstance(module, nn.Conv2d) else nn.Linear
        with at_hand(module, kind):
            return self._divided(to, self._call(to, kind), tokens)

    def _divided(self, to: Format, call: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
        batch, count, channels = tokens.shape
        step = to.rows_at_once(count, 2.0 * batch * count * channels**2)
        if step >= count:
            to.run.check()
            return call(tokens)
        output: Tensor | None = None
        for start in range(0, count, step):
            to.run.check()
            piece = call(tokens[:, start : start + step])
            if output is None:
                output = piece.new_empty((batch, count, piece.shape[2]))
            output[:, start : start + step] = piece
        assert output is not None
        return output

    def _call(self, to: Format, kind: type[nn.Module]) -> Callable[[Tensor], Tensor]:
        module = cast(Any, self.module)
        if is_own(module, kind):
            weight = module.weight.detach().to(device=to.device, dtype=to.compute).flatten(1)
            bias = None if module.bias is None else module.bias.detach().to(device=to.device, dtype=to.compute)
            return lambda tokens: F.linear(tokens, weight, bias)
        call: Callable[[Tensor], Tensor]
        call = (lambda values: _call_casting(module, values)) if casts(module) else _called(module, to.compute)
        if kind is nn.Linear:
            return call
        # Tokens are the pixels of a picture of one row, in the order that channels come last in.
        return lambda tokens: call(tokens.transpose(1, 2).unsqueeze(2)).squeeze(2).transpose(1, 2).contiguous()


@contextmanager
def without_autocast(device: torch.device) -> Generator[None, None, None]:
    """Computes in a plan's types, whatever the caller casts to."""
    with ExitStack() as stack:
        with suppress(RuntimeError, ValueError):
            if torch.is_autocast_enabled(device.type):
                stack.enter_context(torch.autocast(device.type, enabled=False))
        yield
