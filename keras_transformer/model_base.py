"""What the three models share: arguments, configuration, and checks of what they read."""

import keras

from keras_transformer.layers.checks import check_id_inputs, check_known
from keras_transformer.layers.positions import LearnedPositionEncoding, position_encoding
from keras_transformer.training.distribution import DistributedModel


class ModelBase(DistributedModel):
    """A functional model. Each kind says in `_connect` how stacks lead from inputs to outputs."""

    own = ("tie_output", "output_bias")  # arguments that only some of the models have

    def __init__(
        self, vocab_size, num_layers=6, d_model=512, num_heads=8, d_ff=2048, dropout=0.1, *,
        key_dim=None, value_dim=None, attention_dropout=0.0, activation="relu", norm_first=False,
        positions="sinusoidal", use_bias=False, epsilon=1e-5, embedding_norm=False,
        tie_output=True, output_bias=False, **kwargs,
    ):  # fmt: skip
        max_length = kwargs.pop("max_length", None)
        if positions == "learned" and max_length is not None:  # the earlier spelling
            positions = LearnedPositionEncoding(max_length)
        self.vocab_size, self.num_layers, self.d_model = vocab_size, num_layers, d_model
        self.num_heads, self.d_ff, self.dropout = num_heads, d_ff, dropout
        self.key_dim, self.value_dim, self.attention_dropout = key_dim, value_dim, attention_dropout
        self.activation, self.norm_first, self.use_bias = activation, norm_first, use_bias
        self.epsilon, self.embedding_norm = epsilon, embedding_norm
        self.tie_output, self.output_bias = tie_output, output_bias
        self.positions = keras.saving.serialize_keras_object(positions)
        self.layers_dtype = keras.dtype_policies.get(kwargs.pop("dtype", None))
        self.max_length = position_encoding(positions).max_length
        check_known(self, kwargs, "name", "trainable")  # Keras passes over what it does not know
        inputs, outputs, stacks = self._connect()
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.encoder, self.decoder = stacks

    def call(self, inputs, training=None, mask=None):
        check_id_inputs(self, inputs)
        return super().call(inputs, training=training, mask=mask)

    def get_config(self):
        names = ("vocab_size", "num_layers", "d_model", "num_heads", "d_ff", "dropout", "key_dim")
        names += ("value_dim", "attention_dropout", "norm_first", "use_bias", "epsilon", "name")
        return {
            **{name: getattr(self, name) for name in (*names, "embedding_norm", *self.own)},
            "activation": keras.activations.serialize(keras.activations.get(self.activation)),
            "positions": self.positions,
            "dtype": keras.dtype_policies.serialize(self.layers_dtype),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if config.get("encoder") is not None:
            encoder = keras.saving.deserialize_keras_object(config["encoder"], custom_objects)
            config = {**config, "encoder": encoder}
        return cls(**config)
