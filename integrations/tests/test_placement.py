"""The places of weights, and how forwards get them: on networks of diffusers, with a device that is a part of this
processor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("diffusers")

from apart import Apart
from diffusers import FluxTransformer2DModel, UNet2DConditionModel
from pipelines import t5

from tilewright.executor.parts import Parts, main_dtype
from tilewright.executor.placement import others_way
from tilewright.executor.replacing import Replacement, is_replaced
from tilewright.executor.residency import Places, Residency

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _flux() -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(1)
    network = FluxTransformer2DModel(
        in_channels=16,
        num_layers=3,
        num_single_layers=4,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    inputs: dict[str, Any] = {
        "hidden_states": torch.randn(1, 16, 16),
        "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(8, 3),
        "return_dict": False,
    }
    return network, lambda: network(**inputs)[0]


def _unet() -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(2)
    network = UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=2,
        cross_attention_dim=32,
    ).eval()
    sample, text = torch.randn(1, 4, 8, 8), torch.randn(1, 8, 32)
    return network, lambda: network(sample, 3, text, return_dict=False)[0]


def _t5() -> tuple[nn.Module, Callable[[], Tensor]]:
    torch.manual_seed(3)
    network = t5().eval()
    return network, lambda: network(torch.arange(8)[None])[0]


NETWORKS = {"flux": _flux, "unet": _unet, "t5": _t5}


def _state(network: nn.Module) -> dict[str, tuple[int, torch.dtype, Tensor]]:
    named = [*network.named_parameters(), *network.named_buffers()]
    return {name: (id(one), one.dtype, one.detach().clone()) for name, one in named}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        one[name][:2] == other[name][:2] and torch.equal(one[name][2], other[name][2]) for name in one
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_parts_hold_each_tensor_once_and_most_of_them_in_blocks(name: str) -> None:
    network, _ = NETWORKS[name]()
    parts = Parts.of(network)
    held = [id(tensor) for _, tensor in parts.tensors()]
    assert len(held) == len(set(held))
    assert set(held) == {id(one) for one in (*network.parameters(), *network.buffers())}
    assert len(parts.blocks) >= 3 and sum(block.bytes for block in parts.blocks) > parts.bytes / 2


def test_a_tensor_that_blocks_share_belongs_to_none_of_them() -> None:
    network = nn.Module()
    network.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    network.blocks[2].weight = network.blocks[0].weight
    parts = Parts.of(network)
    assert [block.name for block in parts.blocks] == ["blocks.0", "blocks.1", "blocks.2"]
    assert "blocks.0.weight" in parts.rest.tensors and "blocks.0.weight" not in parts.blocks[0].tensors


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_streamed_weights_give_the_same_output_and_hold_few_blocks(name: str, ahead: int) -> None:
    network, run = NETWORKS[name]()
    expected, before = run(), _state(network)
    parts = Parts.of(network)
    largest = max(block.bytes for block in parts.blocks)
    places = Apart()
    residency = Residency(network, places)
    residency.place(device=True, ahead=ahead)
    assert places.held_bytes() == parts.rest.bytes, "blocks wait on the host"
    told = 0
    for _ in range(2):
        moved = places.moved_bytes
        with residency.forward(ahead=ahead):
            assert torch.equal(run(), expected)
        assert places.moved_bytes - moved == sum(block.bytes for block in parts.blocks), "each block comes once"
        told = max(told, residency.weights_bytes)
    assert parts.rest.bytes + largest <= places.most_bytes <= parts.rest.bytes + (ahead + 1) * largest
    assert told == places.most_bytes
    assert places.held_bytes() == parts.rest.bytes
    residency.restore()
    assert places.held_bytes() == 0 and _same(_state(network), before)
    assert torch.equal(run(), expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_resident_weights_move_once_and_come_back(name: str) -> None:
    network, run = NETWORKS[name]()
    expected, before = run(), _state(network)
    places = Apart()
    residency = Residency(network, places)
    residency.place(device=True)
    whole = Parts.of(network).bytes
    assert places.moved_bytes == places.held_bytes() == whole
    for _ in range(2):
        with residency.forward():
            assert torch.equal(run(), expected)
    assert places.moved_bytes == whole
    residency.place(device=False)
    assert places.held_bytes() == 0
    residency.place(device=True, ahead=1)
    residency.restore()
    assert places.held_bytes() == 0 and _same(_state(network), before)


def test_a_forward_that_fails_leaves_everything_in_its_place() -> None:
    network, run = _flux()
    expected, before = run(), _state(network)
    places = Apart()
    residency = Residency(network, places)
    residency.place(device=True, ahead=1)

    def fail(module: nn.Module, inputs: object) -> None:
        raise RuntimeError("out of memory")

    handle = network.single_transformer_blocks[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError), residency.forward(ahead=1):
        run()
    handle.remove()
    assert places.held_bytes() == Parts.of(network).rest.bytes
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in network.modules())
    residency.restore()
    assert _same(_state(network), before) and torch.equal(run(), expected)


@pytest.mark.parametrize("expanded", [True, False])
def test_wider_types_change_no_weight_and_end_with_the_forward(expanded: bool) -> None:
    network, run = _unet()
    network.to(torch.bfloat16)
    before = _state(network)
    double = _unet()[0].to(torch.bfloat16).double()
    sample, text = torch.randn(1, 4, 8, 8), torch.randn(1, 8, 32)
    exact = double(sample.double(), 3, text.double(), return_dict=False)[0]
    residency = Residency(network, Places(torch.device("cpu")))
    with residency.forward(cast=lambda name, tensor: torch.float32, expanded=expanded):
        assert network.dtype is torch.float32 if expanded else True
        made = network(sample, 3, text, return_dict=False)[0]
    residency.forget_expanded()
    assert made.dtype is torch.float32 and (made.double() - exact).abs().max() < 1e-5
    assert _same(_state(network), before) and main_dtype(network) is torch.bfloat16


def test_blocks_of_which_weights_come_in_another_type_come_one_by_one() -> None:
    network, _ = _unet()
    places = Apart()
    residency = Residency(network, places)
    residency.place(device=True, ahead=0)
    parts = Parts.of(network)
    largest = max(block.bytes for block in parts.blocks)
    sample, text = torch.randn(1, 4, 8, 8).bfloat16(), torch.randn(1, 8, 32).bfloat16()
    places.most_bytes = 0
    with residency.forward(ahead=0, cast=lambda name, tensor: torch.bfloat16):
        made = network(sample, 3, text, return_dict=False)[0]
    assert made.dtype is torch.bfloat16 and torch.isfinite(made).all()
    assert places.most_bytes <= parts.rest.bytes * 1.5 + largest / 2 + 1


def test_another_threads_forward_waits_and_networks_in_use_do_not_leave() -> None:
    network, run = _t5()
    expected, before = run(), _state(network)
    places = Apart()
    one, other = Residency(network, places), Residency(network, places)
    one.place(device=True)
    begun, told = threading.Event(), list[str]()

    def forward() -> None:
        begun.set()
        with torch.no_grad(), other.forward(cast=lambda name, tensor: torch.float64):
            told.append("other")
            run()

    thread = threading.Thread(target=forward)
    leaving = threading.Thread(target=other.leave)
    with one.forward(cast=lambda name, tensor: torch.float32):
        thread.start()
        begun.wait()
        leaving.start()
        leaving.join()
        assert places.held_bytes() > 0, "it stays while it is run"
        thread.join(0.2)
        assert torch.equal(run(), expected)
        told.append("one")
    thread.join()
    assert told == ["one", "other"]
    other.restore()
    one.restore()
    assert places.held_bytes() == 0 and _same(_state(network), before)


def test_others_ways_with_weights_are_seen() -> None:
    network, _ = _unet()
    assert others_way(network) is None
    assert others_way(torch.compile(network)) == "it is compiled"
    from accelerate.hooks import CpuOffload, add_hook_to_module, remove_hook_from_module

    add_hook_to_module(network, CpuOffload("cpu"))
    assert others_way(network) == "Accelerate offloads it"
    remove_hook_from_module(network)
    assert others_way(network) is None
    network.enable_group_offload(torch.device("cpu"), torch.device("cpu"), "block_level", num_blocks_per_group=1)
    assert others_way(network) == "group offloading moves it"
    lazy = nn.Linear(4, 4, device="meta")
    assert others_way(lazy) == "its weights are not plain tensors"


def test_the_latest_replacement_counts_and_the_one_before_comes_back() -> None:
    network = nn.Linear(2, 2)
    own = type(network).forward
    one = Replacement(network, {"forward": lambda own, x: own(x) + 1})
    other = Replacement(network, {"forward": lambda own, x: own(x) + 10})
    value = torch.ones(2)
    plain = network(value)
    one.install()
    assert torch.equal(network(value), plain + 1)
    other.install()
    assert torch.equal(network(value), plain + 10) and other.counts and not one.counts
    one.remove()
    assert torch.equal(network(value), plain + 10)
    one.install()
    one.remove()
    assert torch.equal(network(value), plain + 10)
    other.remove()
    assert torch.equal(network(value), plain) and not is_replaced(network)
    assert "forward" not in vars(network) and network.forward.__func__ is own


def test_others_that_wrap_a_replaced_method_get_its_own_after_it_is_removed() -> None:
    network = nn.Linear(2, 2)
    replacement = Replacement(network, {"forward": lambda own, x: own(x) + 1})
    plain = network(torch.ones(2))
    replacement.install()
    wrapped = network.forward
    network.forward = lambda x: wrapped(x) * 2
    assert torch.equal(network(torch.ones(2)), (plain + 1) * 2)
    replacement.remove()
    assert torch.equal(network(torch.ones(2)), plain * 2)
