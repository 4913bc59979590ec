"""Loads an array, computes on two lanes that overlap, and gives the results to NumPy."""

import tempfile
from pathlib import Path

import numpy as np

import streamvm as sv


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "points.npy")
        np.save(file, np.random.default_rng(0).normal(size=(4096, 3)).astype(np.float32))
        points = sv.asarray(np.load(file))

    # Calls return at once. Those of two lanes run beside each other where the data allows it.
    with sv.Lane(1):
        centred = points - sv.mean(points, axis=0, keepdims=True)
        covariance = centred.T @ centred / (points.shape[0] - 1)
    with sv.Lane(2):
        lengths = sv.sqrt(sv.sum(points * points, axis=1))
        longest = sv.argmax(lengths)

    # Reading waits, for what is read alone.
    print("covariance")
    print(covariance.numpy().round(2))
    print("longest", float(lengths[int(longest)]))
    assert np.allclose(covariance.numpy(), np.cov(points.numpy().T), atol=1e-3)


if __name__ == "__main__":
    main()
