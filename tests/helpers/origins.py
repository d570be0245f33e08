"""Random models of `transformers` and their imports: the table of cases for importers.

A new origin is one entry of `CASES`: a function that makes its model, the importer that loads the
saved folder, and a matrix of it.
"""

import functools
import json
import re
import shutil
from typing import NamedTuple

import numpy as np
from helpers import published, whisper_folder
from helpers.published import torch, transformers
from safetensors.numpy import load_file, save

from keras_transformer.importers import (
    bart,
    bert,
    fairseq,
    gpt2,
    marian,
    mbart,
    moonshine,
    mt5,
    pegasus,
    t5,
    whisper,
)
from keras_transformer.importers.mapping import NEVER, NEVER_LOW, row_order

MAX_LENGTH = 11
START = [2, 44, 47, 51]  # begin, <|en|>, <|transcribe|>, <|notimestamps|> in our numbering
SIDES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 29,
    "forced_eos_token_id": None,
}
OPUS = {
    **SIDES,
    "vocab_size": 37,
    "pad_token_id": 36,
    "eos_token_id": 0,
    "decoder_start_token_id": 36,
    "activation_function": "swish",
    "scale_embedding": True,
}
FAIRSEQ = {
    **SIDES,
    "vocab_size": 37,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "bos_token_id": 0,
    "activation_function": "relu",
}
TWO = {"decoder_vocab_size": 43, "share_encoder_decoder_embeddings": False}
GPT2 = {"vocab_size": 41, "n_positions": 29, "n_embd": 16, "n_layer": 2, "n_head": 2}
T5 = {
    "vocab_size": 37,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 7,
    "decoder_start_token_id": 0,
}
BERT = {
    "vocab_size": 37,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 29,
}

MOONSHINE = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 1,
    "encoder_num_attention_heads": 2,
    "decoder_num_attention_heads": 2,
    "max_position_embeddings": 29,
    "partial_rotary_factor": 0.7,
    "pad_token_id": 2,
}


class Case(NamedTuple):
    """An origin.

    Attributes:
        make: function that returns a random model of `transformers`.
        importer: the module that loads its folder, or for a state dict a function from the model to
            our model.
        matrix: name of a matrix that is not square.
        reads: "source and target", "target", "features", "samples" or "source".
        never: logit bias of rows that the origin lacks.
    """

    make: object
    importer: object
    matrix: str = "model.encoder.layers.1.fc1.weight"
    reads: str = "source and target"
    never: float = NEVER


def marian_model(**options):
    model = transformers.MarianMTModel(transformers.MarianConfig(**{**OPUS, **options}))
    published.drawn(model).final_logits_bias[0, model.config.eos_token_id] += 2.0  # some texts end
    return model


def summarizer(name, **options):
    """Makes a model of BART, MBart or Pegasus, whose configuration has the id of `<unk>`."""
    config = getattr(transformers, f"{name}Config")(**{**FAIRSEQ, "unk_token_id": 3, **options})
    model = published.drawn(getattr(transformers, f"{name}ForConditionalGeneration")(config))
    model.final_logits_bias.copy_(torch.linspace(-1, 1, model.final_logits_bias.shape[1]))
    return model


def gpt2_model(**options):
    return published.drawn(
        transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**GPT2, **options}))
    )


def bert_model(**options):
    config = transformers.BertConfig(**BERT, **options)
    return published.drawn(transformers.BertModel(config, add_pooling_layer=False))


def t5_model(kind="T5", own_output=False, **options):
    """Makes a model with larger biases of positions and values of the source."""
    config = getattr(transformers, f"{kind}Config")(**{**T5, **options})
    model = published.drawn(getattr(transformers, f"{kind}ForConditionalGeneration")(config))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if re.search(r"relative_attention_bias|EncDecAttention\.[vo]", name):
                weight *= 3.0
        if own_output:
            weight = torch.randn(37, 16, generator=torch.Generator().manual_seed(2))
            model.lm_head.weight = torch.nn.Parameter(weight)
    return model


def moonshine_model(**options):
    config = transformers.MoonshineConfig(**{**MOONSHINE, **options})
    return published.drawn(transformers.MoonshineForConditionalGeneration(config))


def m2m100_model():
    """Makes a model with fairseq's pre-norm and sinusoids."""
    config = transformers.M2M100Config(**FAIRSEQ, scale_embedding=True)
    return published.drawn(transformers.M2M100ForConditionalGeneration(config))


def unbiased(**options):
    """Makes a model with fairseq's post-norm."""
    model = marian_model(**FAIRSEQ, **options)
    model.final_logits_bias.zero_()
    return model


def fairseq_state(model, learned=True):
    """Returns a model's state with fairseq's names, with two unused rows of learned positions."""
    state = {name.removeprefix("model."): w.numpy() for name, w in model.state_dict().items()}
    state["decoder.output_projection.weight"] = state.pop("lm_head.weight")
    state = {n: w for n, w in state.items() if n not in ("shared.weight", "final_logits_bias")}
    for side in ("encoder", "decoder") if learned else ():
        name = f"{side}.embed_positions.weight"
        state[name] = np.concatenate([np.full((2, 16), 9.0, "float32"), state[name]])
    return {**state, "encoder.version": np.array([3.0])}


def from_fairseq(learned=True, **options):
    def load(model):
        state = fairseq_state(model, learned)
        sizes = len(state["encoder.embed_tokens.weight"]), len(state["decoder.embed_tokens.weight"])
        orders = [row_order(size, *fairseq.SPECIAL) for size in sizes]
        return fairseq.load_model(state, 2, max_length=29, **options), orders

    return load


def case(make, importer, *arguments, **options):
    return Case(functools.partial(make, **options), importer, *arguments)


T5_MATRIX = "encoder.block.1.layer.1.DenseReluDense.{}.weight"
GPT2_CASE = (gpt2, "transformer.h.1.mlp.c_fc.weight", "target", NEVER_LOW)
WHISPER_CASE = (whisper, Case._field_defaults["matrix"], "features", NEVER_LOW)
MOONSHINE_CASE = (moonshine, "model.encoder.layers.1.mlp.fc1.weight", "samples", NEVER_LOW)
CASES = {
    "marian": case(marian_model, marian),
    "marian: other ids, no scale": case(
        marian_model,
        marian,
        pad_token_id=3,
        eos_token_id=2,
        decoder_start_token_id=0,
        activation_function="relu",
        scale_embedding=False,
    ),
    "marian: two vocabularies": case(
        marian_model,
        marian,
        **TWO,
        pad_token_id=0,
        eos_token_id=1,
        unk_token_id=2,
        decoder_start_token_id=1,
        scale_embedding=False,
    ),
    "marian: own output": case(
        marian_model, marian, **TWO, activation_function="quick_gelu", tie_word_embeddings=False
    ),
    "bart": case(summarizer, bart, name="Bart"),
    "bart: other settings": case(
        summarizer,
        bart,
        name="Bart",
        scale_embedding=True,
        activation_function="gelu",
        forced_bos_token_id=0,
    ),
    "mbart": case(summarizer, mbart, name="MBart", decoder_start_token_id=30),
    "mbart: a language": case(
        summarizer, mbart, name="MBart", scale_embedding=True, forced_bos_token_id=30
    ),
    "pegasus": case(
        summarizer,
        pegasus,
        name="Pegasus",
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        scale_embedding=True,
    ),
    "gpt2": case(gpt2_model, *GPT2_CASE, bos_token_id=40, eos_token_id=40),
    "gpt2: other settings": case(
        gpt2_model,
        *GPT2_CASE,
        bos_token_id=3,
        eos_token_id=0,
        activation_function="relu",
        n_inner=24,
        tie_word_embeddings=False,
    ),
    "whisper": case(whisper_folder.model, *WHISPER_CASE),
    "whisper: turbo": case(
        whisper_folder.model,
        *WHISPER_CASE,
        num_mel_bins=128,
        encoder_layers=3,
        decoder_layers=2,
        encoder_attention_heads=4,
    ),
    "whisper: other settings": case(
        whisper_folder.model,
        *WHISPER_CASE,
        tie_word_embeddings=False,
        activation_function="gelu_new",
    ),
    "moonshine": case(moonshine_model, *MOONSHINE_CASE),
    "moonshine: other settings": case(
        moonshine_model,
        *MOONSHINE_CASE,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=2,
        encoder_hidden_act="relu",
        decoder_hidden_act="gelu",
        partial_rotary_factor=1.0,
        tie_word_embeddings=False,
        eos_token_id=5,
        pad_head_dim_to_multiple_of=8,
    ),
    "fairseq: pre-norm, sinusoids": case(m2m100_model, from_fairseq(learned=False)),
    "fairseq: post-norm, learned positions": case(unbiased, from_fairseq(), scale_embedding=True),
    "fairseq: no scale": case(unbiased, from_fairseq(scale_embedding=False), scale_embedding=False),
    "fairseq: two vocabularies": case(unbiased, from_fairseq(), **TWO, scale_embedding=True),
    "fairseq: own output": case(
        unbiased, from_fairseq(), **TWO, scale_embedding=True, tie_word_embeddings=False
    ),
    "t5": case(t5_model, t5, T5_MATRIX.format("wi")),
    "t5: 1.1": case(
        t5_model,
        t5,
        T5_MATRIX.format("wi_1"),
        own_output=True,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    ),
    "t5: other settings": case(
        t5_model,
        t5,
        T5_MATRIX.format("wi"),
        own_output=True,
        feed_forward_proj="gelu",
        num_heads=2,
        d_kv=8,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=128,
        num_decoder_layers=2,
    ),
    "t5: tied, no scale": case(
        t5_model, t5, T5_MATRIX.format("wi"), tie_word_embeddings=False, eos_token_id=5
    ),
    "mt5": case(t5_model, mt5, T5_MATRIX.format("wi_1"), kind="MT5", own_output=True),
    "bert": case(bert_model, bert, "encoder.layer.1.output.dense.weight", "source"),
}
GENERATING = [name for name in CASES if not name.startswith(("bert", "fairseq"))]
FOLDERS = ["bart", "mbart", "pegasus", "marian", "gpt2", "whisper", "moonshine", "t5", "bert"]


def samples(rows):
    """Returns sounds (B, N) of 15 vectors."""
    random = np.random.default_rng(3)
    return random.normal(size=(rows, 895 + 384 * 14 + 13)).astype("float32") / 5


class Origin:
    """A model of `transformers`, its folder, the imported model, and the ids of its rows."""

    def __init__(self, case, folder):
        self.case, self.folder, self.model = case, folder, case.make()
        if callable(case.importer):
            self.ours, self.orders = case.importer(self.model)
            return
        self.model.save_pretrained(folder)
        if case.importer is bert:
            pieces = [*bert.SPECIAL, *(f"piece{id}" for id in range(4, 37))]
            (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
        if case.importer is whisper:
            whisper_folder.write(folder, self.model)
        self.ours, self.orders = case.importer.load_model(folder), case.importer.row_orders(folder)

    def inputs(self, rows, side="right"):
        """Returns our inputs of a forward pass. Targets of a decoder have the begin token."""
        target = published.ids(len(self.orders[-1]), rows=rows, end=False, seed=1)
        if self.case.reads == "target":
            return {"target_ids": published.ids(len(self.orders[0]), rows, side=side, end=False)}
        target[:, 0] = 2
        if self.case.reads == "samples":
            return {"samples": samples(rows), "target_ids": np.where(target == 0, 9, target)}
        if self.case.reads == "features":
            target = np.where(target == 0, 9, target)
            features = whisper_folder.features(rows, bins=self.model.config.num_mel_bins)
            return {"features": features, "target_ids": target}
        source = published.ids(len(self.orders[0]), rows=rows, side=side)
        return {"source_ids": source, "target_ids": target}

    def outputs(self, inputs):
        """Returns the outputs of `transformers` in float64 for our inputs of a forward pass."""
        target = inputs["target_ids"]
        theirs = {"decoder_input_ids": published.theirs(self.orders[-1], target)}
        if self.case.reads == "target":
            positions = torch.arange(target.shape[1])[None].expand(*target.shape)
            theirs = {"input_ids": theirs["decoder_input_ids"], "position_ids": positions}
            theirs["attention_mask"] = published.mask(target)
        elif self.case.reads == "features":
            theirs["input_features"] = whisper_folder.channels_first(inputs["features"])
        elif self.case.reads == "samples":
            theirs["input_values"] = torch.from_numpy(inputs["samples"])
        else:
            theirs |= self.source(inputs["source_ids"])
        theirs = {name: x.double() if x.is_floating_point() else x for name, x in theirs.items()}
        try:
            with torch.no_grad():
                return self.model.double()(**theirs)
        finally:
            self.model.float()

    def source(self, ids):
        """Returns the arguments of `transformers` for our ids of a source."""
        mask = published.mask(ids)
        pad = self.model.config.pad_token_id  # some models compute positions from it
        return {
            "input_ids": torch.where(mask > 0, published.theirs(self.orders[0], ids), pad),
            "attention_mask": mask,
        }

    def prompts(self, rows):
        """Returns our inputs of a search."""
        if self.case.reads == "features":
            start = np.repeat([START], rows, axis=0).astype("int32")
            features = whisper_folder.features(rows, bins=self.model.config.num_mel_bins)
            return {"features": features, "start_ids": start}
        if self.case.reads == "samples":
            return {"samples": samples(rows)}
        ends = self.case.reads != "target"
        return published.ids(len(self.orders[0]), rows=rows, end=ends)

    def generate(self, prompts, beams, words=(), **options):
        """Returns our ids that `transformers` writes, one list per row.

        Whisper's `generate` adds rules, so this calls the `generate` below it.
        """
        order, skipped = self.orders[-1], 1
        if self.case.reads == "features":
            start = published.theirs(order, prompts["start_ids"])
            features = whisper_folder.channels_first(prompts["features"])
            theirs, skipped = {"inputs": features, "decoder_input_ids": start}, start.shape[1]
        elif self.case.reads == "samples":
            theirs = {"input_values": torch.from_numpy(prompts["samples"])}
        elif self.case.reads == "target":  # padding must be on the left
            left = np.array([np.roll(row, (row == 0).sum()) for row in prompts])
            theirs, skipped = {"input_ids": published.theirs(order, left)}, left.shape[1]
            theirs |= {"attention_mask": published.mask(left), "pad_token_id": int(order[3])}
        else:
            theirs = self.source(prompts)
        never = [[int(id)] for id in {*order[[0, 2]]} - {order[3], -1}]  # as in our searches
        never += [[int(order[id]) for id in word] for word in words]
        if beams > 1:
            options |= {"length_penalty": 0.0, "early_stopping": self.case.reads == "features"}
        with torch.no_grad():
            generated = transformers.GenerationMixin.generate(
                self.model,
                **theirs,
                max_new_tokens=MAX_LENGTH,
                num_beams=beams,
                do_sample=False,
                bad_words_ids=never or None,
                **options,
            )
        skipped += getattr(self.model.config, "forced_bos_token_id", None) is not None
        return published.tokens(order, generated[:, skipped:], end=3)


def made(tmp_path_factory):
    """Returns a function from the name of a case to its `Origin`, made once."""
    return functools.cache(lambda name: Origin(CASES[name], tmp_path_factory.mktemp("origin")))


def tensors_of(folder):
    return load_file(folder / "model.safetensors")


def alter(folder, files):
    """Changes files of a folder.

    Args:
        folder: path.
        files: dict from a file to its new content; to keys of a JSON object or to tensors, of which
            `None` removes one; to a function of its old content; or to `None`, which removes it.
    """
    for name, change in files.items():
        path = folder / name
        if change is None:
            path.unlink()
            continue
        if isinstance(change, dict):
            change = _merged(path, change)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(change(path.read_bytes()) if callable(change) else change)
    return folder


def _merged(path, changes):
    """Returns the bytes of a file of tensors or a JSON file with other values."""
    is_json = path.suffix == ".json"
    old = {} if not path.exists() else json.loads(path.read_bytes()) if is_json else load_file(path)
    values = {name: value for name, value in {**old, **changes}.items() if value is not None}
    if is_json:
        return json.dumps(values).encode()
    arrays = {name: np.ascontiguousarray(array) for name, array in values.items()}
    return save(arrays, {"format": "pt"})


def altered(source, folder, files):
    """Copies a folder with changes to its files; see `alter`."""
    return alter(shutil.copytree(source, folder, dirs_exist_ok=True), files)
