"""Training pairs for skip-gram with negative sampling (Mikolov et al. 2013, arXiv 1310.4546)."""

from typing import Any

import numpy as np

from bench._text import Text

Ids = np.ndarray[Any, np.dtype[np.int64]]

TRAINING, EVALUATION = 0, 1  # independent streams of batches


class Pairs:
    """Batches of (centre, context, negatives), each a pure function of seed, stream and number.

    window : the two words of a pair stand at most this far apart in one paragraph; distance d is drawn with a weight of
        window + 1 - d, which is word2vec's window of random width
    negatives : drawn for each pair with a probability in proportion to count ** 0.75; the context may be among them
    threshold : a word of relative frequency f takes part in a pair with probability min(1, sqrt(threshold / f))
    """

    def __init__(
        self, text: Text, *, batch: int, seed: int, window: int = 5, negatives: int = 5, threshold: float = 1e-3
    ) -> None:
        self._text = text
        self._batch = batch
        self._seed = seed
        self._negatives = negatives
        self._keep = np.minimum(1.0, np.sqrt(threshold * text.counts.sum() / text.counts))
        self._distance_cdf = _cdf(np.arange(window, 0, -1))
        self._negative_cdf = _cdf(text.counts**0.75)

    def batch(self, stream: int, number: int) -> tuple[Ids, Ids]:
        """Centres (batch,) and targets (batch, 1 + negatives): the true context in column 0, the negatives after it."""
        rng = np.random.default_rng([self._seed, stream, number])
        centres = np.empty(0, dtype=np.int64)
        contexts = np.empty(0, dtype=np.int64)
        while len(centres) < self._batch:
            more_centres, more_contexts = self._draw(rng, 8 * self._batch)
            centres = np.concatenate([centres, more_centres])
            contexts = np.concatenate([contexts, more_contexts])
        drawn = _sample(rng, self._negative_cdf, (self._batch, self._negatives))
        return centres[: self._batch], np.column_stack([contexts[: self._batch], drawn])

    def _draw(self, rng: np.random.Generator, n: int) -> tuple[Ids, Ids]:
        """Draw n places in the text with a place nearby, and return the pairs of words that may stand."""
        ids, paragraph = self._text.ids, self._text.paragraph
        here = rng.integers(len(ids), size=n)
        there = here + (1 + _sample(rng, self._distance_cdf, n)) * rng.choice([-1, 1], size=n)
        inside = (there >= 0) & (there < len(ids))
        here, there = here[inside], there[inside]
        centres, contexts = ids[here].astype(np.int64), ids[there].astype(np.int64)
        keep = paragraph[here] == paragraph[there]
        keep &= rng.random(len(here)) < self._keep[centres] * self._keep[contexts]
        return centres[keep], contexts[keep]


def _cdf(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    cdf: np.ndarray[Any, np.dtype[np.float64]] = np.cumsum(weights, dtype=np.float64)
    cdf /= cdf[-1]
    return cdf


def _sample(rng: np.random.Generator, cdf: np.ndarray[Any, np.dtype[np.float64]], shape: int | tuple[int, ...]) -> Ids:
    return np.searchsorted(cdf, rng.random(shape), side="right").astype(np.int64)
