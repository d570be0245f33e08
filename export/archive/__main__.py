"""`python -m keras_transformer.export.archive ARTEFACT INPUT ... FOLDER`."""

import sys

from keras_transformer.export.archive.shell import main

if __name__ == "__main__":
    sys.exit(main())
