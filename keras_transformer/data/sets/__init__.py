"""Sets to learn from: public ones, read from their files, and made ones that need no files.

What lives here: one file a family of sets, and the formats that they come in (`idx`, `trees`,
`sound`). Sets of parallel text are a level above, in `corpora`, `text_sets` and `number_words`.

What may be imported: NumPy, and data of this package. A new set is one file here.
"""
