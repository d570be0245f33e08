"""Names that exporters write and servers read: inputs, outputs, axes, files, signatures.

Plain Python without a framework, so that a server can import it. `manifest` describes the file
that lists them all.

Shapes: `B` batch, `S` source length, `W` beam width, `T` target length, `V` vocabulary. `S` is at
least 1, and `B` may be 0.
"""

from keras_transformer.special_ids import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID

SOURCE_IDS = "source_ids"  # (B, S) int32, input; right-padded with SPECIAL_IDS["pad"]
TARGET_IDS = "target_ids"  # (B, T) int32, input of a decoder whose forward pass is exported
SEGMENT_IDS = "segment_ids"  # (B, S) int32, beside ids of two texts: 0 padding, 1 first, 2 second
SEED = "seed"  # () int32, further input of a search that draws random numbers
TOKEN_IDS = "token_ids"  # (B, W, T) int32, output; best hypothesis first
SCORES = "scores"  # (B, W) float32, output
TOKEN_SCORES = "token_scores"  # (B, W, T) float32, output of a search with `token_scores`
ALIGNMENTS = "alignments"  # (B, W, T, S) float32, output of a search with `alignments`
START_IDS = "start_ids"  # (B, P) int32, input: the tokens before the first generated one
START_SCORES = "start_scores"  # (B, K) float32, output of a `SpeechSearch`
# Outputs of a `SpeechSearch` with `word_heads`; 0 or 1 asks for them in a call.
WORD_ATTENTION = "word_attention"  # (B, A, T, S) float32
WORD_SCORES = "word_scores"  # (B, T) float32
WORD_TIMES = "word_times"  # () int32, input
LOGITS = "logits"  # (B, T, V) float32, output of an exported forward pass
TEXT = "text"  # (B,) string, input of the text model
TEXTS = "texts"  # (B, W) string, its output beside SCORES
ANSWER_START, ANSWER_END = "start", "end"  # (B, S) float32, outputs that mark answers

# Outputs of a search; it always has the first two.
SEARCH_OUTPUTS = (
    *(TOKEN_IDS, SCORES, TOKEN_SCORES, ALIGNMENTS),
    *(START_SCORES, WORD_ATTENTION, WORD_SCORES),
)

# Inputs and outputs of a step, for a loop outside of the graph.
NEXT = "next."  # prefix of an input's name: its value for the next step
SLOTS = "blocks"  # the beginning of the names of cached keys and values
UNFINISHED = "unfinished"  # () bool, output: whether another step is needed
HISTORY = "history"  # (B, R, L) int32, the last L tokens of each row
RUNNING = "running"  # (B, W) float32, log-probability of each running hypothesis; -inf for none
START_LENGTH = "start_length"  # (B, 1) int32, tokens of each prompt; only with prompts

# Suffix of a weight's name: the same weight in a step of a loop, which shares its bytes.
STEP_COPY = "/step"

# Names of the axes, in order. Axes of the same name have the same length within a call.
AXES: dict[str, tuple[str, ...]] = {
    SOURCE_IDS: ("batch", "source_length"),
    TARGET_IDS: ("batch", "target_length"),
    SEED: (),
    TOKEN_IDS: ("batch", "beam", "target_length"),
    SCORES: ("batch", "beam"),
    TOKEN_SCORES: ("batch", "beam", "target_length"),
    ALIGNMENTS: ("batch", "beam", "target_length", "source_length"),
    START_SCORES: ("batch", "start_tokens"),
    WORD_ATTENTION: ("batch", "heads", "text_length", "memory_length"),
    WORD_SCORES: ("batch", "text_length_1"),
    LOGITS: ("batch", "target_length", "vocabulary"),
    TEXT: ("batch",),
    TEXTS: ("batch", "beam"),
}


def axes_of(name: str, rank: int) -> tuple[str, ...]:
    """Returns the axis names of an input or output: from `AXES`, else a batch of sequences."""
    if name in AXES and len(AXES[name]) == rank:
        return AXES[name]
    return ("batch", f"{name}_length", *(f"{name}_axis_{i}" for i in range(2, rank)))[:rank]


DTYPES = ("bool", "float16", "float32", "int32", "int64", "string")

MOST_SEED = 2**31 - 2  # the largest; the smallest is 0

SPECIAL_IDS = {"pad": PAD_ID, "unknown": UNKNOWN_ID, "begin": BEGIN_ID, "end": END_ID}

# Rules for unusual text, in `Translator`, a SavedModel and a text model. Input ends at its first
# NUL character, because onnxruntime-extensions ends it there. Input of white space (`str.isspace`),
# or without any piece that the tokenizer knows, is blank: it has one empty hypothesis of score 0,
# or an empty result. Output has U+FFFD for bytes that are not UTF-8, and for NUL.
BLANK = (  # a regular expression of RE2 for white space
    r"[\t-\r\x1c- \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]*"
)
REPLACEMENT = "\ufffd"

# Files of an artefact.
MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"  # external data, only of models over 2 GB
TEXT_MODEL_FILE = "text_model.onnx"  # strings in and out, only on request
TOKENIZER_FILE = "tokenizer.model"
TARGET_TOKENIZER_FILE = "target_tokenizer.model"  # if the output has another tokenizer
MANIFEST_FILE = "artefact.json"
LITERT_FILE = "model.tflite"  # instead of the ONNX files, for LiteRT
# Instead of MODEL_FILE, for a loop outside of the graph.
FIRST_FILE, FIRST_WEIGHTS_FILE = "first.onnx", "first.onnx.data"  # up to the first step
STEP_FILE, STEP_WEIGHTS_FILE = "step.onnx", "step.onnx.data"  # one step
MODEL_FILES: dict[str, tuple[str, ...]] = {"loop": (MODEL_FILE,), "steps": (FIRST_FILE, STEP_FILE)}
FILES = (
    *(MODEL_FILE, WEIGHTS_FILE, FIRST_FILE, FIRST_WEIGHTS_FILE, STEP_FILE, STEP_WEIGHTS_FILE),
    *(LITERT_FILE, TEXT_MODEL_FILE, TOKENIZER_FILE, TARGET_TOKENIZER_FILE),
)
# Layouts of an artefact with a search: one file with the loop in it, or one for each step.
LAYOUTS = tuple(MODEL_FILES)

# Signatures of a SavedModel. The signature for strings has the task as its name.
SEARCH = "search"  # ids in and out
WITH_OPTIONS = "_with_options"  # after a name: the same signature with options as inputs
FORWARD = "forward"  # one forward pass; its name is LOGITS if these are the only output

# The engines that run an artefact.
ONNX_RUNTIME, LITERT = ENGINES = ("onnxruntime", "litert")

FORMAT = "keras-transformer-onnx"
FORMAT_VERSION = 1
# Source to target, prompt to continuation, a source without text to target.
SEARCH_TASKS = ("translate", "generate", "transcribe")
# Text to label, words to tags, question and text to answer, input to vectors, several of them: see
# `task_heads`.
HEAD_TASKS = ("classify", "tag", "answer", "embed", "heads")
TASKS = (*SEARCH_TASKS, *HEAD_TASKS, "forward")
# float16 is meant for GPUs; the others run on CPUs. "int8": weights and, at run time, activations;
# "int16x8": the same with activations in 16 bits; "weight_int8" and "weight_int4": weights in
# blocks, with a scale for each block.
PRECISIONS = ("float32", "float16", "int8", "int16x8", "weight_int8", "weight_int4")
