"""Data sets of the examples: public ones are read from files, made ones need no files.

One file for each family of sets, and for each format (`idx`, `trees`, `sound`). `text_sets` reads
parallel text, `known_corpora` fetches it, `number_words` makes it.
"""
