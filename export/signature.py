"""What an exported artefact is made of: names of inputs, outputs and axes, special ids, files.

Exporters write these names and servers read them. Plain Python, without a framework, so that a
server can import it.

Shapes: `B` batch, `S` source length, `W` beam width, `T` target length, `V` vocabulary.
"""

SOURCE_IDS = "source_ids"  # (B, S) int32, input; right-padded with SPECIAL_IDS["pad"]
TARGET_IDS = "target_ids"  # (B, T) int32, second input where the forward pass itself is exported
TOKEN_IDS = "token_ids"  # (B, W, T) int32, output; best hypothesis first
SCORES = "scores"  # (B, W) float32, output
LOGITS = "logits"  # (B, T, V) float32, output where the forward pass itself is exported

# Names of the axes, in order. Axes of one name have one length within a call.
AXES = {
    SOURCE_IDS: ("batch", "source_length"),
    TARGET_IDS: ("batch", "target_length"),
    TOKEN_IDS: ("batch", "beam", "target_length"),
    SCORES: ("batch", "beam"),
    LOGITS: ("batch", "target_length", "vocabulary"),
}

SPECIAL_IDS = {"pad": 0, "unknown": 1, "begin": 2, "end": 3}

# Files of an ONNX artefact's folder.
MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"  # external data, only beside models past 2 GB
TEXT_MODEL_FILE = "text_model.onnx"  # strings in and out, only where asked for
TOKENIZER_FILE = "tokenizer.model"
MANIFEST_FILE = "manifest.json"  # all that a server needs to know about the other files

# Signatures of a SavedModel.
TRANSLATE = "translate"  # strings in; n-best strings and scores out
SEARCH = "search"  # ids in and out
FORWARD = "logits"  # teacher forcing
