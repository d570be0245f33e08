"""Short runs of the example scripts: report, pictures and artefact; functions of scripts."""

import functools
import json
import operator
import types
from typing import NamedTuple

import keras
import numpy as np
import pytest
from helpers import bergamot_model, scripts, tiers
from support import filters
from support.scores.separation import si_sdr
from support.sets import noisy_speech, roads
from support.sets.chorales import made_chorales, notes
from support.sets.series import made_series
from support.sets.text_sets import TextSets
from support.sets.trees import read_trees

import keras_transformer as kt
from keras_transformer.export.runtime import Generator, Predictor, Translator
from keras_transformer.export.verify import verify
from keras_transformer.importers import bergamot, bert, pieces


class Task(NamedTuple):
    """Arguments for a short run, its pictures, and expected facts and bounds of its report."""

    arguments: str
    pictures: tuple[str, ...]
    report: dict[str, object]
    bounds: dict[tuple[str, ...], tuple[float, float]] = {}


class Result(NamedTuple):
    """Replaces a result of `Predictor`."""

    arrays: dict[str, np.ndarray]


TASKS = {
    "anomalies": Task("--limit 1000", ("anomalies",), {"data": "made waves"}),
    "answer": Task(
        "--passages 20 --limit 40 --num-layers 1 --d-model 16",
        ("answer",),
        {"questions": 40, "data": "made calendars"},
        {("baseline", "most words in common, kind given"): (0.2, 0.8)},
    ),
    "classify": Task(
        "--limit 60", ("words", "confusion"), {"data": "opinions made of a few words"}
    ),
    "classify_series": Task("--limit 40", ("series", "confusion"), {"data": "made gestures"}),
    "control": Task(
        "--limit 12 --windows 64 --games 1", ("returns",), {"data": "CartPole", "games": 1}
    ),
    "denoise": Task("--limit 54 --layers 1", ("spectrograms",), {"data": "made voices"}),
    "detect": Task("--limit 60", ("boxes",), {"data": "scenes of drawn shapes"}),
    "draw": Task(
        "--limit 60 --samples 1",
        ("samples",),
        {"data": "scenes of drawn shapes", "samples": 40},
        {("temperature",): (0.1, 1)},
    ),
    "drive": Task(
        "--limit 6 --drives 3",
        ("attention",),
        {"data": "highway-env", "drives": 3},
        {
            ("baseline", "always slower, mean m/s"): (20, 25),
            ("baseline", "the driver model, mean m/s"): (20, 30),
        },
    ),
    "entities": Task("--limit 60", ("errors",), {"data": "sentences of a small grammar"}),
    "extract": Task(
        "--limit 60",
        ("slots",),
        {"data": "requests of a small grammar"},
        {
            ("score", "valid by the schema"): (1, 1),
            ("others", "without the pattern", "valid JSON"): (0, 0.99),
        },
    ),
    "forecast": Task(
        "--limit 20 --layers 1 --past 48 --future 24", ("forecast",), {"data": "made"}
    ),
    "generate_images": Task(
        "--limit 40 --samples 1", ("samples", "completions"), {"data": "made shapes", "samples": 5}
    ),
    "images": Task("--limit 20 --layers 1", ("confusion", "attention"), {"data": "made"}),
    "intents": Task("--limit 60", ("slots",), {"data": "requests of a small grammar"}),
    "language_model": Task("--limit 500", ("learning",), {}),
    "music": Task(
        "--limit 4 --melodies 1",
        ("piano_roll",),
        {"data": "made chorales"},
        {("others", "harmonized melodies", "notes of the chorale"): (0, 1)},
    ),
    "parse": Task(
        "--limit 40 --beam-width 2",
        (),
        {},
        {
            ("score", "well-formed, as many words"): (1, 1),
            ("others", "without the grammar", "well-formed"): (0, 0.99),
            ("baseline", "f1 of one bracket a sentence"): (0.1, 0.9),
        },
    ),
    "similarity": Task(
        "--limit 60 --vocab-size 300 --num-layers 1 --d-model 16",
        ("similarity",),
        {"pairs": 60, "data": "number words"},
    ),
    "speak": Task("--limit 6 --layers 1 --updates 2", ("spectrograms",), {"data": "made"}),
    "speech": Task("--limit 8 --layers 1", ("spectrogram",), {"data": "made"}),
    "summarise": Task(
        "--limit 16 --vocab-size 700 --num-layers 1 --d-model 16 --beam-width 1",
        ("summarise",),
        {"texts": 16, "data": "made calendars"},
    ),
    "tag": Task("--limit 60", ("confusion",), {}),
    "video": Task("--limit 60", ("clips",), {"data": "clips of drawn shapes"}),
    "why_self_attention": Task("--rows 64 --longest 64", ("why_self_attention",), {}),
}

# The nightly suite runs the others, and tests of their artefacts. The full one runs the code of the
# pages of most of them.
FULL = ("anomalies", "detect", "entities", "extract", "forecast", "intents", "summarise")
NEEDS = {"control": "gymnasium", "drive": "highway_env", "music": "mido"}


# Constants for short runs.
SMALLER = {
    "detect": {"UPDATES": 3, "CHOOSE": 20, "MEASURE": 20},
    "draw": {"UPDATES": 2, "BATCH": 8},
    "generate_images": {"UPDATES": 2},
    "music": {"UPDATES": 3},
    "video": {"UPDATES": 2, "BATCH": 8, "CHOOSE": 40, "MEASURE": 40},
    "why_self_attention": {"LENGTH": 32, "LAYERS": 1, "DISTANCES": [0, 1, 31]},
}


def load(name):
    """Loads a script as a module, with small constants."""
    script = scripts.load(name)
    vars(script).update(SMALLER.get(name, {}))
    if name == "generate_images":
        script.SMALL["num_layers"] = 1
    if name == "draw":
        script.SMALL = {**script.SMALL[0], "num_layers": 1}, 16
    if name in ("denoise", "speak"):
        script.speech.EPOCHS = script.speech.LAYERS = 1
    if name == "video":
        models = [*script.MODELS.items()][:3]
        script.MODELS = {key: (read, kinds[:1]) for key, (read, kinds) in models}
    return script


def read_report(folder):
    return json.loads((folder / "score.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Returns a function that runs a script once and returns its folder."""

    @functools.cache
    def run(name):
        if name in NEEDS:
            pytest.importorskip(NEEDS[name])
        folder = tmp_path_factory.mktemp(name)
        options = [*TASKS[name].arguments.split(), "--epochs", "1", "--output", str(folder)]
        load(name).main(options)
        return folder

    return run


@pytest.mark.parametrize("name", tiers.quick(TASKS, nightly=TASKS.keys() - {*FULL}))
def test_a_short_run_leaves_a_report_and_pictures(finished, name):
    folder, task = finished(name), TASKS[name]
    report = read_report(folder)
    assert task.report.items() <= report.items()
    assert report["epochs"] >= 1 and report["artefact_bytes"] > 10_000
    values = [*report["score"].values(), *report.get("baseline", {}).values()]
    assert values and all(0 <= value <= 500 for value in values)
    for path, (least, most) in task.bounds.items():
        assert least <= functools.reduce(operator.getitem, path, report) <= most, path
    for picture in task.pictures:
        assert (folder / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    artefacts = [path.parent for path in folder.rglob("artefact.json")]
    assert artefacts and [path for path in artefacts if verify(path)] == []


@pytest.mark.full
def test_a_text_becomes_a_spectrogram(finished):
    speak = load("speak").served(finished("speak") / "onnx")
    texts = ["line 0 two, seven", "line 2 one"]
    (first, second), (alone,) = speak(texts), speak(texts[1:])
    assert first.shape[1:] == (128,) and len(first) % 4 == 0
    np.testing.assert_array_equal(second, alone)
    assert first.shape != second.shape or np.abs(first - second).max() > 1e-3


@pytest.mark.full
def test_padding_changes_no_frame_of_speech():
    keras.utils.set_random_seed(7)
    model = load("speak").make_model(vocab_size=17, layers=1)
    ids, places = np.array([[5, 7, 4, 11, 3]]), np.linspace(1, 3.9, 13)[None]
    alone = model({"source_ids": ids, "places": places})
    inputs = np.pad(ids, [(0, 0), (0, 2)]), np.pad(places, [(0, 0), (0, 3)], constant_values=-1)
    padded = model(dict(zip(("source_ids", "places"), inputs, strict=True)))
    assert padded["frames"].shape == (1, 64, 128)
    for name, length in {"durations": 5, "frames": 52}.items():
        np.testing.assert_allclose(padded[name][:, :length], alone[name], atol=1e-5)


def test_an_object_has_its_slots_in_the_order_of_the_schema():
    extract = scripts.load("extract")
    words, tags = "play a b by c".split(), ["O", "B-song", "I-song", "O", "B-artist"]
    found = extract.as_object(words, tags, "music")
    assert list(found.items()) == [("intent", "music"), ("artist", ["c"]), ("song", ["a b"])]
    lines = [extract.as_text({"intent": "music", "song": ["c"]}), "{"]
    outcomes = extract.slot_outcomes(lines, [extract.as_text(found)] * 2)
    assert outcomes["artist"] == {"other type": 1, "missed": 1}
    assert outcomes["song"] == {"other words": 1, "missed": 1}
    lines, pattern = [extract.as_text(found), "{", "{}"], types.SimpleNamespace(regex=".?")
    scores = extract.scores(lines, lines[:1] * 3, pattern)
    shares = {"exact match": 1, "valid JSON": 2, "valid by the schema": 1}
    assert scores == {name: count / 3 for name, count in shares.items()}


@pytest.mark.full
def test_the_artefact_reproduces_the_score_of_a_forecast(finished):
    before, after = made_series().windows(past=48, future=24, limit=20)["test"]
    results = Predictor(finished("forecast") / "onnx").predict(np.ascontiguousarray(before))
    found = np.stack([next(iter(result.arrays.values())) for result in results])
    report = read_report(finished("forecast"))
    assert report["score"]["mse"] == pytest.approx(np.square(found - after).mean(), rel=1e-5)
    assert {"linear, mse", "the last day again, mse"} <= report["baseline"].keys()


@pytest.mark.full
def test_a_caption_becomes_a_text_of_pieces(finished):
    captions = ["a small disc left of a large ring", "a large disc above a large ring"] * 2
    texts = Generator(finished("draw") / "onnx").generate(captions, seed=3)
    assert texts[:2] == texts[2:] and texts[0] != texts[1]
    assert {len(text) for text in texts} == {121}
    assert {ord(symbol) - 0x4E00 for text in texts for symbol in text} <= {*range(16)}


@pytest.mark.nightly
def test_a_completed_picture_starts_with_the_given_half(finished):
    script, generator = load("generate_images"), Generator(finished("generate_images") / "onnx")
    half = np.arange(98).reshape(7, 14) % 16
    pictures = script.draw_pictures(generator, [script.as_text(3, half)], range(2))
    assert pictures.shape == (1, 2, 14, 14) and pictures.max() <= 15
    np.testing.assert_array_equal(pictures[0, :, :7], [half, half])
    assert (pictures[0, 0] != pictures[0, 1]).any()


@pytest.mark.nightly
def test_a_melody_is_kept_when_it_is_harmonized(finished):
    folder, mido = finished("music"), pytest.importorskip("mido")
    track = mido.MidiFile(folder / "harmonized-0.mid").tracks[1]
    found = [message.note for message in track if message.type == "note_on"]
    melody = made_chorales()["test"][0][:, 0]
    assert track.name == "soprano"
    assert found == [pitch for pitch, *_ in notes(melody)]


@pytest.mark.nightly
def test_a_policy_reads_the_other_vehicles_as_a_set(finished):
    predictor = Predictor(finished("drive") / "onnx")
    views, _ = roads.demonstrations(1, seed=3)
    order = np.array([0, *(np.random.default_rng(7).permutation(roads.VEHICLES - 1) + 1)])
    actions, same = (
        np.stack([next(iter(result.arrays.values())) for result in predictor.predict(some)])
        for some in (views, views[:, order])
    )
    np.testing.assert_allclose(actions, same, atol=1e-5)
    assert actions.shape == (len(views), 5) and np.ptp(actions, axis=0).min() > 1e-3


@pytest.mark.nightly
def test_the_artefact_removes_the_same_noise_as_keras(finished):
    folder = finished("denoise")
    script, sets = load("denoise"), noisy_speech.made_voices()
    draw = np.random.default_rng(7)
    made = noisy_speech.mixtures(draw, sets.train, sets.test, ["rain", "siren"], 7)
    noisy = filters.spectra(made.noisy)
    model = keras.models.load_model(folder / "model.keras", compile=False)
    expected = model.predict(filters.rows_of(noisy), verbose=0)
    found = filters.rows_of(script.served(folder / "onnx")(noisy))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert script.gains(filters.sounds_of(noisy), made) == pytest.approx(0, abs=1e-3)
    before, clean = noisy_speech.row_pairs(made)
    ratios = -script.ratio_loss(*map(keras.ops.convert_to_tensor, (clean, before))).numpy()
    np.testing.assert_allclose(ratios, si_sdr(made.noisy, made.clean), atol=0.03)


@pytest.mark.nightly
def test_the_artefact_reads_a_clip_as_keras_does(finished):
    folder = finished("video")
    script, random = load("video"), np.random.default_rng(7)
    frames = random.random((5, 6, 32, 32)).astype("float32")
    model = keras.models.load_model(folder / "model.keras", compile=False)
    expected = model.predict(frames, verbose=0)
    found = script.served(folder / "onnx", frames)
    assert {name: array.shape for name, array in found.items()} == {
        "motion": (5, 8),
        "moving": (5, 5),
        "still": (5, 5),
        "next": (5, 3, 32, 32),
    }
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-4)
    report = read_report(folder)
    assert report["chosen"] in ("factorized attention", "joint attention")
    baseline = report["baseline"]
    assert baseline["shifted part, mse"] < baseline["last frame again, mse"]


@pytest.mark.full
def test_object_queries_become_classes_and_boxes(finished):
    pixels = np.zeros((1, 64, 64, 1), "float32")
    (result,) = Predictor(finished("detect") / "onnx").predict(pixels)
    (found,) = result.arrays.values()
    assert found.shape == (64, 5 + 1 + 4)
    assert (found[:, -4:] > 0).all() and (found[:, -4:] < 1).all()


@pytest.mark.full
def test_a_summary_may_be_empty_and_is_drawn(finished):
    folder = finished("summarise")
    (result,) = Translator(folder / "onnx").n_best(["Anna reads a novel in Rome."])
    assert result.error is None and len(result.texts) == 1
    model = keras.models.load_model(folder / "model.keras")
    tokenizer = kt.Tokenizer.load(folder / "onnx" / "tokenizer.model")
    figure = load("summarise").draw_attention(model, tokenizer, [("Anna reads.", "Anna", "")])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["</s>"]


@pytest.mark.nightly
def test_summaries_start_from_a_published_translator(tmp_path, monkeypatch):
    start = bergamot_model.write_folder(tmp_path / "pt-en")
    lines = bergamot_model.LINES  # the vocabulary covers only these
    sets = TextSets([lines, lines], [lines[:4], lines[:4]], {"test": [lines[:4], lines[:4]]})
    script = load("summarise")
    monkeypatch.setattr(script, "calendar_summaries", lambda *_, **__: sets)
    options = ["--epochs", "1", "--beam-width", "1", "--start", str(start)]
    script.main([*options, "--output", str(tmp_path / "out")])
    assert read_report(tmp_path / "out")["epochs"] == 1  # without the stage of beginnings
    published = bergamot.load(start)[0].get_weights()
    trained = keras.models.load_model(tmp_path / "out" / "model.keras").get_weights()
    moved = [np.abs(a - b).max() for a, b in zip(trained, published, strict=True)]
    assert max(moved) < 0.02  # one update at 0.0002 at most
    assert (tmp_path / "out" / "summarise.png").exists()  # also without decoder self-attention


@pytest.mark.full
def test_entities_start_from_a_bert(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    letters = [start + letter for start in ("", "##") for letter in "abcdefghijklmnopqrstuvwxyz&"]
    ids = {piece: id for id, piece in enumerate([*bert.SPECIAL, *letters])}
    config = pieces.word_pieces(tmp_path, ids)
    tokenizer = pieces.renumbered_json(config, np.arange(len(ids)), "[CLS]")
    encoder = kt.TransformerEncoder(
        len(ids), 1, 16, 2, 32, positions=kt.LearnedPositionEncoding(512), embedding_norm=True
    )
    script = load("entities")
    monkeypatch.setattr(script.kt.importers.bert, "load", lambda folder: (encoder, tokenizer))
    folder = tmp_path / "out"
    options = ["--limit", "40", "--epochs", "1", "--output", str(folder)]
    script.main([*options, "--pretrained", str(tmp_path)])
    (result,) = Predictor(folder / "onnx").predict([["Anna", "&", "Co"]])
    assert result.error is None and len(result.tags) == 3
    parameters = encoder.count_params() + 17 * 7  # a new head for seven tags
    assert read_report(folder)["parameters"] == parameters


@pytest.mark.nightly
def test_each_kind_of_layer_is_measured(finished):
    report = read_report(finished("why_self_attention"))
    kinds = load("why_self_attention").KINDS
    assert list(report["score"]) == [f"recall over 31, {kind}" for kind in kinds]
    assert report["milliseconds"].keys() == kinds.keys()
    # Without the scale, the gradient of large keys vanishes.
    scaled, plain, additive = report["slopes"].values()
    assert scaled[-1] > 0.8 * scaled[0] and additive[-1] > 0.5 * scaled[0]
    assert plain[-1] < 0.35 * scaled[-1]


@pytest.mark.full
def test_a_published_model_is_imported_trained_and_served(tmp_path, capsys):
    script = scripts.load("pretrained")
    small = script.make_small_model(tmp_path / "small")
    script.main(["--folder", str(small), "--output", str(tmp_path), "--seconds", "0"])
    printed = capsys.readouterr().out
    assert "1 epochs, loss" in printed and "after, served:" in printed
    served = Translator(tmp_path / "onnx").translate(script.HELD_OUT)
    for line, text in zip(script.HELD_OUT, served, strict=True):
        assert f"  {line} -> {text}" in printed


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("anomalies", ["--data", ".", "--set", "bleeding", "--validate"], "no validation series"),
        ("classify", ["--data", "."], "--data and --set go together"),
        ("forecast", ["--past", "100"], "--past must be a multiple of 24"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, arguments, message, capsys):
    with pytest.raises(SystemExit):
        scripts.load(name).main(arguments)
    assert message in capsys.readouterr().err


def test_a_translator_of_two_vocabularies_is_refused(tmp_path, monkeypatch):
    script = scripts.load("summarise")
    monkeypatch.setattr(script.bergamot, "load", lambda folder: (None, ("source", "target")))
    options = ["--limit", "4", "--start", "de-en", "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="de-en has two vocabularies"):
        script.main(options)


def test_trees_of_other_sentences_count_as_missed():
    parse = scripts.load("parse")
    gold = read_trees("(S (NP (NN a)) (VP (VB b)))\n(S (NN a))")
    scores = parse.scores(gold, ["(S (NP XX ) (VP XX ) )", "(S XX XX )"])
    assert scores["well-formed"] == 1 and scores["well-formed, as many words"] == 0.5
    assert (scores["precision"], scores["recall"]) == (1, 3 / 4)
    assert parse.scores(gold, ["(S (NP XX )", ""])["well-formed"] == 0
    assert parse.flat_score(gold) == pytest.approx(2 * 2 / (4 + 2))


def test_the_error_of_a_step_is_the_mean_over_its_predictions():
    script = scripts.load("anomalies")
    series = np.random.default_rng(7).normal(size=(211, 2)).astype("float32")

    class Echo:
        """Predicts the hidden steps, but one of them 3 too high."""

        def predict(self, windows):
            hidden = windows[:, script.SIDE : script.SIDE + script.PATCH].copy()
            hidden[(hidden == series[101]).all(axis=-1)] += 3
            return [Result({"guess": one}) for one in hidden]

    errors = script.guess_errors(Echo(), series)
    np.testing.assert_allclose(errors, np.where(np.arange(211) == 101, 9, 0), atol=1e-5)
    assert np.isfinite(errors[[0, -1]]).all()


def test_restricted_attention_sees_its_block_and_the_one_before():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(1, 64, 8)).astype("float32")
    layer = load("why_self_attention").RestrictedSelfAttention(2, 4)
    before = np.asarray(layer(x))
    x[0, 20] += 1  # in the second block of 16
    changed = np.abs(np.asarray(layer(x)) - before).max(-1)[0] > 1e-6
    np.testing.assert_array_equal(np.flatnonzero(changed), np.arange(16, 48))
