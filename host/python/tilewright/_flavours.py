"""The builds of PyTorch that a private environment can have, and which of them this machine is for."""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ._program import TORCH

#: The versions of Python that PyTorch 2.11 has wheels for (pytorch/pytorch, RELEASE.md).
PYTHONS = ((3, 10), (3, 14))

#: The C library that the engine needs: its wheel is manylinux_2_34. PyTorch's own are manylinux_2_28.
GLIBC = (2, 34)

#: The processors that there are wheels of the engine for; PyTorch's are for those of a flavour.
BUILT = ("x86_64",)

#: Where `nvidia-smi` is under WSL, which doesn't put it on every `PATH`.
WSL = "/usr/lib/wsl/lib"


@dataclass(frozen=True)
class Flavour:
    """One of PyTorch's builds.

    Attributes:
        name: its name in the addresses of PyTorch's indexes.
        use: what it is for.
        download_mb: about how much is fetched.
        installed_mb: about how much that is on the disk.
        machines: the processors that it exists for.
        driver: the oldest NVIDIA driver that it runs with.
        capabilities: NVIDIA GPUs from and up to this compute capability; `None` is no limit.
    """

    name: str
    use: str
    download_mb: int
    installed_mb: int
    machines: tuple[str, ...] = ("x86_64", "aarch64")
    driver: tuple[int, ...] | None = None
    capabilities: tuple[tuple[int, int], tuple[int, int] | None] = ((0, 0), None)

    @property
    def index(self) -> str:
        """The address of its index."""
        return f"https://download.pytorch.org/whl/{self.name}"


# Oldest first. Which there are, and for which GPUs: pytorch/pytorch, RELEASE.md, at 2.11 (#175253: CUDA 12.6, 12.8 and
# 13.0, ROCm 7.2). Drivers: docs.nvidia.com/deploy/cuda-compatibility: 13.x from 580, any 12.x from 525; 12.8's own,
# 570.26, is asked for before 12.6's is left, since what compiles at run time needs the toolkit's own driver. cu130's
# download is the sum of its wheels for x86-64; the other sizes are sums of most of them.
FLAVOURS = (
    Flavour("cpu", "processors only", 200, 900),
    Flavour("cu126", "NVIDIA GPUs up to Hopper, driver 525 or newer", 3300, 6000, driver=(525, 60, 13),
            capabilities=((5, 0), (9, 0))),
    Flavour("cu128", "NVIDIA GPUs from Turing on, driver 570 or newer", 3900, 7000, driver=(570, 26),
            capabilities=((7, 5), (12, 0))),
    Flavour("cu130", "NVIDIA GPUs from Turing on, driver 580 or newer", 2700, 5000, driver=(580,),
            capabilities=((7, 5), None)),
    Flavour("rocm7.2", "AMD GPUs", 5000, 15000, machines=("x86_64",)),
)  # fmt: skip

CPU = FLAVOURS[0]


@dataclass(frozen=True)
class Nvidia:
    """What is known of NVIDIA's GPUs here; capabilities are empty where nobody says."""

    driver: tuple[int, ...]
    capabilities: tuple[tuple[int, int], ...] = ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _asked(command: str) -> list[list[str]]:
    """nvidia-smi's rows of driver and compute capability; none where it fails."""
    question = [command, "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    if answer.returncode != 0:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return [row for row in rows if len(row) == 2 and _numbers(row[0])]


def nvidia(root: Path, command: str | None) -> Nvidia | None:
    """NVIDIA's driver, from `proc/driver/nvidia/version` below `root` or from the command `nvidia-smi`."""
    rows = _asked(command) if command else []
    pairs = [_numbers(cell) for _, cell in rows]
    capabilities = tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2)
    try:
        text = (root / "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        text = ""
    # "… Kernel Module  570.86.15  …" or "… Open Kernel Module for x86_64  580.65.06  …".
    found = re.search(r"Kernel Module\s+(?:for\s+\S+\s+)?(\d+(?:\.\d+)+)", text)
    if found is not None:
        return Nvidia(_numbers(found[1]), capabilities)
    return Nvidia(_numbers(rows[0][0]), capabilities) if rows else None


def amd(root: Path) -> bool:
    """True where the driver of AMD's GPUs is there and has a GPU."""
    if not (root / "dev/kfd").exists():
        return False
    for node in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        try:
            found = re.search(r"^gfx_target_version (\d+)$", node.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            continue
        # Processors are nodes, too, with a zero.
        if found is not None and int(found[1]) != 0:
            return True
    return False


def _fits(flavour: Flavour, capability: tuple[int, int]) -> bool:
    lowest, highest = flavour.capabilities
    # A GPU runs what was compiled for an earlier one of its own generation.
    return capability >= lowest and (highest is None or capability[0] <= highest[0])


def _for_nvidia(gpus: Nvidia, offered: list[Flavour]) -> Flavour | None:
    running = [flavour for flavour in offered if flavour.driver is not None and gpus.driver >= flavour.driver]
    for wanted in (all, any):
        for flavour in reversed(running):
            if not gpus.capabilities or wanted(_fits(flavour, capability) for capability in gpus.capabilities):
                return flavour
    return None


def detect(root: Path = Path("/"), command: str | None = None, machine: str | None = None) -> tuple[Flavour, str]:
    """The flavour for this machine, and what that was seen by.

    Args:
        root: where `proc`, `sys` and `dev` are.
        command: `nvidia-smi`, if there is one.
        machine: the processor, as `x86_64`.
    """
    offered = [flavour for flavour in FLAVOURS if (machine or platform.machine()) in flavour.machines]
    gpus = nvidia(root, command)
    passed = ""
    if gpus is not None:
        seen = f"NVIDIA driver {_dotted(gpus.driver)}"
        flavour = _for_nvidia(gpus, offered)
        if flavour is not None:
            return flavour, seen
        passed = f"{seen} or its GPU is older than PyTorch {TORCH} can use, "
    if amd(root):
        for flavour in reversed(offered):
            if flavour.name.startswith("rocm"):
                return flavour, f"{passed}AMD GPU"
    return CPU, f"{passed}no GPU that PyTorch {TORCH} can use"


def nvidia_smi() -> str | None:
    """The command that tells of NVIDIA's GPUs."""
    return shutil.which("nvidia-smi", path=os.pathsep.join([os.environ.get("PATH", os.defpath), WSL]))


def is_musl(root: Path = Path("/")) -> bool:
    """True where the C library is musl."""
    if platform.libc_ver()[0] == "glibc":
        return False
    if glob.glob(os.fspath(root / "lib/ld-musl-*")):
        return True
    try:
        answer = subprocess.run(["ldd", "--version"], capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.SubprocessError):
        return False
    return "musl" in answer.stdout + answer.stderr


def refusal(
    system: str, machine: str, python: tuple[int, int], bits: int, musl: bool, glibc: tuple[int, ...], own_wheel: bool
) -> str | None:
    """Why there can be no environment on such a machine, in one line; `None` where there can.

    Args:
        glibc: the C library's version, empty where nobody says.
        own_wheel: whether the user has a wheel of the engine.
    """
    oldest, newest = PYTHONS
    machines = CPU.machines if own_wheel else BUILT
    if system != "Linux" or machine not in machines:
        names = " and ".join(machines).replace("_", "-")
        return (
            f"{system} on {machine}: there are wheels of the engine for Linux on {names}: run it on such a machine and "
            "reach it as a service"
        )
    if not oldest <= python <= newest or bits != 64:
        return (
            f"{sys.executable}: Python {_dotted(python)}, {bits} bits: PyTorch {TORCH} has wheels for "
            f"{_dotted(oldest)} to {_dotted(newest)}, 64 bits: run this with one of those"
        )
    if musl:
        return (
            f"this system's C library is musl: the engine and PyTorch need glibc {_dotted(GLIBC)}: "
            "use the container image"
        )
    if glibc and glibc < GLIBC:
        return (
            f"this system's C library is glibc {_dotted(glibc)}: the engine needs {_dotted(GLIBC)}: "
            "use a newer system or the container image"
        )
    return None


def refusal_here(own_wheel: bool) -> str | None:
    """Why there can be no environment on this machine, in one line; `None` where there can.

    Args:
        own_wheel: whether the user has a wheel of the engine.
    """
    library, version = platform.libc_ver()
    glibc = _numbers(version)[:2] if library == "glibc" else ()
    bits = 64 if sys.maxsize > 2**32 else 32
    python = sys.version_info[:2]
    return refusal(platform.system(), platform.machine(), (python[0], python[1]), bits, is_musl(), glibc, own_wheel)
