"""Rotations and score tables written out, for tests of several laws: nothing here comes from the code under test."""

import numpy as np
from scipy.linalg import block_diag


def rotation(frequencies, position):
    """R_t as an explicit matrix of 2x2 blocks."""
    blocks = [[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in position * np.asarray(frequencies)]
    return block_diag(*blocks)


def score_table(schedule, queries, keys, longest):
    """q_a^T F R_delta k_b [query, offset, key] for delta = 0, -1, ...: cosines and sines written out, unscaled."""
    (q0, q1), (k0, k1) = ((x[:, 0::2], x[:, 1::2]) for x in (queries, keys))
    # The tail of a partly rotated head has angle 0 and no attention factor.
    factor = np.where(np.arange(schedule.pairs) < schedule.pairs - schedule.unrotated, schedule.attention_factor, 1.0)
    # The query turned forwards by the distance instead of the key turned back.
    angles = np.outer(np.arange(longest), schedule.frequencies)
    cos, sin = factor**2 * np.cos(angles), factor**2 * np.sin(angles)
    turned = (q0[:, None] * cos - q1[:, None] * sin, q0[:, None] * sin + q1[:, None] * cos)
    return turned[0] @ k0.T + turned[1] @ k1.T
