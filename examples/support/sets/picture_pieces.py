"""Pictures as texts of pieces: each character stands for a patch of pixels.

Shapes: N pictures, K pieces.
"""

import numpy as np
from support.sets.captioned_scenes import BOARD, CELL, SIDE

FIRST = 0x4E00  # code of the first character, a Chinese one: captions have none


class Codebook:
    """Pieces found by k-means: the patches of any picture are replaced by the nearest of them.

    Args:
        pictures: uint8 (N, 44, 44), for training.
        count: int, K. One piece is black.
        seed: int, of k-means.

    Attributes:
        patches: float32 (K, 16), the pixels of the pieces.
        symbols: str of K characters.
    """

    def __init__(self, pictures, count, seed):
        from sklearn.cluster import MiniBatchKMeans

        patches = _patches(pictures).reshape(-1, CELL**2)
        patches = patches[patches.any(axis=1)]
        options = dict(batch_size=4096, n_init=1, max_iter=30)
        found = MiniBatchKMeans(count - 1, random_state=seed, **options).fit(patches)
        black = np.zeros((1, CELL**2), "float32")
        self.patches = np.concatenate([black, found.cluster_centers_])
        self.symbols = "".join(chr(FIRST + piece) for piece in range(count))

    def texts(self, pictures):
        """Returns a text of 121 characters for each picture (N, 44, 44), uint8."""
        squares = np.square(self.patches).sum(axis=1)
        pieces = (squares - 2 * _patches(pictures) @ self.patches.T).argmin(axis=-1)
        return ["".join(self.symbols[piece] for piece in row) for row in pieces]

    def pictures(self, texts):
        """Reverses `texts`, up to the differences of patches from their pieces."""
        pieces = np.array([[ord(symbol) - FIRST for symbol in text] for text in texts])
        patches = np.rint(self.patches[pieces]).astype(np.uint8)
        grid = patches.reshape(len(texts), BOARD, BOARD, CELL, CELL)
        return grid.swapaxes(2, 3).reshape(len(texts), SIDE, SIDE)


def _patches(pictures):
    """Returns the patches of pictures (N, 44, 44) in reading order: float32 (N, 121, 16)."""
    grid = pictures.reshape(-1, BOARD, CELL, BOARD, CELL).swapaxes(2, 3)
    return grid.reshape(-1, BOARD**2, CELL**2).astype("float32")
