"""All of `examples/support`: examples in docstrings, invalid arguments and files, made sets."""

import copy
import doctest
import importlib

import numpy as np
import pytest
from helpers import scripts
from helpers.example_files import articles, digits, fashion, idx, parallel, wav, write
from support import filters, plots
from support.bracket_grammar import BracketGrammar
from support.plots import Panel
from support.scores.anomalies import anomaly_scores, moving_z_score
from support.scores.bleu import bleu
from support.scores.bracket_score import bracket_score
from support.scores.entities import entities, entity_scores
from support.scores.retrieval import recall_at
from support.scores.rouge import rouge
from support.scores.separation import si_sdr
from support.scores.word_errors import word_error_rate
from support.sets import (
    anomalies,
    calendar,
    captioned_scenes,
    chorale_windows,
    chorales,
    clips,
    debian,
    labelled_texts,
    noisy_speech,
    scenes,
    series,
    spoken_digits,
    tagged_sentences,
    text_sets,
    treebank,
)
from support.sets.idx import read_idx
from support.sets.known_corpora import fetch_corpus
from support.sets.labelled_series import made_gestures
from support.sets.linear_forecast import LinearForecast
from support.sets.number_words import number_words
from support.sets.pictures import fashion_mnist, made_pictures
from support.sets.recall import recall_rows
from support.sets.sound import log_bands, read_wav, sound_of
from support.sets.trees import from_brackets, read_trees
from support.word_numbers import WordNumbers

import keras_transformer as kt

SUPPORT = scripts.EXAMPLES / "support"
DRAW = np.random.default_rng(0)
CHORALE = np.tile(np.array([[72, 67, 64, 48]], np.int32), (24, 1))
VOICES = noisy_speech.made_voices(speakers=3)
ALONE = [one for one in VOICES.train if one.speaker == "voice 0"]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
TREE, SHORT = read_trees("(S (NP (NN a)) (VB b))\n(S (NN a))")
ROWS, FRAMES = np.zeros((2, 3, 4, 4)), np.ones((17, 5))
PAST, TRUTH = np.zeros((5, 2)), np.zeros((3, 2))
ANIMALS, SERIES, NAMES = ["cat", "dog", "bird"], ["load", "oil"], ["mean", "head 1", "head 2"]
MAPS, ONES = np.ones((2, 3, 7, 5)), np.ones((2, 28, 28))
PANEL_NAMES = dict.fromkeys("abcdefghi", [1])
PLACES = [np.zeros((3, 2)), np.zeros((2, 2))]


@pytest.mark.full("noisy_speech", "units", "number_words")
@pytest.mark.parametrize("path", sorted(SUPPORT.rglob("*.py")), ids=lambda path: path.stem)
def test_examples_in_docstrings_hold(path):
    name = ".".join(path.relative_to(SUPPORT.parent).with_suffix("").parts)
    given = {"kt": kt, "read_trees": read_trees}
    module, flags = importlib.import_module(name), doctest.ELLIPSIS
    assert doctest.testmod(module, extraglobs=given, optionflags=flags).failed == 0


def first_window(*arguments):
    return next(chorale_windows.training_windows(*arguments))


@pytest.mark.parametrize(
    "function, arguments, message",
    [
        # Sets
        (anomalies.made_anomalies, (10,), "at least 1000, got 10"),
        (calendar.calendar_questions, (0,), "at least 1, got 0"),
        (chorales.to_ids, (CHORALE + 20,), "pitches must be from 36 to 81"),
        (first_window, ([CHORALE], 64, 1, 0), "a chorale has only 24"),
        (fetch_corpus, ("wmt", "."), r"unknown corpus 'wmt'; known are \['multi30k'"),
        (filters.spectra, (np.zeros((3, 100)),), r"multiple of 256.*\(3, 100\)"),
        (from_brackets, ("(S XX )", [("a", "DT"), ("b", "NN")]), "1 words .*, but there are 2"),
        (LinearForecast, (np.zeros((4, 6, 3)), np.zeros((4, 2, 2))), r"\(N, S, F\) and \(N, T, F"),
        (LinearForecast, (np.zeros((4, 6, 3)), np.zeros((5, 2, 3))), r"\(N, S, F\) and \(N, T, F"),
        (LinearForecast, (np.zeros((4, 6, 3)), np.zeros((4, 2))), r"\(N, S, F\) and \(N, T, F"),
        (log_bands, (np.zeros((2, 300)), 24), "samples must have one axis"),
        (log_bands, (np.zeros(300), 129), "samples must have one axis"),
        (made_pictures, (5,), "at least 6"),
        (noisy_speech.mixtures, (DRAW, [], VOICES.test, ["pink"], 2), "babble of another speaker"),
        (noisy_speech.mixtures, (DRAW, ALONE, ALONE, ["babble"], 2), "babble of another speaker"),
        (
            noisy_speech.mixtures,
            (DRAW, VOICES.train, VOICES.test, ["thunder", "pink"], 2),
            r"unknown kinds \['thunder'\]",
        ),
        (noisy_speech.split_voices, (VOICES, "Eva"), "one of voice 0, voice 1.*; got Eva"),
        (number_words, ("en", "tlh"), r"num2words has \[.*'de'.*\], got en and tlh"),
        (number_words, ("en", "de", 1999), r"count must lie in \[2000, 1000000\], got 1999"),
        (number_words, ("en", "de", 1_000_001), "got 1000001"),
        (recall_rows, (DRAW, 2, 9, [1, -1]), r"must be in \[0, 9\)"),
        (recall_rows, (DRAW, 2, 9, [1, 9]), r"must be in \[0, 9\)"),
        (series.split, (np.ones((20, 3)), (10, 6, 5), "abc"), "21 rows .*, but there are 20"),
        (series.windows, (np.ones((11, 2)), 9, 3), "hold no window"),
        (series.windows, (np.ones((11, 2)), 0, 3), "hold no window"),
        (series.windows, (np.ones((11, 2)), 3, 0), "hold no window"),
        (sound_of, (np.zeros((9, 24)),), r"frames must be \(S, 128\)"),
        (sound_of, (np.zeros((0, 128)),), r"frames must be \(S, 128\)"),
        (sound_of, (np.zeros(128),), r"frames must be \(S, 128\)"),
        (spoken_digits.joined, (ALONE, 3, 0, 3), "1 <= shortest <= longest"),
        (spoken_digits.joined, (ALONE, 3, 4, 3), "1 <= shortest <= longest"),
        (spoken_digits.joined, ([], 3, 1, 2), "must be recordings"),
        (WordNumbers, ([], 3), "empty"),
        (WordNumbers, ([True], 0), "at least 1"),
        # Trees and grammars
        (read_trees, ("(S (NP a) b)",), "one word, or brackets"),
        (read_trees, ("(S a b)",), "one word, or brackets"),
        (read_trees, ("(S ())",), "one word, or brackets"),
        (read_trees, ("(S (NP a)",), "1 brackets are not closed, S first"),
        (read_trees, ("(S a) b",), "'b' is outside"),
        (from_brackets, ("(S (NP XX )",), "1 brackets are not closed"),
        (from_brackets, ("(S (NP XX )S XX )NP",), r"\)S closes \(NP"),
        (from_brackets, ("(S XX ) )",), "is outside all brackets"),
        (from_brackets, ("(S (NP ) XX )",), "must hold one word"),
        (from_brackets, ("(S XX ) (S XX )",), "2 trees are in this line"),
        (from_brackets, ("XX (S XX )",), "2 trees are in this line"),
        (from_brackets, ("",), "0 trees are in this line"),
        (BracketGrammar, (SPECIAL,), "Pass `pieces` of the target"),
        (BracketGrammar, ([*SPECIAL, "(S", "XX"],), "Pass `pieces` of the target"),  # no end
        (BracketGrammar, ([*SPECIAL, "(S", ")S"],), "Pass `pieces` of the target"),  # no words
        (BracketGrammar, ([*SPECIAL, "(S", ")", "XX"], None, 0), "Pass `pieces` of the target"),
        (BracketGrammar, ([*SPECIAL, "(S", ")", "XX"], None, 9, 3), "max_length .* 4, .* but 3"),
        # Scores
        (anomaly_scores, ([1, 2], [True]), "a finite score and a label"),
        (anomaly_scores, ([1, np.nan], [True, False]), "a finite score and a label"),
        (anomaly_scores, ([1, 2], [False, False]), "0 of 2 steps"),
        (moving_z_score, (PAST, 1), "at least 2, got 1"),
        (bleu, ([], []), "one reference for each"),
        (bleu, (["a"], ["a", "b"]), "one reference for each"),
        (bracket_score, ([TREE], [SHORT]), "sentence 0 has 2 words, but its tree has 1"),
        (bracket_score, ([TREE], []), "1 sentences and 0 trees"),
        (entities, (["O", "B"],), "tag 1 is .*; expected O, B-TYPE or I-TYPE"),
        (entities, (["O", "B-"],), "tag 1 is"),
        (entities, (["O", "X-a"],), "tag 1 is"),
        (entities, (["O", "a"],), "tag 1 is"),
        (entities, (["O", "-a"],), "tag 1 is"),
        (entity_scores, ([["O"]], [["O", "O"]]), "number of sentences or words"),
        (recall_at, (np.ones((2, 3)),), r"\(N, N\), but it is \(2, 3\)"),
        (recall_at, (np.ones((0, 0)),), r"\(N, N\)"),
        (recall_at, (np.full((2, 2), np.nan),), "NaN or infinite"),
        (recall_at, (np.ones((2, 2)), 0), "at least 1, but it is 0"),
        (rouge, ([], []), "one reference for each"),
        (rouge, (["a"], ["a", "b"]), "one reference for each"),
        (si_sdr, (np.ones((2, 9)), np.ones((2, 7))), "must be"),
        (word_error_rate, (["a"], []), "1 texts, but 0 references"),
        (word_error_rate, (["a"], [" "]), "references have no words"),
        # Plots
        (plots.plot_anomalies, (PAST, [True] * 4, {"a": range(5)}), "equally long.*5, 4, 5"),
        (plots.plot_boxes, (ONES, [[]], np.zeros((2, 5, 5)), "abcde"), "the same number of lists"),
        (plots.plot_confusion, ([0, 3], [0, 1], ANIMALS), "is not one of the 3 labels"),
        (plots.plot_confusion, (["cat", "cow"], [0, 1], ANIMALS), "is not one of the 3 labels"),
        (plots.plot_confusion, ([0, -1], [0, 1], ANIMALS), "is not one of the 3 labels"),
        (plots.plot_confusion, ([0], [0, 1], ANIMALS), "one class per example"),
        (plots.plot_confusion, ([], [], ANIMALS), "one class per example"),
        (plots.plot_forecast, (PAST[:, :1], TRUTH, {}, SERIES), "a column for each of"),
        (plots.plot_forecast, (PAST, TRUTH[:, 0], {}, SERIES), "a column for each of"),
        (
            plots.plot_forecast,
            (PAST, TRUTH, {"a": TRUTH[1:]}, SERIES),
            r"at most 4 arrays .* \(3, 2\)",
        ),
        (
            plots.plot_forecast,
            (PAST, TRUTH, dict.fromkeys("abcde", TRUTH), SERIES),
            "at most 4 arrays",
        ),
        (plots.plot_matrix, (np.eye(3), ["a", "b"], ANIMALS, ""), r"\(2, 3\), by the .* \(3, 3\)"),
        (
            plots.plot_matrices,
            ([(np.ones((1, 1)), ["d"])], ["x", "y"], ""),
            r"\(2, 1\), .* \(1, 1\)",
        ),
        (plots.plot_outcomes, ({},), "outcomes must have a type"),
        (plots.plot_outcomes, ({"a": {"lost": 1}},), "outcomes must have a type"),
        (plots.plot_panels, ([],), "There must be a panel"),
        (plots.plot_panels, ([Panel("t", "x", "y", [1], {})],), "lines in each"),
        (
            plots.plot_panels,
            ([Panel("t", "x", "y", [1, 2], {"a": [3]})],),
            "'a' has 1 numbers y for 2",
        ),
        (plots.plot_panels, ([Panel("t", "x", "y", [1], PANEL_NAMES)],), "9 names"),
        (plots.plot_piano_rolls, ([CHORALE], []), "a title for each"),
        (plots.plot_picture_attention, (ONES[:, 0], MAPS, SERIES, NAMES), "pictures must be"),
        (plots.plot_picture_attention, (ONES, MAPS[0], SERIES, NAMES), "pictures must be"),
        (plots.plot_picture_attention, (ONES[:1], MAPS, SERIES, NAMES), "the numbers do not fit"),
        (
            plots.plot_picture_attention,
            (ONES, MAPS[:, 1:], SERIES, NAMES),
            "the numbers do not fit",
        ),
        (plots.plot_picture_rows, (ROWS, ["a"], ()), "names of columns"),
        (plots.plot_picture_rows, (ROWS, ["a", "b"], ["x"]), "names of columns"),
        (plots.plot_roads, (PLACES, [np.ones(3)], ["right", "slower"]), "positions"),
        (
            plots.plot_series_attention,
            (PLACES, [[1], [1, 1]], ["a", "b"]),
            "a weight for each step",
        ),
        (plots.plot_series_attention, (PLACES, [[1] * 3, [1] * 2], []), "a weight for each step"),
        (plots.plot_sounds, ({}, 0.5, 4000), "at least one sound"),
        (plots.plot_spectrogram, (FRAMES[0], 0.5, 4000, None, ["a", "b"]), "there are 2 tokens"),
        (
            plots.plot_spectrogram,
            (FRAMES, 0.5, 4000, np.ones((3, 7)), ["a", "b"]),
            "there are 2 tokens",
        ),
        (plots.plot_spectrogram, (FRAMES, 0.5, 4000, np.ones(2), ["a", "b"]), "there are 2 tokens"),
        (plots.plot_trees, ([SHORT], []), "a title for each"),
        (plots.plot_trees, ([SHORT], ["a", "b"]), "a title for each"),
        (plots.plot_trees, ([], []), "one or more trees"),
        (plots.plot_words, ([], [], []), "a weight for each token"),
        (plots.plot_words, ([["a"]], [[1, 2]], ["x"]), "a weight for each token"),
        (plots.plot_words, ([["a"]], [[1]], []), "a weight for each token"),
        (plots.plot_words, ([["a"]], [], ["x"]), "a weight for each token"),
    ],
)
def test_invalid_arguments_are_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def trec(line):
    return {"TREC.train.all": f"1 a ?\n{line}\n", "TREC.test.all": "1 b ?\n"}


def snips(line):
    return {f"snips.{part}.gz": f"a:O <=> b\n{line}\n" for part in ("train", "valid", "test")}


WHOLE = idx(np.zeros((2, 3), "u1"))
TEXT = parallel("train", "a")


def read_snips(folder):
    return tagged_sentences.read_requests(folder, "snips")


def read_wikiann(folder):
    return tagged_sentences.read_entities(folder, ["en"])


WIKIANN = {
    f"wikiann.en.{part}.gz": "en:Anna\tB-PER\nen:in O\n" for part in ("train", "dev", "test")
}
DIGIT = "must be called DIGIT_SPEAKER_NUMBER"
TREC = r"TREC\.train\.all, line 2: expected a text and a class"
SNIPS = r"snips\.train\.gz, line 2: expected 'WORD:TAG"


@pytest.mark.parametrize(
    "read, files, message",
    [
        (read_idx, {"a": b""}, "is not in the IDX format"),
        (read_idx, {"a": b"RIFF...."}, "is not in the IDX format"),
        (read_idx, {"a": b"\0\0\x07\1\0\0\0\0"}, "is not in the IDX format"),
        (read_idx, {"a": WHOLE[:7]}, "is not whole"),
        (read_idx, {"a": WHOLE[:13]}, "is not whole"),
        (series.read_table, {"a": ""}, "has no table"),
        (series.read_table, {"a": "date\n1\n"}, "has no table"),
        (series.read_table, {"a": "date,a\n1,2\n1,2,3\n"}, "line 3: 3 columns, but 2 names"),
        (series.read_table, {"a": "date,a\n1,two\n"}, "could not convert"),
        (series.read_table, {"a": "date,a\n1,nan\n"}, "not finite"),
        (read_wav, {"a": wav([1, 2], channels=2)}, "one channel and 2 bytes per sample"),
        (read_wav, {"a": wav([1, 2], width=1)}, "one channel and 2 bytes per sample"),
        (read_wav, {"a": b""}, "not a readable WAV file"),
        (read_wav, {"a": b"no sound at all"}, "not a readable WAV file"),
        (treebank.read_treebank, {"a": "(S (NN a))"}, "is not a zip file"),
        (treebank.read_treebank, {"a": articles(1, 2)}, "has 2, 0, 0 trees in wsj_0001-0150"),
        (spoken_digits.spoken_digits, digits({"three_bob_1.wav": wav([1])}), DIGIT),
        (
            spoken_digits.spoken_digits,
            digits({"3_bob.wav": wav([1])}),
            f"recordings/3_bob.wav {DIGIT}",
        ),
        (spoken_digits.spoken_digits, digits({"12_bob_1.wav": wav([1])}), DIGIT),
        (
            spoken_digits.spoken_digits,
            digits({"1_bob_1.wav": b""}),
            r"1_bob_1\.wav: .* readable WAV",
        ),
        (
            spoken_digits.spoken_digits,
            digits({"1_b_1.wav": wav([1], rate=16000)}),
            "16000 samples a se",
        ),
        (
            spoken_digits.spoken_digits,
            digits({"1_bob_1.wav": wav([1])}),
            "train: 0, valid: 0, test: 1",
        ),
        (labelled_texts.read_trec, trec("7 What is it ?"), TREC),
        (labelled_texts.read_trec, trec("What is it ?"), TREC),
        (labelled_texts.read_trec, trec("3"), TREC),
        (labelled_texts.read_trec, trec(""), TREC),
        (read_snips, snips("at:O"), SNIPS),
        (read_snips, snips("at:O <=> "), SNIPS),
        (read_snips, snips("at: <=> wake"), SNIPS),
        (read_snips, snips("at <=>x"), SNIPS),
        (read_wikiann, WIKIANN, r"wikiann\.en\.\w+\.gz, line 2: expected a word, TAB"),
        (
            chorales.read_chorales,
            {chorales.FILE: '{"train": [[[60, 60, 60, 60]]]}'},
            "no set 'valid'",
        ),
        (
            chorales.read_chorales,
            {chorales.FILE: '{"train": [[[60, 60]]], "valid": [], "test": []}'},
            "chorale 0: expected rows of four",
        ),
        (
            chorales.read_chorales,
            {chorales.FILE: '{"train": [[[60], [60, 61]]], "valid": [], "test": []}'},
            "rows of four pitches",
        ),
        (debian.read_synopses, {"none": ""}, r"has no Translation-en.*deb\.debian\.org"),
        (
            debian.read_synopses,
            {"Translation-en": "Description-en: small\n too few words\n"},
            "holds no descriptions",
        ),
        (debian.read_synopses, {"Translation-en.xz": b"\xfd7zXZ\0\0"}, "broken file"),
        (text_sets.read_sets, TEXT, r"no valid or val or dev with both \.en and \.de"),
        (
            text_sets.read_sets,
            TEXT | parallel("dev", "b") | {"test.en": "no counterpart\n"},
            "has no test with both",
        ),
        (text_sets.read_sets, TEXT | parallel("dev"), r"dev\.en and .*dev\.de are empty"),
        (fashion_mnist, fashion("train", 5, size=32), "does not hold Fashion-MNIST"),
    ],
)
def test_malformed_files_are_refused(tmp_path, read, files, message):
    write(tmp_path, files)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "a" if "a" in files else tmp_path)


PIXELS, CLASSES = made_pictures(60).train


@pytest.mark.parametrize(
    "make, arguments",
    [
        (anomalies.made_anomalies, ()),
        (captioned_scenes.split_scenes, (3,)),
        (chorales.made_chorales, (2,)),
        (clips.draw_clips, (np.uint8(255 * PIXELS[:, :20, :20, 0]), CLASSES, 5, DRAW)),
        (labelled_texts.made_opinions, ()),
        (made_gestures, (3,)),
        (made_pictures, (60,)),
        (noisy_speech.mixtures, (DRAW, VOICES.train, VOICES.test, ["rain", "babble"], 5)),
        (scenes.draw_scenes, (scenes.make_items(PIXELS, CLASSES, darkest=0.5), 5, DRAW)),
        (series.made_series, ()),
        (spoken_digits.dialled_digits, ()),
        (spoken_digits.joined, (VOICES.valid, 4, 2, 4)),
        (tagged_sentences.made_entities, ()),
        (tagged_sentences.made_requests, ()),
        (treebank.made_trees, (9,)),
    ],
)
def test_made_sets_are_the_same_in_each_call(make, arguments):
    one, two = (make(*copy.deepcopy(arguments)) for _ in range(2))
    np.testing.assert_equal(one, two)
