"""The reader of imports: it finds every import and separates imports that run later."""

import pytest
from helpers.imports import PACKAGE, circle, own, parse, reached, run_by

SOURCES = {
    "import keras_transformer.layers.masks as m": {"layers.masks"},
    "from keras_transformer.layers import masks": {"layers.masks"},
    "from keras_transformer.layers.masks import causal_mask as c": {"layers.masks"},
    "from keras_transformer.search import BeamSearch": {"search"},
    "import keras_transformer as kt": {PACKAGE},
    "from keras_transformer import Tokenizer": {PACKAGE},
    "from keras_transformer import models": {"models"},
    "import keras_transformer_other.layers.masks": set(),
    "class A:\n    import keras_transformer.models": {"models"},
    "try:\n    import keras_transformer.models\nexcept ImportError:\n    pass": {"models"},
    "if __name__ == '__main__':\n    pass\nelse:\n    import keras_transformer.models": {"models"},
}
LATER = (
    "def f():\n    import keras_transformer.models",
    "async def f():\n    import keras_transformer.models",
    "class A:\n    def f(self):\n        import keras_transformer.models",
    "if __name__ == '__main__':\n    import keras_transformer.models",
)


@pytest.mark.parametrize("source", SOURCES)
def test_every_kind_of_import_is_found(source):
    module = parse(source)
    assert own(module.at_import) == own(module.anywhere) == SOURCES[source]


@pytest.mark.parametrize("source", LATER)
def test_imports_that_run_later_are_separate(source):
    module = parse(source)
    assert own(module.at_import) == set() and own(module.anywhere) == {"models"}


def test_imports_for_annotations_are_separate_and_count_as_imports():
    module = parse("if TYPE_CHECKING:\n    from keras_transformer import models")
    assert own(module.anywhere) == set() and own(module.for_types) == {"models"}
    assert run_by("plots", module) == {"models"}


def test_an_import_runs_parent_packages_except_those_of_the_importer():
    module = parse("import keras_transformer.export.graph.shapes")
    assert run_by("plots", module) == {"export.graph.shapes", "export.graph", "export"}
    assert run_by("export.tasks", module) == {"export.graph.shapes", "export.graph"}
    assert run_by("export.graph.fuse", module) == {"export.graph.shapes"}
    assert run_by("export.graph", module) == {"export.graph.shapes"}
    assert {"search", "search.loop"} < reached({"search.beam"})


def test_import_cycles_are_found():
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
    assert circle({"d": {"a"}, "a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    sources = {
        "search": "from keras_transformer.search import beam",
        "search.beam": "def f():\n    from keras_transformer.search import BeamSearch",
    }
    imports = {name: run_by(name, parse(source)) for name, source in sources.items()}
    assert circle(imports) == ["search", "search.beam", "search"]
