"""What the figures were taken on. Nothing that names the machine or its folders."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import diffusers
import torch


def processor():
    try:
        text = subprocess.run(["lscpu"], capture_output=True, text=True, check=True, env=os.environ | {"LC_ALL": "C"}).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Model name:")), "unknown")


def memory_gib():
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return round(int(line.split()[1]) / 1024 ** 2, 1)


def facts(device, threads, precision):
    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "processor": processor(), "cores": os.cpu_count(),
        "vector": torch.backends.cpu.get_cpu_capability(), "memory_gib": memory_gib(), "threads": threads, "precision": precision,
        "kernel": platform.release().split("-")[0], "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(), "torch": torch.__version__, "diffusers": diffusers.__version__,
    }
    if device != "cpu":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found
