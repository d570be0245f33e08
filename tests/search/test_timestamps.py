"""Timestamp rules on random prefixes, against the processors of `transformers`."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.search.constraints import Past
from keras_transformer.search.timestamps import TimestampRules

V, FIRST, NO_TIMES = 97, 61, 60
RULES = TimestampRules(
    FIRST, NO_TIMES, suppressed=(7, 11), suppressed_first=(13, 3), latest_start=5
)
START = [2, 41, 43]


def beginnings():
    """Yields random prefixes of 0 to 8 tokens that follow the rules."""
    random = np.random.default_rng(3)
    for count in range(9):
        for _ in range(11):
            ids, now = [], FIRST
            while len(ids) < count:
                now += random.integers(0, 3)
                words = random.integers(14, 40, random.integers(1, 4)).tolist()
                later = now + int(random.integers(0, 3))
                ids += [int(now), *words, later]
                now = later
            yield ids[:count]


def in_transformers(logits, ids):
    """Returns the logits (V,) after the rules of `transformers`."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    logits_process = transformers.generation.logits_process
    # Their end token is the first id after the text; ours is 3. So theirs = ours with 3 moved.
    order = [*range(3), *range(4, NO_TIMES), 3, *range(NO_TIMES, V)]
    theirs = {ours: place for place, ours in enumerate(order)}
    config = transformers.GenerationConfig(
        eos_token_id=theirs[3], bos_token_id=theirs[3], no_timestamps_token_id=theirs[NO_TIMES]
    )
    config.max_initial_timestamp_index = RULES.latest_start
    begin = len(START)
    full = torch.tensor([[theirs[id] for id in START + ids]])
    scores = torch.tensor(logits[order])[None]
    for rule in (
        logits_process.SuppressTokensLogitsProcessor([theirs[7], theirs[11]]),
        logits_process.SuppressTokensAtBeginLogitsProcessor([theirs[13], theirs[3]], begin),
        logits_process.WhisperTimeStampLogitsProcessor(config, begin_index=begin),
    ):
        scores = rule(full, scores)
    found = np.empty(V, "float32")
    found[order] = scores[0].numpy()
    return found


def step(logits, ids, start=START):
    known = RULES.read({"start_ids": tf.constant([start])}, {})
    history = np.array([[(start + ids)[1:]]], "int32")
    count = tf.constant(len(ids) + 1)
    past = Past(history[:, :, -1], tf.constant(history), count, 9 - count)
    return RULES.step(tf.constant(logits[None, None]), past, (), known)[0].numpy()[0, 0]


def test_rules_equal_other_code():
    random, kinds = np.random.default_rng(5), set()
    for ids in beginnings():
        logits = random.normal(size=V).astype("float32") * 3
        found = step(logits, ids)
        np.testing.assert_array_equal(found, in_transformers(logits, ids), err_msg=str(ids))
        kinds.add((np.isinf(found[14:40]).all(), np.isinf(found[FIRST:]).all()))
    assert len(kinds) == 3  # only times, only text, both


def test_text_without_times_keeps_suppressed_tokens_out():
    logits = np.zeros(V, "float32")
    found = step(logits, [17], [*START, NO_TIMES])
    assert set(np.flatnonzero(np.isinf(found))) == {7, 11, NO_TIMES}
    assert set(np.flatnonzero(np.isinf(step(logits, [], [*START, NO_TIMES])))) == {
        *(3, 7, 11, 13),
        NO_TIMES,
    }


def test_times_of_the_prompt_do_not_count():
    logits = np.zeros(V, "float32")
    assert (step(logits, [], [2, FIRST + 23, 41]) == step(logits, [])).all()
