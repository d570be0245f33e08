"""How Sphinx makes the documentation: `sphinx-build -W --keep-going docs site`."""

import importlib.metadata
import inspect
import os
import pathlib
import re

# Before Keras is imported, by autodoc and by the gallery.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jupytext
from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

project = "keras-transformer-onnx"
release = version = importlib.metadata.version(project)
html_title = f"{project} {release}"
html_show_copyright = False
html_theme = "furo"
repository = "https://github.com/keras-transformer-onnx/keras-transformer-onnx"
html_theme_options = {  # links to the source of each page, and below it to the repository
    "source_repository": repository,
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [{"name": "Repository", "url": repository, "html": "GitHub", "class": ""}],
}
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_js_files = ["accessible.js"]
html_show_sourcelink = False
html_baseurl = "https://keras-transformer-onnx.readthedocs.io/en/latest/"
sitemap_url_scheme = "{link}"  # without language and version, which the base has

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",  # cards and grids
    "sphinx_llms_txt",  # llms.txt, the pages as one text for language models
    "sphinx_sitemap",
    "sphinx_gallery.gen_gallery",
]
suppress_warnings = ["config.cache"]  # our scraper is a function, so the configuration is read anew
exclude_patterns = ["gallery"]  # what sphinx-gallery makes of it is in auto_gallery

# Markdown
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3  # [text](page.md#heading)

# Docstrings: Keras' sections, single backticks for code and for names of this package.
default_role = "py:obj"
autodoc_inherit_docstrings = False  # Keras' own methods are explained by Keras
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Call arguments", "params_style")]
napoleon_use_ivar = True
napoleon_use_rtype = False
add_module_names = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def figures(block, block_vars, gallery_conf):
    """A scraper for `Figure` objects made without pyplot, as `keras_transformer.plots` does."""
    paths, seen = [], gallery_conf.setdefault("seen_figures", [])
    for value in block_vars["example_globals"].values():
        if isinstance(value, Figure) and not any(value is figure for figure in seen):
            seen.append(value)
            path = next(block_vars["image_path_iterator"])
            value.savefig(path, dpi=120)
            paths.append(path)
    return figure_rst(paths, gallery_conf["src_dir"])


sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "image_scrapers": (figures,),
    "capture_repr": (),  # what a script prints, not what its last line returns
    "reset_modules": (),  # no state is shared: figures are made without pyplot
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1,
}


def notebooks(app):
    """Writes `notebooks/NAME.ipynb` for each guide NAME that links its notebook."""
    folder = pathlib.Path(app.srcdir, "notebooks")
    folder.mkdir(exist_ok=True)
    for page in pathlib.Path(app.srcdir, "guides").glob("*.md"):
        text = page.read_text("utf-8")
        link = f"[Notebook](../notebooks/{page.stem}.ipynb)"
        if link in text:
            absolute = rf"]({html_baseurl}guides/\1.html"
            text = re.sub(r"\]\((?!http)([\w./]+)\.md", absolute, text.replace(link, ""))
            jupytext.write(jupytext.reads(text, "md"), folder / f"{page.stem}.ipynb")


def full_signature(app, what, name, obj, options, signature, return_annotation):
    """The constructor's own signature: Keras hides it behind a `__new__` that takes anything."""
    if what != "class" or not inspect.isfunction(obj.__init__):
        return None
    parameters = [*inspect.signature(obj.__init__).parameters.values()][1:]  # without `self`
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(plain)), None


def markdown(app, what, name, obj, options, lines):
    """Markdown tables and lists, which reStructuredText does not know, as its own."""
    found = []
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        if not re.match(r"\s*\|.*\|\s*$", line):
            before = found[-1] if found else ""
            if re.match(r"\s*- ", line) and before.strip() and not re.match(r"\s*- |  ", before):
                found.append("")
            found.append(line)
        elif not re.match(r"[\s|:-]+$", line):  # else the line under a table's head
            if not (found and found[-1].startswith(f"{indent}     ")):
                found += ["", f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""]
            for index, cell in enumerate(line.strip().strip("|").split(" | ")):
                found.append(f"{indent}   {'  ' if index else '* '}- {cell.strip()}")
    lines[:] = found


def setup(app):
    app.connect("builder-inited", notebooks)
    app.connect("autodoc-process-signature", full_signature)
    app.connect("autodoc-process-docstring", markdown)
