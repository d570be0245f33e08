"""Model sizes with their training settings."""

import keras

from keras_transformer.training.schedules import InverseSquareRootWarmup

# "numbers" is for number words, "tiny" for Multi30k and corpora of its size, "student" for the
# translations of a larger model; "base" and "big" are the paper's (sections 5.3, 5.4, 6.1,
# Table 3).
#
# model: arguments of the model.
# rate: arguments of `learning_rate`.
# tokens_per_batch: of each side. vocab_size: of the tokenizer.
# epochs: for a corpus that suits the size.
# average: usual number of checkpoints in an average.
# fmt: off
RECIPES = {
    "numbers": dict(
        model=dict(num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.1),
        rate=dict(peak=0.005, warmup_steps=150, anneal=True),
        tokens_per_batch=4096, vocab_size=500, epochs=6, average=2),
    "tiny": dict(
        model=dict(num_layers=4, d_model=128, num_heads=4, d_ff=256, dropout=0.3),
        rate=dict(peak=0.0025, warmup_steps=1500, anneal=True),
        tokens_per_batch=4096, vocab_size=5000, epochs=85, average=10),
    "student": dict(
        model=dict(num_layers=(6, 2), d_model=128, num_heads=4, d_ff=512, dropout=0.1),
        rate=dict(peak=0.0025, warmup_steps=500, anneal=True),
        tokens_per_batch=4096, vocab_size=5000, epochs=20, average=3),
    "base": dict(
        model=dict(num_layers=6, d_model=512, num_heads=8, d_ff=2048, dropout=0.1),
        rate=dict(d_model=512, warmup_steps=4000),
        tokens_per_batch=25000, vocab_size=32000, epochs=20, average=5),
    "big": dict(
        model=dict(num_layers=6, d_model=1024, num_heads=16, d_ff=4096, dropout=0.3),
        rate=dict(d_model=1024, warmup_steps=4000),
        tokens_per_batch=25000, vocab_size=32000, epochs=20, average=20),
}
# fmt: on


def learning_rate(*, updates, anneal=False, **rate):
    """Returns the paper's schedule, or a cosine decay to zero.

    Args:
        updates: int, number of updates of the whole run.
        anneal: bool, whether to decay to zero at the last update. Defaults to `False`.
        **rate: arguments of `InverseSquareRootWarmup`; "peak" and "warmup_steps" with `anneal`.

    Returns:
        A `keras.optimizers.schedules.LearningRateSchedule`.

    Example:

    >>> schedule = learning_rate(updates=9000, **RECIPES["tiny"]["rate"])
    >>> round(float(schedule(1500)), 4), round(float(schedule(9000)), 4)
    (0.0025, 0.0)
    """
    if not anneal:
        return InverseSquareRootWarmup(**rate)
    return keras.optimizers.schedules.CosineDecay(
        0.0,
        decay_steps=max(1, updates - rate["warmup_steps"]),
        warmup_target=rate["peak"],
        warmup_steps=rate["warmup_steps"],
    )
