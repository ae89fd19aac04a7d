"""The inputs by which nodes name a policy and its bounds, and what they mean."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from comfy_api.v0_0_2 import io

if TYPE_CHECKING:
    from tilewright.policy import Policy

#: The menu that all nodes are in.
CATEGORY = "Tilewright"

#: The stages that a setting's name may begin with, as on the command line.
STAGES = ("text", "denoise", "decode", "encode")

#: Policies that are kept with what they have learnt.
_MOST_KEPT = 16

_policies: OrderedDict[tuple[Any, ...], Policy] = OrderedDict()
_lock = threading.Lock()

ALLOW_BLENDED = io.Boolean.Input(
    "allow_blended",
    display_name="allow blended tiles",
    default=False,
    tooltip="Tiles and chunks that are cross-faded may be taken even where a plan with the whole picture's output "
    "fits. Otherwise they are the last resort.",
)

ALLOW_LOSSY = io.Boolean.Input(
    "allow_lossy",
    display_name="allow narrower types",
    default=False,
    tooltip="Types narrower than the model's own may be taken. Otherwise the output is what ComfyUI's own node gives.",
)


def policy_inputs(*more: io.Input) -> list[io.Input]:
    """The inputs of a node that a policy decides for: `policy`, `objective`, `memory_limit`, what else bounds the
    plans, and `settings`. All have defaults."""
    return [
        io.String.Input(
            "policy",
            default="adaptive",
            tooltip="The policy that decides: adaptive, fixed, gfx1151, or the path of a .wasm file of your own.",
        ),
        io.Combo.Input(
            "objective",
            options=["balanced", "fastest", "leanest"],
            default="balanced",
            tooltip="What counts most: time, memory, or both.",
        ),
        io.String.Input(
            "memory_limit",
            display_name="memory limit",
            default="",
            placeholder="automatic, or as 8 GiB",
            tooltip="The most memory that the run may hold at once beside the weights, as 8 GiB. Empty: the Memory "
            "node's limit, or four fifths of what ComfyUI can make free.",
        ),
        *more,
        io.String.Input(
            "settings",
            default="",
            multiline=True,
            placeholder="KEY=VALUE, one a line",
            tooltip="Settings of the policy, KEY=VALUE, one a line. The policy's own names alone; a stage may stand "
            "before one, as decode.space=whole.",
            advanced=True,
        ),
    ]


@dataclass(frozen=True)
class Choice:
    """A user's choice of a policy and of the bounds that it decides in."""

    policy: str = "adaptive"
    objective: str = "balanced"
    memory_limit: str = ""
    allows_blended: bool = False
    allows_lossy: bool = False
    settings: str = ""

    def settings_of(self, stage: str) -> dict[str, str]:
        """The settings of a stage, by their names.

        Raises:
            PolicyError: a line is no setting, or names a stage that there is not.
        """
        return {
            name: value for of, name, value in _settings_in(self.settings) if of is None or of == stage
        }

    def check(self, *stages: str) -> None:
        """Refuses what no run could make sense of, before one begins.

        Args:
            stages: the stages that the node decides.

        Raises:
            TilewrightError: the limit is no size, a setting is none of the policy's, or is of another stage.
        """
        from tilewright.errors import PolicyError

        from .comfy_memory import named_limit

        named_limit(self.memory_limit)
        for of, name, _ in _settings_in(self.settings):
            if of is not None and of not in stages:
                raise PolicyError(f"settings: {of}.{name}: this node decides {' and '.join(stages)} alone")
        for stage in stages:
            self.policy_of(stage)

    def policy_of(self, stage: str) -> Policy:
        """The policy of a stage with its settings; the same one again as long as its file is the same, with what it has
        learnt.

        Raises:
            PolicyError: there is no such policy, the file is none, or a setting is wrong.
        """
        from tilewright.policy import Policy

        source = self.policy.strip()
        settings = self.settings_of(stage)
        key = (source, _version(source), stage, tuple(sorted(settings.items())))
        with _lock:
            found = _policies.get(key)
            if found is None:
                found = _policies[key] = Policy(source, settings=settings)
            _policies.move_to_end(key)
            while len(_policies) > _MOST_KEPT:
                _policies.popitem(last=False)
            return found


def problem(choice: Choice, *stages: str) -> bool | str:
    """ComfyUI's answer on inputs before a prompt is queued: True, or what is wrong in one line.

    Args:
        choice: the inputs; one that another node will give is None, and can't be judged yet.
        stages: the stages that the node decides.
    """
    from tilewright.errors import TilewrightError

    given = {name: value for name, value in vars(choice).items() if value is not None}
    if "policy" not in given:
        return True
    try:
        Choice(**given).check(*stages)
    except TilewrightError as error:
        return str(error)
    return True


def _settings_in(text: str) -> list[tuple[str | None, str, str]]:
    """The stage, name and value of each setting."""
    from tilewright.errors import PolicyError

    found: list[tuple[str | None, str, str]] = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, sign, value = line.partition("=")
        name = name.strip()
        if not sign or not name:
            raise PolicyError(f"settings: {line!r}: expected KEY=VALUE, one a line")
        stage, dot, rest = name.partition(".")
        if dot and stage not in STAGES:
            raise PolicyError(f"settings: {name}: there is no stage {stage}, but {', '.join(STAGES)}")
        found.append((stage, rest, value.strip()) if dot else (None, name, value.strip()))
    return found


def _version(source: str) -> tuple[int, int] | None:
    """The size and time of a policy's file: another file in its place is another policy."""
    try:
        found = os.stat(source)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
