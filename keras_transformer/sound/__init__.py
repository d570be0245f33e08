"""Sound as numbers, for training and for the runtime. Imports NumPy only; files need extra `audio`.

From the bottom up:

- `mel`: the frames and mel bands of Whisper's features;
- `samples`: files, bytes and arrays as samples; `voice_activity`: their parts with speech;
- `features`: windows of log-mel features, or of samples.

A new kind of features is a module beside `features`.
"""
