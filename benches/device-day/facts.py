"""Facts of the card, its driver, PyTorch and the attention that PyTorch picks; run as a process: python facts.py DEVICE."""

import importlib.metadata
import json
import subprocess
import sys

import torch
import torch.nn.functional as F

# torch.nn.attention.SDPBackend
CHOICES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
# Flux's transformer at 1024² with 512 tokens, and the middle of its VAE at 1024².
ATTENTIONS = [(24, 4608, 128), (1, 16384, 512)]


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def attention(heads, length, width):
    q = torch.randn(1, heads, length, width, device="cuda", dtype=torch.bfloat16)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    F.scaled_dot_product_attention(q, q, q)
    begin.record()
    for _ in range(10):
        F.scaled_dot_product_attention(q, q, q)
    end.record()
    torch.cuda.synchronize()
    ms = begin.elapsed_time(end) / 10
    choice = int(torch._fused_sdp_choice(q, q, q))
    return {"heads": heads, "length": length, "width": width, "choice": CHOICES.get(choice, str(choice)), "ms": ms,
            "tflops": 4 * heads * length**2 * width / ms / 1e9}


def facts(device):
    found = {"torch": torch.__version__, "diffusers": version("diffusers"), "cuda": torch.version.cuda, "card": device, "attention": []}
    if device == "cpu":
        return found
    if not torch.cuda.is_available():
        sys.exit(f"no GPU: PyTorch {torch.__version__} finds no CUDA")
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"]
    try:
        found["driver"] = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        found["driver"] = f"unknown: {error}"
    # cuDNN's libraries are read here, so that the first part of the device check need not wait for them.
    picture, kernel = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((1, 64, 64, 64), (64, 64, 3, 3)))
    F.conv2d(picture, kernel).sum().item()
    return found | {"card": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version(),
                    "memory": torch.cuda.mem_get_info()[1], "attention": [attention(*shape) for shape in ATTENTIONS]}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    print(json.dumps(facts(sys.argv[1])))
