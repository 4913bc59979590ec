"""Libraries that work with any array of the standard."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# SciPy reads it when it is imported.
os.environ["SCIPY_ARRAY_API"] = "1"

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import sklearn  # noqa: E402
from scipy import cluster, integrate, signal, special, stats  # noqa: E402
from sklearn import metrics, preprocessing  # noqa: E402

import streamvm as sv  # noqa: E402

# On columns and rows of these; what a library gives is compared with what it gives for the arrays.
SCIPY: dict[str, Callable[[Any], Any]] = {
    "logsumexp": lambda x: special.logsumexp(x, axis=1),
    "softmax": lambda x: special.softmax(x, axis=1),
    "expit": special.expit,
    "zscore": stats.zscore,
    "skew": stats.skew,
    "kurtosis": stats.kurtosis,
    "pearsonr": lambda x: stats.pearsonr(x[:, 0], x[:, 1]).statistic,
    "trapezoid": lambda x: integrate.trapezoid(x[:, 0], dx=0.1),
    "whiten": cluster.vq.whiten,
    "vq": lambda x: cluster.vq.vq(x, x[:3, :])[0],
    "detrend": lambda x: signal.detrend(x[:, 0]),
}
SKLEARN: dict[str, Callable[[Any], Any]] = {
    "MinMaxScaler": lambda x: preprocessing.MinMaxScaler().fit_transform(x),
    "StandardScaler": lambda x: preprocessing.StandardScaler().fit_transform(x),
    "Normalizer": lambda x: preprocessing.Normalizer().fit_transform(x),
    "r2_score": lambda x: metrics.r2_score(x[:, 0], x[:, 1]),
    "mean_squared_error": lambda x: metrics.mean_squared_error(x[:, 0], x[:, 1]),
    "euclidean_distances": lambda x: metrics.pairwise.euclidean_distances(x, x),
    "accuracy_score": lambda x: metrics.accuracy_score(x[:, 0] > 0, x[:, 1] > 0),
}


@pytest.mark.parametrize("name", [*SCIPY, *SKLEARN])
@pytest.mark.filterwarnings("ignore")
def test_libraries_of_the_standard_compute_with_tensors(name: str) -> None:
    array = np.random.default_rng(5).normal(size=(20, 3))
    call = {**SCIPY, **SKLEARN}[name]
    with sklearn.config_context(array_api_dispatch=name in SKLEARN):
        found, expected = call(sv.asarray(array)), call(array)
    if isinstance(expected, np.ndarray) and expected.ndim:
        assert isinstance(found, sv.Tensor)
        found = found.numpy()
    # Shares are in the default dtype, float32.
    assert np.allclose(found, expected, rtol=1e-6 if name == "accuracy_score" else 1e-10, atol=1e-12)
