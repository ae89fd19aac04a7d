"""Asks ComfyUI whether it takes the workflows that `tilewright generate` writes into its pictures.

    python comfyui_workflow.py --comfyui FOLDER --program TILEWRIGHT

FOLDER is a checkout of ComfyUI 0.30.0, whose requirements this Python has. The server runs on the CPU, without custom nodes. For each
case a picture is made with the fixtures' models; files of the names in its graph are put, empty, where the server lists them; then

- the graph of the interface (`workflow`), read by the server's own description of each node, has to give the one of the server (`prompt`);
- the server has to queue `prompt` without an error.

Prints a line for each case.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures"))
from pack import unpacked

FIXTURES = unpacked()
PORT = 8211
SERVER = f"http://127.0.0.1:{PORT}"
FOLDERS = {"unet_name": "diffusion_models", "clip_name": "text_encoders", "clip_name1": "text_encoders", "clip_name2": "text_encoders",
           "vae_name": "vae", "lora_name": "loras", "ckpt_name": "checkpoints"}
PICTURE = FIXTURES / "text-clip-vision" / "64x64.png"
FLUX = ["--model", FIXTURES / "generate-flux", "--steps", "2"]
WAN = ["--model", FIXTURES / "generate-wan", "--steps", "2", "--frames", "1", "--size", "48x32"]
CASES = {
    "plain": [*FLUX, "--size", "32x48", "--guidance", "2.5", "--shift", "1.3"],
    "three seeds": [*FLUX, "--size", "32x32", "--seed", "1,2,3"],
    "a batch": [*FLUX, "--size", "32x32", "--batch", "2"],
    "a negative prompt": [*FLUX, "--size", "32x32", "--cfg", "2", "--negative", "bad {a|b}"],
    "sigmas": [*FLUX[:2], "--size", "32x32", "--sigmas", "1,0.5,0.1,0"],
    "as diffusers": [*FLUX, "--size", "32x32", "--as", "diffusers"],
    "a picture": [*FLUX, "--image", PICTURE, "--denoise", "0.5"],
    "a mask": [*FLUX, "--image", PICTURE, "--mask", PICTURE],
    "wan": WAN,
    "wan as diffusers": [*WAN, "--as", "diffusers"],
    "wan, image to video": ["--model", FIXTURES / "generate-wan-i2v", *WAN[2:], "--image", PICTURE],
}


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(SERVER + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        return json.loads(error.read())


@contextlib.contextmanager
def server(comfyui):
    command = [sys.executable, "main.py", "--cpu", "--listen", "127.0.0.1", "--port", str(PORT), "--disable-all-custom-nodes",
               "--disable-api-nodes", "--database-url", "sqlite:///:memory:"]
    with subprocess.Popen(command, cwd=comfyui, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    ask("/queue")
                    break
                time.sleep(0.5)
            yield
        finally:
            process.kill()


def widgets(info):
    """The names of a node's own fields, in the order of `widgets_values`; none stands for a value of the interface alone."""
    names, uploads = [], []
    for kind in ("required", "optional"):
        for name in info["input_order"].get(kind, []):
            spec = info["input"][kind][name]
            options = spec[1] if len(spec) > 1 else {}
            if isinstance(spec[0], list) or spec[0] in ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COMFY_DYNAMICCOMBO_V3"):
                names.append(name)
                if options.get("control_after_generate") or name in ("seed", "noise_seed"):
                    names.append(None)
                if options.get("image_upload"):
                    uploads.append(None)
    return names + uploads


def plain(text):
    """What the interface makes of a prompt's text, as far as we escape it."""
    for escaped, own in (("/{/}", "//"), ("/{*}", "/*"), ("\\{", "{"), ("\\}", "}"), ("\\|", "|")):
        text = text.replace(escaped, own)
    return text


def as_prompt(workflow, about):
    links = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    prompt = {}
    for node in workflow["nodes"]:
        inputs = {entry["name"]: links[entry["link"]] for entry in node["inputs"]}
        for name, value in zip(widgets(about[node["type"]]), node["widgets_values"]):
            if name:
                inputs[name] = plain(value) if name == "text" else value
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return prompt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--program", type=Path, required=True)
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, server(arguments.comfyui):
        about = ask("/object_info")
        for name, words in CASES.items():
            out = Path(folder) / "out.png"
            command = [arguments.program.resolve(), "generate", "a cat {red|blue} // ü", *words, "-o", out, "--device", "cpu", "-q"]
            subprocess.run(command, check=True)
            made = out if out.exists() else sorted(Path(folder).glob("out*.png"))[0]
            texts = Image.open(made).text
            prompt, workflow = json.loads(texts["prompt"]), json.loads(texts["workflow"])
            for path in Path(folder).glob("out*.png"):
                path.unlink()
            for node in prompt.values():
                for field, value in node["inputs"].items():
                    place = FOLDERS.get(field)
                    if node["class_type"] == "CLIPVisionLoader":
                        place = "clip_vision"
                    if place and isinstance(value, str):
                        path = arguments.comfyui / "models" / place / value
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.touch()
                    if field == "image" and isinstance(value, str):
                        (arguments.comfyui / "input" / value).write_bytes(PICTURE.read_bytes())
            wrong = [] if as_prompt(workflow, about) == prompt else ["workflow and prompt differ"]
            answer = ask("/prompt", {"prompt": prompt, "extra_data": {"extra_pnginfo": {"workflow": workflow}}})
            wrong += [json.dumps(answer[key]) for key in ("error", "node_errors") if answer.get(key)]
            ask("/queue", {"clear": True})
            ask("/interrupt", {})
            failed += bool(wrong)
            print(f"{name}: {'; '.join(wrong) or 'queued'}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
