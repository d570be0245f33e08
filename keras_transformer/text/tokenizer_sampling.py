"""Draws random segmentations of text, the same ones from the same seed in every process.

SentencePiece can draw too, but it mixes its seed with a number that differs in each process.
"""

import functools
import heapq
import math
import random
import re
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate, chain

import numpy as np
import sentencepiece

from keras_transformer.special_ids import UNKNOWN_ID

# Lattices of short words are cached: a few thousand words make up most of a text.
_WORDS, _SHORT = 8192, 24


class Sampler:
    """Draws segmentations of lines by a SentencePiece model.

    Words are drawn one by one. If a piece of the model can cross the start of a word, a whole line
    counts as one word.

    Args:
        processor: `sentencepiece.SentencePieceProcessor` of the model.

    Raises:
        ValueError: the model is neither a unigram nor a BPE model.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor) -> None:
        from sentencepiece import sentencepiece_model_pb2  # needs protobuf: for training only

        model = sentencepiece_model_pb2.ModelProto.FromString(processor.serialized_model_proto())
        spec, kinds = model.trainer_spec, sentencepiece_model_pb2.ModelProto.SentencePiece
        if spec.model_type not in (spec.UNIGRAM, spec.BPE):
            raise ValueError(
                "this tokenizer has one segmentation for each text: its model_type is neither "
                '"unigram" nor "bpe". Leave out `sample` or `sampling_alpha`.'
            )
        self._normalize = processor.normalize
        self._draw = self._segmented if spec.model_type == spec.UNIGRAM else self._merged
        ids = {p.piece: (i,) for i, p in enumerate(model.pieces)}
        normal = {p.piece: p.score for p in model.pieces if p.type == kinds.NORMAL}
        whole = [p.piece for p in model.pieces if p.type == kinds.USER_DEFINED]
        # The bonus and the penalty are SentencePiece's.
        self._scores = normal | {piece: 0.1 * (len(piece) - 1) for piece in whole}
        self._unknown_score = min(normal.values(), default=0.0) - 10.0
        # Merges may pass through unused pieces.
        unused = {p.piece: p.score for p in model.pieces if p.type == kinds.UNUSED}
        self._merges = self._scores | unused
        self._ids = {piece: ids[piece] for piece in self._scores}
        self._byte_ids = None
        if spec.byte_fallback:
            self._byte_ids = [ids[f"<0x{byte:02X}>"][0] for byte in range(256)]
        self._longest = max(map(len, self._scores), default=1)
        crosses = any(re.search("[^\u2581]\u2581", piece) for piece in self._merges)
        self._words = re.compile("(?s:.+)" if crosses else "\u2581+[^\u2581]*|[^\u2581]+")
        self._whole = frozenset(whole)
        longest_first = sorted(whole, key=len, reverse=True)
        self._symbols = re.compile("|".join([*map(re.escape, longest_first), "(?s:.)"]))
        self._kept_lattice = functools.lru_cache(_WORDS)(self._lattice)

    def encode(self, lines: list[str], alpha: float, seed: int | None = None) -> list[list[int]]:
        """Returns the ids of one segmentation of each line, for `Tokenizer.encode`."""
        seeds = np.random.default_rng(seed).integers(2**63, size=len(lines)).tolist()
        return [
            self._encode_line(line, alpha, random.Random(number).random)
            for line, number in zip(lines, seeds, strict=True)
        ]

    def _encode_line(self, line: str, alpha: float, uniform: Callable[[], float]) -> list[int]:
        words = self._words.findall(self._normalize(line))
        pieces = chain.from_iterable(self._draw(word, alpha, uniform) for word in words)
        ids = []
        for piece in pieces:
            found = self._ids.get(piece)
            if found is not None:
                ids += found
            elif self._byte_ids is not None:
                ids += [self._byte_ids[byte] for byte in piece.encode()]
            elif ids[-1:] != [UNKNOWN_ID]:  # one for all unknown characters in a row
                ids.append(UNKNOWN_ID)
        return ids

    def _segmented(self, word: str, alpha: float, uniform: Callable[[], float]) -> list[str]:
        """Draws pieces of a unigram model, the last one first, and returns them in order."""
        lattice = (self._kept_lattice if len(word) <= _SHORT else self._lattice)(word, alpha)
        pieces, end = [], len(word)
        while end:
            starts, weights = lattice[end]
            start = starts[bisect(weights, uniform() * weights[-1])]
            pieces.append(word[start:end])
            end = start
        return pieces[::-1]

    def _lattice(self, word: str, alpha: float) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Returns for each end in a word the possible starts of its last piece, and their weights.

        Weights are cumulative. The weight of a start is the sum of P^alpha over all segmentations
        of the text before it, times P^alpha of the last piece.
        """
        totals, lattice = [0.0], [((), ())]  # logarithms of the sums
        for end in range(1, len(word) + 1):
            starts, logs = [], []
            for start in range(max(0, end - self._longest), end):
                score = self._scores.get(word[start:end])
                if score is None and start == end - 1:
                    score = self._unknown_score
                if score is not None:
                    starts.append(start)
                    logs.append(totals[start] + alpha * score)
            largest = max(logs)
            weights = tuple(accumulate(math.exp(value - largest) for value in logs))
            totals.append(largest + math.log(weights[-1]))
            lattice.append((tuple(starts), weights))
        return lattice

    def _merged(self, word: str, alpha: float, uniform: Callable[[], float]) -> list[str]:
        """Draws pieces of a BPE model, which drops each merge with probability `alpha`."""
        symbols = self._symbols.findall(word)
        before = list(range(-1, len(symbols) - 1))
        after = list(range(1, len(symbols) + 1))
        merges, parts = [], {}  # (-score, left, right, merged); unused piece: its two parts

        def offer(left: int, right: int) -> None:
            if left < 0 or right == len(symbols):
                return
            merged = symbols[left] + symbols[right]
            if merged in self._merges and self._whole.isdisjoint((symbols[left], symbols[right])):
                heapq.heappush(merges, (-self._merges[merged], left, right, merged))
                if merged not in self._scores:
                    parts[merged] = symbols[left], symbols[right]

        for right in range(1, len(symbols)):
            offer(right - 1, right)
        while merges:
            _, left, right, merged = heapq.heappop(merges)
            current = symbols[left] and symbols[right] and symbols[left] + symbols[right] == merged
            if not current or uniform() < alpha:
                continue
            symbols[left], symbols[right] = merged, ""
            after[left] = after[right]
            if after[right] < len(symbols):
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        pieces, waiting = [], symbols[::-1]
        while waiting:
            piece = waiting.pop()
            if piece in parts:
                waiting += parts[piece][::-1]
            elif piece:
                pieces.append(piece)
        return pieces
