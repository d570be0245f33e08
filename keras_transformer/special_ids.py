"""The ids that mean something by themselves, in every tokenizer, model, search and artefact."""

PAD_ID = 0  # fills short rows; attended to by nobody
UNKNOWN_ID = 1  # what the tokenizer has no id for
BEGIN_ID = 2  # what a target starts with
END_ID = 3  # what a sentence ends with
NUM_SPECIAL = 4  # all of these; every other id is higher
