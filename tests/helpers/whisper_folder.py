"""A small random Whisper of `transformers` and its folder, with a tokenizer and settings."""

import json

import numpy as np
import pytest
from helpers import shared

tokenizers = pytest.importorskip("tokenizers")

LETTERS = "!abcdefghijklmnopqrstuvwxyz0123456789.,?"  # "!" has id 0, as in Whisper
SPECIAL = ("endoftext", "startoftranscript", "en", "de", "translate", "transcribe")
SPECIAL += ("startoflm", "startofprev", "nospeech", "notimestamps")
SIZES = {
    "vocab_size": 61,  # 40 letters, 10 special tokens, 11 timestamps
    "num_mel_bins": 5,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_source_positions": 7,
    "max_target_positions": 19,
    "eos_token_id": 40,
    "bos_token_id": 40,
    "pad_token_id": 40,
    "decoder_start_token_id": 41,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
GENERATION = {
    "lang_to_id": {"<|en|>": 42, "<|de|>": 43},
    "suppress_tokens": [1, 5],
    "begin_suppress_tokens": [0, 40],
    "alignment_heads": [[0, 3]],
}
FRAMES = 2 * SIZES["max_source_positions"]
SAMPLES = "--seconds", str(FRAMES / 100)  # options of a model that reads samples


def model(**options):
    """Returns the `transformers` model, which ends some texts early. Skips the test without it."""
    from helpers import published
    from helpers.published import transformers

    made = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(**{**SIZES, **options})
    )
    return published.drawn(made)


def write(folder, made):
    """Writes all files of a Whisper folder."""
    made.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION), "utf-8")
    write_tokenizer(folder)
    return folder


def artefact(form="onnx", *options):
    """Returns the shared export of a random model with beam width 2.

    Args:
        form: --export.
        *options: further options of the command, such as *SAMPLES.
    """
    from keras_transformer.importers.__main__ import main

    def save(path):  # the weights differ from call to call
        path.mkdir()
        write(path, model())

    def make(path):
        folder = str(shared.once("whisper_of_transformers", save))
        command = ["whisper", folder, str(path), "--export", form, "--quiet"]
        assert main([*command, "--beam-width", "2", *options]) == 0

    return shared.once("_".join(["whisper_of_beam_2", form, *options]), make)


def write_tokenizer(folder):
    """Writes `tokenizer.json` without timestamp tokens, as in older folders."""
    letters = {letter: id for id, letter in enumerate(LETTERS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([f"<|{name}|>" for name in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))


def names():
    """Returns the names of all tokens, in the order of Whisper's ids."""
    return [*LETTERS, *(f"<|{x}|>" for x in SPECIAL), *(f"<|{0.02 * i:.2f}|>" for i in range(11))]


def features(rows=100, frames=FRAMES, bins=SIZES["num_mel_bins"]):
    """Returns log-mel features (B, S, M)."""
    shape = (rows, frames, bins)
    return np.random.default_rng(5).normal(size=shape).astype("float32")


def channels_first(frames):
    """Returns features (B, M, S) for `transformers`."""
    from helpers.published import torch

    return torch.from_numpy(frames.transpose(0, 2, 1).copy())
