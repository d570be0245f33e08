"""Sound to text, with the extra `service`.

From the bottom up:

- `tokens`: the special tokens and options of Whisper models; `transcripts`: segments and words, and
  the files that are written from them;
- `word_times`: when each word is spoken; `transcription`: a sound as segments of text;
- `transcriber`: `Transcriber`, for pictures and other arrays, too; `command`: its command line.

Samples and their features are in `keras_transformer.sound`. Put a new format of transcripts into
`transcripts.FORMATS`, and a new rule for words or pauses into `word_times`.
"""
