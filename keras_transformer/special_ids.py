"""Special token ids, the same in every tokenizer, model, search and artefact."""

PAD_ID = 0  # padding of short rows; masked out in attention
UNKNOWN_ID = 1  # text without a piece in the vocabulary
BEGIN_ID = 2  # first token of a target
END_ID = 3  # last token of a sentence
NUM_SPECIAL = 4  # number of special ids; all other ids are higher
