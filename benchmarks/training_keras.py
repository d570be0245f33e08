"""Engines on Keras: ours, KerasHub's blocks, and a plain loop over our model.

Shapes: B batch, T target length.
"""

import contextlib
import time

import devices
import keras
import numpy as np
from training_engines import DROPOUT, RATE, SMOOTHING, random_batch

import keras_transformer as kt

# Engine -> number of devices of the strategy under which it trains our model.
REPLICAS = {"one replica": 1, "two replicas": 2}


def engine(task):
    """Returns the number of parameters, and a function that trains for a round."""
    with scope(task):
        return made_engine(task)


def scope(task):
    """Returns the scope of a `MirroredStrategy` for engines in `REPLICAS`; else an empty one."""
    if task["engine"] not in REPLICAS:
        return contextlib.nullcontext()
    import tensorflow as tf
    from gpu_replicas import two_devices

    names, reduction = [f"{task['device'].upper()}:0"], None
    if task["engine"] == "two replicas":
        names, reduction = two_devices(tf, task["device"])
    return tf.distribute.MirroredStrategy(names, cross_device_ops=reduction).scope()


def made_engine(task):
    """Makes and compiles the model of an engine; see `engine`."""
    keras.utils.set_random_seed(task["seed"])
    if task["engine"] == "keras_hub":
        model = keras_hub_model(task)
    else:
        attention_dropout = DROPOUT if task["engine"] == "ours_attention_dropout" else 0.0
        model = kt.Transformer(
            task["vocabulary"],
            **task["size"],
            dropout=DROPOUT,
            attention_dropout=attention_dropout,
            use_bias=True,  # like the others
            dtype=devices.dtype_policy(
                "bfloat16" if task["engine"] == "ours_bfloat16" else task["precision"]
            ),
        )
    if task["engine"] == "ours_recomputed":
        kt.recompute(model)
    if task["engine"] == "gradient_tape":
        return model.count_params(), plain_loop(model, task)
    # XLA halves the speed of TensorFlow on CPUs; JAX always uses it.
    xla = task["device"] == "gpu" and keras.backend.backend() == "tensorflow"
    xla = xla and task["engine"] not in REPLICAS  # XLA compiles for one device
    compiled = keras.backend.backend() == "jax" or xla
    model.compile(
        keras.optimizers.Adam(RATE, 0.9, 0.98, 1e-9),
        loss=kt.SequenceCrossentropy(label_smoothing=SMOOTHING),
        jit_compile=compiled,
    )
    source, target, labels = random_batch(task, task["steps"])
    x, clock = {"source_ids": source, "target_ids": target}, []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: clock.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: clock.append(time.perf_counter()),
    )

    def train():
        # The logs are numbers at the end of an epoch: every step is done by then.
        clock.clear()
        model.fit(x, labels, task["batch"], epochs=1, shuffle=False, verbose=0, callbacks=[note])
        return clock[1] - clock[0]

    return model.count_params(), train


def plain_loop(model, task):
    """Returns a training loop without `fit` and without our loss.

    Labels are smoothed one-hot vectors (B, T, V), and the loss is their product with a log-softmax.
    """
    import tensorflow as tf

    optimizer = keras.optimizers.Adam(RATE, 0.9, 0.98, 1e-9)
    optimizer.build(model.trainable_variables)
    batches = tf.data.Dataset.from_tensor_slices(tuple(random_batch(task, task["steps"])))
    batches = batches.batch(task["batch"]).prefetch(2)

    @tf.function
    def step(source, target, labels):
        vocabulary = task["vocabulary"]
        with tf.GradientTape() as tape:
            logits = model({"source_ids": source, "target_ids": target}, training=True)
            smoothed = tf.one_hot(labels, vocabulary) * (1 - SMOOTHING) + SMOOTHING / vocabulary
            losses = -tf.reduce_sum(smoothed * tf.nn.log_softmax(logits), axis=-1)  # (B, T)
            real = tf.cast(labels != 0, tf.float32)
            loss = tf.reduce_sum(losses * real) / tf.reduce_sum(real)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    def train():
        start = time.perf_counter()
        for batch in batches:
            loss = step(*batch)
        float(loss)  # waits
        return time.perf_counter() - start

    return train


def keras_hub_model(task):
    """Builds a model of KerasHub's blocks and our embeddings, so that only the blocks differ.

    Positions, masks, logits and the number of parameters are the same as ours.
    """
    import keras_hub

    size, dtype = task["size"], devices.dtype_policy(task["precision"])
    block = dict(intermediate_dim=size["d_ff"], num_heads=size["num_heads"], dropout=DROPOUT)
    block["dtype"] = dtype
    ids = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("source_ids", "target_ids")
    }
    embedding = kt.TokenEmbedding(task["vocabulary"], size["d_model"], dtype=dtype)

    def embed(ids):
        x = kt.SinusoidalPositionEncoding(dtype=dtype)(embedding(ids))
        return keras.layers.Dropout(DROPOUT, dtype=dtype)(x), kt.padding_mask(ids)

    memory, source_mask = embed(ids["source_ids"])
    for _ in range(size["num_layers"]):
        memory = keras_hub.layers.TransformerEncoder(**block)(memory, padding_mask=source_mask)
    x, target_mask = embed(ids["target_ids"])
    for _ in range(size["num_layers"]):
        x = keras_hub.layers.TransformerDecoder(**block)(
            x, memory, decoder_padding_mask=target_mask, encoder_padding_mask=source_mask
        )
    return keras.Model(ids, embedding.logits(x))


def product(size, task):
    """Returns a function that multiplies a square matrix with itself `count` times in sequence."""
    # Variance 1 / size: products of products keep their size.
    matrix = np.random.default_rng(0).normal(size=(size, size)) / size**0.5
    low = task["precision"] in ("bfloat16", "float16")
    matrix = keras.ops.convert_to_tensor(matrix.astype("float32"))
    matrix = keras.ops.cast(matrix, task["precision"] if low else "float32")

    def multiply(count):
        x = matrix
        for _ in range(count):
            x = keras.ops.matmul(x, matrix)
        return float(keras.ops.cast(x[0, 0], "float32"))  # waits

    return multiply
