"""Data: from lines and arrays to batches.

Each public function makes `examples` of one kind, and names the fields of a batch. A `plan` groups
the examples into batches (NumPy), and `batches` passes the batches to `model.fit`. The functions
are in `translation` (sentence pairs), `labelled` (classes, tags), `language_model`, `pairs` (pairs
of texts, answers), `features`, and `speech` (recordings for Whisper).

Put a new kind of example into a file here: its function makes `Examples`, with a field, such as
`Padded`, for each array of a batch. Export the function in
`keras_transformer/__init__.py`.
"""
