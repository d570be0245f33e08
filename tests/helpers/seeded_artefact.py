"""A hand-made artefact of a language model: its samples are the prompt, shifted by the seed.

The first hypothesis shifts each piece of the prompt by `seed` ids. The second is the prompt, with a
score lower by 1. Shapes: B prompts, S prompt length; beam width 2, target length S.
"""

import onnx
from helpers import artefacts

from keras_transformer.special_ids import BEGIN_ID, END_ID

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
move (int32[batch, source_length] source_ids, int32 seed)
    => (int32[batch, beam, target_length] token_ids, float[batch, beam] scores)
<int32 end = {{{end}}}, int32 first_piece = {{{first}}}, int32 pieces = {{{pieces}}},
    int64[1] last = {{1}}, float[1, 2] difference = {{0, -1}}, float thousandth = {{-0.001}}>
{{
    is_piece = Greater (source_ids, end)
    from_zero = Sub (source_ids, first_piece)
    moved = Add (from_zero, seed)
    around = Mod (moved, pieces)
    piece = Add (around, first_piece)
    ids = Where (is_piece, piece, source_ids)
    one = Unsqueeze (ids, last)
    two = Unsqueeze (source_ids, last)
    token_ids = Concat <axis = 1> (one, two)
    sum = ReduceSum (source_ids, last)
    float_sum = Cast <to = 1> (sum)
    best = Mul (float_sum, thousandth)
    scores = Add (best, difference)
}}
"""


def write(folder, tokenizer, **fields):
    """Writes the artefact; `fields` replaces fields of the manifest."""
    first = END_ID + 1
    made = onnx.parser.parse_model(
        MODEL.format(end=END_ID, first=first, pieces=tokenizer.vocab_size - first)
    )
    onnx.checker.check_model(made, full_check=True)
    inputs = [artefacts.described("source_ids", "int32"), artefacts.described("seed", "int32")]
    search = {"class_name": "Sampling", "config": {"num_samples": 2}}
    fields = {"task": "generate", "inputs": inputs, "search": search, **fields}
    return artefacts.write(folder, tokenizer, made.SerializeToString(), **fields)


def moved(tokenizer, prompt, seed):
    """Returns the ids of a prompt's first hypothesis, the begin token included."""
    first = END_ID + 1
    pieces = tokenizer.vocab_size - first
    return [BEGIN_ID, *(first + (i - first + seed) % pieces for i in tokenizer.encode(prompt))]
