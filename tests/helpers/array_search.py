"""A hand-made artefact of a search without input ids: it returns its numbers as token ids.

Shapes: B rows, N numbers of a row; beam width 1.
"""

import onnx
from helpers import artefacts, head_artefacts

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
spell (float[batch, codes_length] codes)
    => (int32[batch, beam, target_length] token_ids, float[batch, beam] scores)
<int64[1] last = {1}>
{
    ids = Cast <to = 6> (codes)
    token_ids = Unsqueeze (ids, last)
    sum = ReduceSum (codes, last)
    scores = Neg (sum)
}
"""


def write(folder, tokenizer):
    made = onnx.parser.parse_model(MODEL)
    onnx.checker.check_model(made, full_check=True)
    inputs = [head_artefacts.described(value) for value in made.graph.input]
    sizes = {"source": None, "target": tokenizer.vocab_size}
    fields = {"task": "transcribe", "inputs": inputs, "vocab_size": sizes}
    return artefacts.write(folder, tokenizer, made.SerializeToString(), **fields)
