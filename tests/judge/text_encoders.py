"""Small random text encoders, and what diffusers' pipelines and ComfyUI's own code make of prompts with them: how far `tilewright embed` is.

    python text_encoders.py --comfyui CHECKOUT [--libs DIR] [--tilewright PATH] [--sets NAME …] [--prompts NAME …]

Run by hand; also imported by tests/fixtures/make_embed_fixtures.py. Needs the versions below and, for diffusers' cleaning of WAN's prompts, ftfy;
zstandard for the bundled vocabularies; and for ComfyUI einops, torchsde and psutil: in the environment, or in DIR by
`pip install --no-deps --target DIR …`. ComfyUI is under the GPL: its code is imported from the checkout and is no part of this tree.

The encoders have the real vocabularies, the bundled ones, and each its own width, as published ones have. Nothing of ComfyUI is replaced: widths
and layers go in where its loaders put a checkpoint's (`clip_l_model_config` …), in the table of CLIP, which it has with 49,408 rows, the rows past
a smaller vocabulary are zeros, and a vocabulary other than ComfyUI's own comes from `from_pretrained`. diffusers' pipelines are built of their
text parts alone. Its tokenizers are those of transformers 4's fast classes, which the published pipelines were made with, and SDXL's second one has
"!" as a special token, its padding. Left out of the prompts is text that was decoded wrongly, which ftfy repairs and Tilewright does not.

A difference is the largest of a tensor, as a share of max(1, largest value of the reference).
"""

import argparse
import contextlib
import json
import logging
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import torch
import transformers
from diffusers import FluxPipeline, StableDiffusionPipeline, StableDiffusionXLPipeline, WanPipeline
from safetensors.torch import load_file
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer, PreTrainedTokenizerFast, T5Config,
                          T5EncoderModel, T5TokenizerFast, UMT5Config, UMT5EncoderModel)

from networks import plain_f32, random_values, save

ROOT = Path(__file__).resolve().parent.parent.parent
VOCABULARIES = ROOT / "host/tokenizer/vocabularies"
VERSIONS = {"torch": "2.11.0", "transformers": "5.23.0", "diffusers": "0.42.1", "sentencepiece": "0.2.3", "safetensors": "0.8.0",
            "numpy": "2.4.6", "ftfy": "6.3.1"}
TOLERANCE = 1e-4
START, END = "<|startoftext|>", "<|endoftext|>"
PARTS = ("prompt_embeds", "pooled_prompt_embeds")

# What a set's encoders are, in the order in which their states stand side by side.
SETS = {"flux": ("clip-l", "t5"), "wan": ("umt5",), "sdxl": ("clip-l", "clip-g"), "clip": ("clip-l",), "clip-g": ("clip-g",)}

LONG = " ".join(f"{word} {place}," for place, word in enumerate(
    ("a misty valley", "two red foxes", "an old stone bridge", "light through leaves", "water over rocks", "a small wooden boat") * 10))
PROMPTS = {
    "empty": "",
    "space": "  \n ",
    "short": "a photo of a cat",
    "capitals": "A  Photo, of THE cat's\n\tHat!",
    "weight": "a (red:1.3) fox over the (lake:0.7)",
    "nested": "((a castle)) on (a (steep:0.5) hill:1.4), (((fog)))",
    "zero": "a cat (with a hat:0) asleep",
    "negative": "a street (at night:-0.8), (rain:-2)",
    "one": "a (cat:1.0) sleeps",
    "long": LONG,
    "long-weighted": f"({LONG}:1.2) and (a (cold:0.4) sunset)",
    "long-word": "a " + "supercalifragilisticexpialidocious" * 12 + " of " + "antidisestablishmentarianism " * 30,
    "chunk-end": "cat " * 73 + "photosynthesis electroencephalography dog",
    "full": "cat " * 75,
    "emoji": "a 🦊 under a 🌈, 👩‍👩‍👧 ❤️",
    "chinese": "一只在雪地里奔跑的红狐狸，(电影感:1.2)",
    "mixed-scripts": "Ελληνικά кот ไทย हिन्दी عربى café Ⅷ ﬁn",
    "escapes": r"a \(round\) table (with \(four\):1.2) chairs \\(x)",
    "open": "a (cat (on (a mat:1.3) and ((more",
    "closed": "a cat) on (a mat)) :1.2) (and:1.1)",
    "colons": "(a:b:1.2) (:2) (ratio 16:9) (x:) (y: 1.5 ) (z:1e-1)",
    "special": "a <|endoftext|> b </s> c <extra_id_0> <pad> d",
    "markup": "&lt;b&gt; caf&amp;eacute; \u201cquoted\u201d \ufb01\u2026",
    "exclamation": "stop! a!!b !",
    "line-end": "a cat\n\nasleep\n",
    "control": "a\u0000b\u0007c\u200bd\u00ade\ufeff f\u2028g\u00a0h",
    "embedding": "a photo of embedding:one in a (field:1.2)",
    "embedding-3": "embedding:three, a cat, (embedding:three:1.3) and embedding:one.safetensors",
    "embedding-l": "a cat embedding:only-l in (the snow:1.3), more",
    "embedding-keys": "a cat embedding:keys, snow",
    "embedding-gone": "a cat embedding:gone in snow, embedding:one, embedding:gone,x y",
    "embedding-long": "a cat " * 36 + "embedding:three " + "a dog " * 40,
    "embedding-folder": "a cat embedding:inner/nested and embedding:nested",
}


def check_versions(names=VERSIONS):
    found = {name: version(name).split("+")[0] for name in names}
    wrong = [f"{name} {found[name]}, not {VERSIONS[name]}" for name in names if found[name] != VERSIONS[name]]
    if wrong:
        raise SystemExit("the references are made with pinned versions; found " + "; ".join(wrong))


# Vocabularies


class Clip:
    """CLIP's byte pairs: a start, an end, and what diffusers' and ComfyUI's tokenizers are made of."""

    LETTERS = [chr(b) for b in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))]

    def __init__(self, merges):
        letters = self.LETTERS + [chr(0x100 + at) for at in range(256 - len(self.LETTERS))]
        names = [*letters, *(letter + "</w>" for letter in letters), *(a + b for a, b in merges), START, END]
        self.merges, self.ids = merges, {name: at for at, name in enumerate(names)}
        assert len(self.ids) == len(names)
        self.size = len(names)

    def fast(self, padding=END):
        """As transformers makes it of the files that pipelines have."""
        return CLIPTokenizer(vocab=self.ids, merges=self.merges, pad_token=padding, model_max_length=77)


class Pieces:
    """A sentencepiece model; Hugging Face adds `extra` tokens to it."""

    def __init__(self, data, extra):
        self.data, self.extra = data, extra
        self.proto = sentencepiece_model_pb2.ModelProto()
        self.proto.ParseFromString(data)
        self.size = len(self.proto.pieces) + extra

    def fast(self, scheme):
        """transformers 4's T5TokenizerFast; `scheme` is "always", in ComfyUI's tokenizer.json "first"."""
        extras = [f"<extra_id_{at}>" for at in reversed(range(self.extra))]
        pieces = [(piece.piece, piece.score) for piece in self.proto.pieces] + [(token, 0.0) for token in extras]
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=self.proto.trainer_spec.unk_id, byte_fallback=False))
        charsmap = self.proto.normalizer_spec.precompiled_charsmap
        if charsmap:
            strip = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "\u2581")]
            tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), *strip])
        else:
            tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=True)
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
        special = [piece.piece for piece in self.proto.pieces if piece.type in (2, 3)] + extras
        tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="<pad>", model_max_length=512)


def bundled():
    """The vocabularies that are in the program."""
    import zstandard

    def unpacked(name):
        return zstandard.ZstdDecompressor().stream_reader((VOCABULARIES / name).read_bytes()).read()

    merges = [tuple(line.split(" ")) for line in unpacked("clip/merges.txt.zst").decode().splitlines()]
    sys.path.append(str(VOCABULARIES))
    from columns import unpack

    pieces = {name: unpack(unpacked(f"{name}/spiece.columns.zst")) for name in ("t5", "umt5")}
    return {"clip": Clip(merges), "t5": Pieces(pieces["t5"], 100), "umt5": Pieces(pieces["umt5"], 300)}


# Encoders


def clip_config(vocabulary, kind, width, heads, layers):
    ends = {"bos_token_id": vocabulary.ids[START], "eos_token_id": vocabulary.ids[END]}
    own = {"clip-l": {"hidden_act": "quick_gelu", "pad_token_id": vocabulary.ids[END]}, "clip-g": {"hidden_act": "gelu", "pad_token_id": 0}}
    return CLIPTextConfig(vocab_size=vocabulary.size, hidden_size=width, num_attention_heads=heads, intermediate_size=2 * width,
                          num_hidden_layers=layers, projection_dim=width, **ends, **own[kind])


def t5_config(kind, rows, width, heads, head, layers):
    sizes = {"d_model": width, "num_heads": heads, "d_kv": head, "d_ff": 2 * width, "num_layers": layers, "num_decoder_layers": layers}
    own = {"t5": T5Config, "umt5": UMT5Config}[kind]
    return own(vocab_size=rows, feed_forward_proj="gated-gelu", tie_word_embeddings=kind == "t5", **sizes)


CLASSES = {"clip-l": CLIPTextModel, "clip-g": CLIPTextModelWithProjection, "t5": T5EncoderModel, "umt5": UMT5EncoderModel}


def write_encoder(folder, kind, config, seed):
    """A random encoder as transformers saves it, in f16, with states of some spread."""
    network = CLASSES[kind](config).eval()
    weights = {}
    for name, value in network.state_dict().items():
        if name.endswith(("embed_tokens.weight", "position_ids")):
            continue
        spread = 1.0 if "token_embedding" in name or name == "shared.weight" else 0.3 if "position" in name or "relative" in name else \
            0.1 if value.ndim == 1 else 0.8 * value.shape[1] ** -0.5
        centre = 1.0 if value.ndim == 1 and "norm" in name and name.endswith("weight") else 0.0
        weights[name] = (centre + spread * random_values(seed, name, tuple(value.shape))).half()
    save(weights, folder / "model.safetensors", metadata={"format": "pt"})
    text = {name: value for name, value in config.to_diff_dict().items() if value is not None}
    text["architectures"] = [CLASSES[kind].__name__]
    (folder / "config.json").write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")


def read_encoder(folder, kind):
    """transformers' network, in f32."""
    network, report = CLASSES[kind].from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["unexpected_keys"] and not set(report["missing_keys"]) - {"encoder.embed_tokens.weight"}, report
    return network.eval()


# diffusers


class Diffusers:
    """diffusers' pipelines for encoders in folders by kind."""

    def __init__(self, folders, vocabularies):
        self.networks = {kind: read_encoder(folder, kind) for kind, folder in folders.items()}
        tokenizers = {}
        for name, vocabulary in vocabularies.items():
            tokenizers[name] = vocabulary.fast() if name == "clip" else vocabulary.fast("always")
        self.tokenizers = tokenizers
        # bigG is padded with 0.
        self.zero = vocabularies["clip"].fast("!")

    def encode(self, of, prompt):
        net, clip = self.networks, self.tokenizers["clip"]
        if of == "flux":
            pipe = FluxPipeline(scheduler=None, vae=None, transformer=None, text_encoder=net["clip-l"], tokenizer=clip,
                                text_encoder_2=net["t5"], tokenizer_2=self.tokenizers["t5"])
            text, pooled, _ = pipe.encode_prompt(prompt, None, device="cpu", max_sequence_length=512)
            return dict(zip(PARTS, (text, pooled)))
        if of == "wan":
            pipe = WanPipeline(tokenizer=self.tokenizers["umt5"], text_encoder=net["umt5"], vae=None, scheduler=None, transformer=None)
            return {PARTS[0]: pipe._get_t5_prompt_embeds(prompt, max_sequence_length=512, device="cpu")}
        if of == "sdxl":
            pipe = StableDiffusionXLPipeline(vae=None, text_encoder=net["clip-l"], text_encoder_2=net["clip-g"], tokenizer=clip, tokenizer_2=self.zero,
                                             unet=None, scheduler=None, add_watermarker=False)
            text, _, pooled, _ = pipe.encode_prompt(prompt, device="cpu", do_classifier_free_guidance=False)
            return dict(zip(PARTS, (text, pooled)))
        if of == "clip":
            with mock.patch.object(StableDiffusionPipeline, "__init__", lambda pipe: super(StableDiffusionPipeline, pipe).__init__()):
                pipe = StableDiffusionPipeline()
            pipe.register_modules(text_encoder=net["clip-l"], tokenizer=clip, unet=None, vae=None)
            text, _ = pipe.encode_prompt(prompt, "cpu", 1, False)
            return {PARTS[0]: text}
        return None


# ComfyUI


class ComfyUI:
    """ComfyUI's text encoders of a checkout, for encoders in folders by kind."""

    def __init__(self, checkout, libs, folders, vocabularies, embeddings=None):
        if not (checkout / "comfy/sd1_clip.py").is_file():
            sys.exit(f"no ComfyUI in {checkout}")
        for path in (checkout, libs):
            if path and str(path) not in sys.path:
                sys.path.insert(1, str(path))
        logging.disable(logging.WARNING)
        from comfy.cli_args import args

        args.cpu = args.use_pytorch_cross_attention = True
        import comfy.sd1_clip
        import comfy.sdxl_clip
        import comfy.text_encoders.flux
        import comfy.text_encoders.wan

        self.sd1, self.sdxl, self.flux, self.wan = comfy.sd1_clip, comfy.sdxl_clip, comfy.text_encoders.flux, comfy.text_encoders.wan
        self.words = "ComfyUI " + (checkout / "comfyui_version.py").read_text().split('"')[1]
        self.folders, self.vocabularies = folders, vocabularies
        self.embeddings = str(embeddings) if embeddings else None
        # The checkout's own vocabularies, unless these are smaller.
        own = vocabularies["clip"].size == 49408
        self.patches = [] if own else [
            mock.patch.object(CLIPTokenizer, "from_pretrained", lambda *_, **__: vocabularies["clip"].fast()),
            mock.patch.object(T5TokenizerFast, "from_pretrained", lambda *_, **__: vocabularies["t5"].fast("first"))]
        configs = {kind: self.config(kind) for kind in folders}
        names = {"clip-l": "clip_l", "clip-g": "clip_g", "t5": "t5xxl", "umt5": "umt5xxl"}
        self.options = {f"{names[kind]}_model_config": config for kind, config in configs.items()}
        self.built = {}

    def config(self, kind):
        """A configuration in the words that ComfyUI has for it."""
        config = dict(json.loads((self.folders[kind] / "config.json").read_text()))
        if kind in ("t5", "umt5"):
            given = CLASSES[kind].config_class(**config).to_dict()
            wanted = ("d_model", "num_heads", "d_kv", "d_ff", "num_layers", "vocab_size", "model_type", "is_gated_act")
            return {**{name: given[name] for name in wanted}, "dense_act_fn": "gelu_pytorch_tanh"}
        given = CLIPTextConfig(**config).to_dict()
        wanted = ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers", "hidden_act", "max_position_embeddings", "eos_token_id")
        return {name: given[name] for name in wanted}

    def fill(self, encoder, kind):
        weights = load_file(self.folders[kind] / "model.safetensors")
        if kind.startswith("clip"):
            parts = ("embeddings.", "encoder.", "final_layer_norm.")
            weights = {"text_model." + name if name.startswith(parts) else name: value for name, value in weights.items()}
            table = "text_model.embeddings.token_embedding.weight"
            whole = encoder.transformer.get_input_embeddings().weight
            weights[table] = torch.cat([weights[table], weights[table].new_zeros(len(whole) - len(weights[table]), whole.shape[1])])
            vocabulary = self.vocabularies["clip"]
            ends = {"start": vocabulary.ids[START], "end": vocabulary.ids[END]}
            encoder.special_tokens = {**ends, "pad": 0 if kind == "clip-g" else ends["end"]}
        missing, unexpected = encoder.load_sd(weights)
        assert not unexpected and set(missing) <= ({"text_projection.weight"} if kind == "clip-l" else set()), (missing, unexpected)

    def build(self, of):
        more = {"device": "cpu", "dtype": torch.float32, "model_options": self.options}
        data = {"embedding_directory": self.embeddings}
        if of == "flux":
            model, tokenizer = self.flux.flux_clip()(**more), self.flux.FluxTokenizer(**data)
            self.fill(model.clip_l, "clip-l"), self.fill(model.t5xxl, "t5")
        elif of == "wan":
            proto = torch.frombuffer(bytearray(self.vocabularies["umt5"].data), dtype=torch.uint8)
            model, tokenizer = self.wan.te()(**more), self.wan.WanT5Tokenizer(**data, tokenizer_data={"spiece_model": proto})
            self.fill(model.umt5xxl, "umt5")
        elif of == "sdxl":
            model, tokenizer = self.sdxl.SDXLClipModel(**more), self.sdxl.SDXLTokenizer(**data)
            self.fill(model.clip_l, "clip-l"), self.fill(model.clip_g, "clip-g")
        elif of == "clip":
            model, tokenizer = self.sd1.SD1ClipModel(**more), self.sd1.SD1Tokenizer(**data)
            self.fill(model.clip_l, "clip-l")
        elif of == "clip-g":
            # As SDXL's refiner has it.
            model = self.sdxl.SDXLRefinerClipModel(**more)
            tokenizer = self.sd1.SD1Tokenizer(**data, clip_name="g", tokenizer=self.sdxl.SDXLClipGTokenizer)
            self.fill(model.clip_g, "clip-g")
        else:
            return None
        return model.eval(), tokenizer

    def encode(self, of, prompt):
        with contextlib.ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(patch)
            if of not in self.built:
                self.built[of] = self.build(of)
            if self.built[of] is None:
                return None
            model, tokenizer = self.built[of]
            text, pooled = model.encode_token_weights(tokenizer.tokenize_with_weights(prompt))[:2]
        return {name: value for name, value in zip(PARTS, (text, pooled)) if value is not None}


# The judge


def real_encoders(folder, vocabularies):
    """Encoders with real vocabularies, of a width each."""
    clip, rows = vocabularies["clip"], {"t5": 32128, "umt5": 256384}
    configs = {"clip-l": clip_config(clip, "clip-l", 64, 2, 3), "clip-g": clip_config(clip, "clip-g", 80, 2, 3),
               "t5": t5_config("t5", rows["t5"], 48, 3, 16, 3), "umt5": t5_config("umt5", rows["umt5"], 32, 2, 16, 2)}
    folders = {}
    for kind, config in configs.items():
        folders[kind] = folder / kind
        folders[kind].mkdir()
        write_encoder(folders[kind], kind, config, kind)
    return folders


def write_embeddings(folder):
    """Embeddings of CLIP-L's width, of both CLIPs' and of all."""
    def vectors(name, count, width):
        return random_values("embeddings", f"{name}-{width}", (count, width))

    for name, count in (("one", 1), ("three", 3)):
        save({"clip_l": vectors(name, count, 64), "clip_g": vectors(name, count, 80)}, folder / f"{name}.safetensors")
    save({"emb_params": vectors("only-l", 2, 64)}, folder / "only-l.safetensors")
    save({"aaa": vectors("aaa", 1, 64), "clip_g": vectors("keys", 2, 80), "clip_l": vectors("keys", 2, 64)}, folder / "keys.safetensors")
    save({"emb_params": vectors("nested", 1, 64)}, folder / "inner/nested.safetensors")
    return folder


def tilewright(program, kinds, folders, prompt, convention, embeddings, out, precision="f32"):
    command = [program, "embed", "--device", "cpu", "--threads", "1", "--as", convention, "--set", f"precision={precision}", "-q", "-o", out]
    for kind in kinds:
        command += ["--text-encoder", folders[kind]]
    if embeddings:
        command += ["--embeddings", embeddings]
    # An argument can't hold a NUL, and line ends that close standard input are no part of the prompt.
    given = {"input": prompt.encode()} if "\0" in prompt else {"stdin": subprocess.DEVNULL}
    run = subprocess.run([*map(str, command), "--", "-" if "\0" in prompt else prompt], capture_output=True, **given)
    if run.returncode:
        return None, run.stderr.decode().strip()
    return load_file(out), run.stderr.decode().strip()


def share(found, reference):
    """The largest difference as a share; in words where shapes differ."""
    if found is None or found.shape != reference.shape:
        return "none" if found is None else f"{list(found.shape)}, not {list(reference.shape)}"
    return ((found.double() - reference.double()).abs().max() / max(1.0, reference.abs().max().item())).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comfyui", type=Path, required=True, help="a checkout of ComfyUI")
    parser.add_argument("--libs", type=Path, help="folder of the packages that it needs, before the environment's")
    parser.add_argument("--tilewright", type=Path, default=ROOT / "target/debug/tilewright", help="the program to compare")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--prompts", nargs="+", choices=PROMPTS, default=list(PROMPTS), metavar="NAME")
    args, sys.argv = parser.parse_args(), sys.argv[:1]
    check_versions()
    plain_f32(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    vocabularies, far = bundled(), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folders, embeddings = real_encoders(folder, vocabularies), write_embeddings(folder / "embeddings")
        comfyui = ComfyUI(args.comfyui, args.libs, folders, vocabularies, embeddings)
        references = {"comfyui": comfyui, "diffusers": Diffusers(folders, vocabularies)}
        print(f"{comfyui.words}, diffusers {VERSIONS['diffusers']}, transformers {VERSIONS['transformers']}, PyTorch {torch.__version__}")
        print("\n| set | as | prompt | " + " | ".join(f"{part}: shape | difference" for part in PARTS) + " | said |")
        print("|---" * 8 + "|")
        for of in args.sets:
            for convention, reference in references.items():
                for name in args.prompts:
                    expected = reference.encode(of, PROMPTS[name])
                    if expected is None:
                        continue
                    found, said = tilewright(args.tilewright.resolve(), SETS[of], folders, PROMPTS[name], convention, embeddings, folder / "out.safetensors")
                    cells = []
                    for part in PARTS:
                        if part in expected:
                            value = share((found or {}).get(part), expected[part])
                            # NaN compares false, and so fails.
                            ok = not isinstance(value, str) and value <= TOLERANCE
                            far += [] if ok else [f"{of} {convention} {name} {part}"]
                            text = value if isinstance(value, str) else f"{value:.1e}"
                            cells += [str(list(expected[part].shape)), text if ok else f"**{text}**"]
                        else:
                            cells += ["", ""]
                    print(f"| {of} | {convention} | {name} | " + " | ".join(cells) + f" | {said.splitlines()[-1] if said else ''} |", flush=True)
    if far:
        sys.exit(f"not within {TOLERANCE}: {len(far)} tensors: {', '.join(far)}")


if __name__ == "__main__":
    main()
