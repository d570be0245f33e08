"""CTranslate2 folders from its converter and our exporter, compared with its engine.

Shapes: B batch, S source length, T target length, U CTranslate2's vocabulary, V ours.
"""

import struct

import numpy as np
import pytest
import tensorflow as tf
from helpers import exports, origins, published, whisper_folder
from helpers.origins import alter, altered
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer.export import export_ctranslate2
from keras_transformer.importers import ctranslate2 as importer
from keras_transformer.importers import whisper
from keras_transformer.importers.__main__ import main
from keras_transformer.importers.ctranslate2_binary import read_model
from keras_transformer.layers.blocks import gelu_sigmoid
from keras_transformer.padding import pad_rows

engine = pytest.importorskip("ctranslate2", reason="CTranslate2, the other engine, is missing")
converters = pytest.importorskip("ctranslate2.converters.transformers")

V, D, F = exports.VOCAB, 22, 19
SOURCES = [[5, 7, 11, 13, 3], [17, 19, 3], [22, 4, 4, 9, 6, 8, 3]]
TARGETS = [[2, 4, 21], [2, 14, 16, 18, 20, 22], [2, 6]]
IDS = {"source_ids": pad_rows(SOURCES), "target_ids": pad_rows(TARGETS)}
GREEDY = kt.GreedySearch(allow_unknown=False)

VARIANTS = {
    "post-norm": {},
    "pre-norm, biases": {"norm_first": True, "use_bias": True, "activation": "silu"},
    "learned positions, two vocabularies": {
        "positions": kt.LearnedPositionEncoding(13),
        "target_vocab_size": V + 7,
        "activation": "gelu",
    },
    "two depths, norm of embeddings, own output": {
        "num_layers": (1, 3),
        "embedding_norm": True,
        "output_bias": True,
        "tie_output": False,
        "epsilon": 1e-3,
        "activation": gelu_sigmoid,
    },
}


def random_model(**options):
    return exports.tiny("translate", V, **{"d_model": D, "d_ff": F, **options})


@pytest.mark.full
@pytest.mark.parametrize("name", quick(VARIANTS, "two depths, norm of embeddings, own output"))
def test_an_exported_model_is_imported_again(name, tmp_path):
    model, tokenizer = random_model(**VARIANTS[name]), exports.tokenizer()
    target = None if model.target_vocab_size is None else tokenizer
    export_ctranslate2(model, tmp_path / "out", tokenizer, target_tokenizer=target, verbose=False)
    again = importer.load_model(tmp_path / "out", dropout=0.0)
    expected, found = np.array(model(IDS)), np.array(again(IDS))
    never = np.isin(np.arange(expected.shape[-1]), [0, 2])  # the export forbids them
    assert published.relative(found[..., ~never], expected[..., ~never]) <= 1e-5
    assert (found[..., never] < -50).all()
    assert again.norm_first == model.norm_first and again.tie_output == model.tie_output
    assert (again.target_vocab_size is None) == (model.target_vocab_size is None)


def opened(folder):
    return engine.Translator(str(folder), compute_type="float32", intra_threads=1)


def translated(translator, rows):
    """Returns the pieces that the engine's greedy search writes, one list per sentence."""
    found = translator.translate_batch(
        rows,
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=9,
        return_end_token=True,
        disable_unk=True,
    )
    return [one.hypotheses[0] for one in found]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # of PyTorch
@pytest.mark.parametrize(
    "precision, tolerance",
    quick([("float16", 2e-3), ("bfloat16", 2e-2), ("int16", 1e-2), ("int8", 5e-2)], ("int8", 5e-2)),
)
def test_low_precision_weights_become_float32(precision, tolerance, tmp_path):
    model = random_model()
    options = {"precision": precision, "tolerance": 0.5, "verbose": False}
    export_ctranslate2(model, tmp_path / "out", exports.tokenizer(), **options)
    found = np.array(importer.load_model(tmp_path / "out")(IDS))[..., 3:]
    error = published.relative(found, np.array(model(IDS))[..., 3:])
    assert 0 < error <= tolerance


NAMES = ("</s>", "<unk>", *(f"piece{i}" for i in range(34)), "<pad>")


def named(rows):
    """Returns the pieces of our ids. The vocabulary lacks padding and begin, our rows 0 and 2."""
    return [[NAMES[{1: 1, 3: 0}.get(id, id - 2)] for id in row] for row in rows]


@pytest.fixture(scope="module", params=quick([True, False], False), ids=["scaled", "not scaled"])
def folder(request, tmp_path_factory):
    """Returns the folder of a Marian model of `transformers` by CTranslate2's converter."""
    model = origins.marian_model(scale_embedding=request.param)
    spec = converters.MarianMTLoader().get_model_spec(model)
    spec.register_source_vocabulary([*NAMES[:-1]])
    spec.register_target_vocabulary([*NAMES[:-1]])
    spec.config.unk_token, spec.config.add_source_eos = "<unk>", True
    spec.config.eos_token = spec.config.bos_token = spec.config.decoder_start_token = "</s>"
    return saved(spec, tmp_path_factory.mktemp("marian"))


def saved(spec, folder):
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    return folder


@pytest.mark.full
def test_scores_and_greedy_tokens_equal_the_engine(folder):
    """The decoder starts from a vector of zeros."""
    source, target = published.ids(38, rows=100), published.ids(38, rows=100, seed=1)
    rows, scored = ([row[row > 0].tolist() for row in ids] for ids in (source, target))
    model, translator = importer.load_model(folder), opened(folder)
    pieces = named([row[:-1] for row in rows])  # the engine adds the end token
    found = translator.score_batch(pieces, named([row[:-1] for row in scored]))
    inputs = {"source_ids": source, "target_ids": pad_rows([[2, *row[:-1]] for row in scored])}
    log_probs = np.array(tf.nn.log_softmax(model(inputs)))
    for ours, ids, one in zip(log_probs, scored, found, strict=True):
        np.testing.assert_allclose(ours[range(len(ids)), ids], one.log_probs, atol=2e-4)
    written = published.found(GREEDY(model, source, 9).ids)
    assert named(written) == translated(translator, pieces)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Returns a model, its folder and the pieces there."""
    model, folder = random_model(), tmp_path_factory.mktemp("exported") / "model"
    return model, folder, export_ctranslate2(model, folder, exports.tokenizer(), verbose=False)


def test_a_tokenizer_gets_our_ids(exported):
    again, ours = importer.load(exported[1])
    assert ours.encode("a man 's words") == exports.tokenizer().encode("a man 's words")
    assert again.vocab_size == V


@pytest.mark.parametrize(
    "file, change, message",
    [
        (
            "config.json",
            {"add_source_bos": True},
            "add_source_bos=true, but `Translator` reads sources",
        ),
        ("tokenizer.model", None, "has no SentencePiece model"),
    ],
)
def test_folders_without_a_fitting_tokenizer_are_refused(file, change, message, exported, tmp_path):
    with pytest.raises((OSError, ValueError), match=message):
        importer.load(altered(exported[1], tmp_path, {file: change}))


@pytest.mark.full
def test_models_may_read_sources_without_the_end_token(exported, tmp_path):
    """So do Argos packages, whose tokenizer is above CTranslate2's folder."""
    (model, original, words), folder = exported, tmp_path / "model"
    altered(original, folder, {"config.json": {"add_source_eos": False}})
    (folder / "tokenizer.model").rename(tmp_path / "sentencepiece.model")
    ours, same = importer.load(folder)
    assert not ours.reads_end
    assert same.encode("two words") == exports.tokenizer().encode("two words")
    found = published.found(GREEDY(ours, pad_rows(SOURCES), 9).ids)
    pieces, written = ([[words[id] for id in row] for row in rows] for rows in (SOURCES, found))
    assert written == translated(opened(folder), [row[:-1] for row in pieces])
    with_end = GREEDY(model, pad_rows(SOURCES), 9).ids
    assert published.found(with_end) != found  # the end token matters
    with pytest.raises(ValueError, match="reads_end=False"):
        export_ctranslate2(ours, tmp_path / "again", verbose=False)


# Whisper


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """Writes a Whisper model in the layouts of Hugging Face and CTranslate2."""
    hub = tmp_path_factory.mktemp("hub")
    model = whisper_folder.model()
    whisper_folder.write(hub, model)
    spec = converters.WhisperLoader().get_model_spec(model)
    spec.register_vocabulary(whisper_folder.names())
    spec.config.suppress_ids, spec.config.suppress_ids_begin = [1, 5], [0, 40]
    spec.config.lang_ids, spec.config.alignment_heads = [42, 43], [[0, 3]]
    folder = saved(spec, tmp_path_factory.mktemp("ct2"))
    whisper_folder.write_tokenizer(folder)
    return hub, folder


def test_a_converted_whisper_equals_the_original_folder(speech):
    (expected, tokenizer), (found, same) = whisper.load(speech[0]), importer.load(speech[1])
    assert [w.path for w in found.weights] == [w.path for w in expected.weights]
    for ours, theirs in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)
    assert same == tokenizer
    assert importer.read_settings(speech[1]) == whisper.read_settings(speech[0])


# Bad input


def replaced(old, new):
    """Returns the change of `model.bin` that replaces bytes, once."""
    return {"model.bin": lambda data: data.replace(old, new, 1)}


CONV1 = b"encoder/conv1/weight\0\x03"
TRUNCATED = r"model\.bin cannot be read as a model: it is trunc"
DAMAGED = [
    (replaced(b"\x06\0\0\0", b"\x09\0\0\0"), "begins with 9, not with the version 6"),
    (replaced(b"WhisperSpec\0\x03", b"WhisperSpec\0\x02"), "a WhisperSpec of revision 2"),
    (replaced(b"WhisperSpec", b"WhimperSpec"), "holds a WhimperSpec"),
    (replaced(b"WhisperSpec", b"Whi\xff\xfeerSpec"), "cannot be read as a model: .*codec"),
    (
        replaced(CONV1 + struct.pack("<I", 16), CONV1 + struct.pack("<I", 2**31)),
        "has shape",
    ),
    (replaced(CONV1, CONV1[:-1] + b"\xff"), "has 255 axes"),
    (replaced(b"encoder/conv1/weight", b"encoder/conv9/weight"), "conv1/weight is missing"),
    (
        replaced(b"encoder/conv1/bias", b"encoder/conv9/bias"),
        "conv1/bias is missing; .*left over",
    ),
    (replaced(b"decoder/alibi\0", b"decoder/alibj\0"), "alibj=0"),
    *(({"model.bin": lambda data, n=n: data[:n]}, TRUNCATED) for n in (0, 3, 10, 2000, 9999, -1)),
    ({"model.bin": lambda data: data + b"\0"}, "goes on after the last alias"),
    ({"vocabulary.json": b"{}"}, "must hold a list of pieces"),
    ({"vocabulary.json": b"[1]"}, "must hold a list of pieces"),
    ({"vocabulary.json": b"[" * 100_000}, "is no vocabulary"),
    ({"vocabulary.json": b'["a", "a"]'}, "holds a piece twice"),
    ({"config.json": {"lang_ids": [61]}}, "lang_ids in .* ids of the 61 tokens"),
    ({"config.json": {"suppress_ids": "a"}}, "suppressed tokens in .* must be a list"),
]


@pytest.mark.parametrize("files, message", DAMAGED, ids=[message for _, message in DAMAGED])
def test_damaged_files_are_named(files, message, speech, tmp_path):
    altered(speech[1], tmp_path, files)
    load = importer.load_model if "model.bin" in files else importer.read_settings
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def text(string):
    return struct.pack("<H", len(string) + 1) + string.encode() + b"\0"


def stored(*variables, aliases=()):
    """Returns the bytes of a file with these pairs of name and array."""
    data = struct.pack("<I", 6) + text("AnySpec") + struct.pack("<II", 1, len(variables))
    for name, array in variables:
        array = np.asarray(array)
        kind = ["float32", "int8", "int16", "int32"].index(array.dtype.name)
        data += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        data += struct.pack("<BI", kind, array.nbytes) + array.tobytes()
    return data + struct.pack("<I", len(aliases)) + b"".join(map(text, np.ravel(aliases)))


WEIGHT = ("weight", np.array([[5, 7, -11], [13, 0, 2]], "int8"))


def scale(*numbers):
    return "weight_scale", np.array(numbers, "float32")


def test_rows_are_divided_by_their_scales(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(stored(WEIGHT, scale(2, 4), aliases=[("tied", "weight")]))
    tensors = read_model(path).tensors
    expected = [[2.5, 3.5, -5.5], [3.25, 0, 0.5]]
    np.testing.assert_array_equal(tensors["weight"], expected)
    assert tensors["tied"] is tensors["weight"] and len(tensors) == 2


@pytest.mark.parametrize(
    "variables, aliases, message",
    [
        ([WEIGHT], [], "'weight' holds int8 without a scale"),
        ([WEIGHT, scale(2, 0)], [], "scale of 'weight' must be positive"),
        ([WEIGHT, scale(2, np.nan)], [], "scale of 'weight' must be positive"),
        ([WEIGHT, scale(2, 3, 5)], [], "must be positive, one or 2 numbers"),
        ([WEIGHT, scale(2, 1e-40)], [], "scale of 'weight' is too small"),
        ([WEIGHT, scale(2, 3), WEIGHT], [], "holds 'weight' twice"),
        ([("weight", np.ones((2, 3), "int32"))], [], "holds int32, which is no number type"),
        ([WEIGHT, scale(2, 3)], [("tied", "other")], "alias 'tied' of 'other'"),
        ([WEIGHT, scale(2, 3)], [("weight", "weight")], "alias 'weight' of 'weight'"),
    ],
)
def test_wrong_scales_and_aliases_are_refused(variables, aliases, message, tmp_path):
    (tmp_path / "model.bin").write_bytes(stored(*variables, aliases=aliases))
    with pytest.raises(ValueError, match=message):
        read_model(tmp_path / "model.bin")


def test_the_command_names_a_missing_vocabulary(speech, tmp_path, capsys):
    altered(speech[1], tmp_path, {"vocabulary.json": None})
    assert main(["ctranslate2", str(tmp_path), str(tmp_path / "out")]) == 1
    assert "vocabulary.txt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_with_other_attention_is_refused(tmp_path):
    spec = engine.specs.TransformerSpec.from_config(1, 2, ffn_glu=True, rms_norm=True)
    random = np.random.default_rng(2)

    def filled(inner, name, value):
        if value is None:
            setattr(inner, name.rpartition("/")[2], random.normal(size=(4, 4)).astype("float32"))

    spec._visit(filled)
    spec.register_source_vocabulary(list("abcd"))
    spec.register_target_vocabulary(list("abcd"))
    spec.validate()
    spec.save(str(tmp_path))
    tokens = {"unk_token": "a", "eos_token": "b", "decoder_start_token": "c"}
    alter(tmp_path, {"config.json": tokens})
    with pytest.raises(ValueError, match="missing|left over"):
        importer.load_model(tmp_path)
