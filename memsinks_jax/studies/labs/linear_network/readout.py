"""The layer of appendix H: logits W z for given z. SGD on the cross-entropy trains W.

    W <- W + gamma (e - softmax(W z)) z^T

(The paper calls e - softmax the gradient. It is minus the gradient, and it is added.) Axes: N
steps, B trials side by side, V tokens (logits), H hidden neurons.
"""

import math

import numpy as np
from scipy.special import softmax


def train(w_BVH, z_NBH, token_NB, rate_B, every: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Trains on targets token_NB at rates gamma -> W (B, V, H), upper bound on its spectral norm
    (B,).

    The norm is computed every `every` steps, and its largest possible growth in between is added:
    |e - softmax| < sqrt(2), so a step changes the norm by less than gamma sqrt(2) |z|.
    """
    w_BVH, trials, steps = w_BVH.copy(), np.arange(len(w_BVH)), len(z_NBH)
    largest_B, rate_B1 = np.zeros(len(w_BVH)), np.asarray(rate_B)[:, None]
    for step in range(steps):
        if step % every == 0:
            largest_B = np.maximum(largest_B, spectral(w_BVH))
        z_BH = z_NBH[step]
        pull_BV = -softmax((w_BVH @ z_BH[..., None])[..., 0], axis=-1)
        pull_BV[trials, token_NB[step]] += 1
        w_BVH += (rate_B1 * pull_BV)[:, :, None] * z_BH[:, None]
    length_B = np.linalg.norm(z_NBH, axis=-1).max(0) if steps else 0
    slack_B = (every // 2) * math.sqrt(2) * np.asarray(rate_B) * length_B
    return w_BVH, np.maximum(largest_B, spectral(w_BVH)) + slack_B


def spectral(w_BVH: np.ndarray) -> np.ndarray:
    """Spectral norms -> (B,)."""
    return np.sqrt(np.maximum(np.linalg.eigvalsh(w_BVH.swapaxes(1, 2) @ w_BVH)[:, -1], 0))


def probabilities(norm_B, tokens) -> tuple[np.ndarray, np.ndarray]:
    """c_min and c_max after Theorem H.1: the range of softmax(W z) for |W|_2 <= norm, |z| <= 1."""
    c_proj_B = 2 * norm_B
    return np.exp(-c_proj_B) / tokens, np.exp(c_proj_B) / (tokens - 1)
