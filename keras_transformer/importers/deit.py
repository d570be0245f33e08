"""DeiT in Hugging Face's layout: a Vision Transformer with a second token, of distillation.

Its distilled classifier is the mean of two, one for each token. `vit` explains the form.
"""

from keras_transformer.importers.tables import HeadReader, Loader, ModelLoader
from keras_transformer.importers.vit import Vision

__all__ = ["load", "load_model", "load_task", "read_head"]

FAMILY = Vision(
    "deit",
    tokens={
        "embeddings.cls_token": "class_token",
        "embeddings.distillation_token": "distillation_token",
    },
    heads={
        "ImageClassification": {"classifier": 0},
        "ImageClassificationWithTeacher": {"cls_classifier": 0, "distillation_classifier": 1},
    },
)
ORIGIN = FAMILY.origin
load_model: ModelLoader = ORIGIN.load_model
load: Loader = ORIGIN.load
load_task: Loader = FAMILY.load_task
read_head: HeadReader = FAMILY.read_head
