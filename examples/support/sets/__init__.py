"""Data sets of the examples: public sets are read from files, synthetic ones need no files.

Each module holds a family of sets or a format (`idx`, `trees`, `sound`). `text_sets` reads
parallel text, `known_corpora` fetches it, `number_words` makes it.
"""
