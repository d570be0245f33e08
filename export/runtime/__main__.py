"""`python -m keras_transformer.export.runtime FOLDER < in.txt > out.txt`."""

import sys

from keras_transformer.export.runtime.shell import main

if __name__ == "__main__":
    sys.exit(main())
