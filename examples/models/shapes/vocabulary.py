"""The tokenizers of the bundled models: the words of their captions, and letters for everything else.

Versions: tokenizers as transformers 5.23.0 takes it, sentencepiece 0.2.3.
"""

import io
import json

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import pre_tokenizers
from transformers import CLIPTokenizer, T5TokenizerFast

WORDS = (
    "a an the A The of on in at to and red orange yellow green blue purple black white circle square triangle star small "
    "little large big left right top bottom middle center centre corner front above over below under background is moving "
    "growing shrinking up down still Red Orange Yellow Green Blue Purple Black White Small Little Large Big"
).split()


def clip_tokenizer():
    """A byte-level vocabulary with merges for the words alone: the tokenizer, its vocabulary and its merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    symbols = alphabet + [letter + "</w>" for letter in alphabet]
    merges = []
    for word in dict.fromkeys(word.lower() for word in WORDS):
        parts = [*word[:-1], word[-1] + "</w>"]
        while len(parts) > 1:
            pair = (parts[0], parts[1])
            if pair not in merges:
                merges.append(pair)
            parts[:2] = ["".join(pair)]
    symbols += ["".join(pair) for pair in merges]
    symbols = list(dict.fromkeys(symbols)) + ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77), vocabulary, merges


def pieces():
    """A sentencepiece model without rules of normalisation: special pieces, words, characters."""
    frame = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS)] * 3), model_writer=frame, model_type="unigram", vocab_size=100,
        hard_vocab_limit=False, normalization_rule_name="identity", pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        num_threads=1, minloglevel=2)
    model = sentencepiece_model_pb2.ModelProto.FromString(frame.getvalue())
    del model.pieces[3:]
    for index, word in enumerate(WORDS):
        model.pieces.add(piece="\u2581" + word, score=-2 - index / 100)
    for index, character in enumerate("\u2581.,-'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"):
        model.pieces.add(piece=character, score=-15 - index / 100)
    return model


def t5_tokenizer():
    model = pieces()
    vocabulary = [(piece.piece, piece.score) for piece in model.pieces]
    return T5TokenizerFast(vocab=vocabulary, extra_ids=0, model_max_length=512), model


def save_clip(folder, vocabulary, merges):
    """The files of a CLIP tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = "".join(f"{left} {right}\n" for left, right in merges)
    (folder / "merges.txt").write_text("#version: 0.2\n" + lines, encoding="utf-8")
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>",
              "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def save_t5(folder, tokenizer, model):
    tokenizer.save_pretrained(folder)
    (folder / "spiece.model").write_bytes(model.SerializeToString())
