"""What convolutions, poolings and their gradients mean, in NumPy, with the error that streamvm may make; see reference.py."""

import numpy as np

from dtypes import COMPUTED, LARGEST, SMALLEST, UNIT
from reference import SUM_UNIT, finite, wide
from result import Exact, Near


def positions(size, window, stride, padding, dilation):
    return (size + 2 * padding - (window - 1) * dilation - 1) // stride + 1


def under(window, output, stride, dilation):
    """For each element of the window, the part of the padded image that is under it at all positions."""
    for i in range(window[0]):
        for j in range(window[1]):
            starts = i * dilation[0], j * dilation[1]
            yield i, j, tuple(slice(start, start + (count - 1) * step + 1, step) for start, count, step in zip(starts, output, stride))


def framed(x, padding, border):
    widths = [(0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1])]
    return np.pad(x, widths, constant_values=border)


def convolve(of, x, weight, y, by, border=0):
    """The output `y` of a convolution, or the gradient of `x` or of `weight` given that of `y`. What is asked for is given as zeros."""
    stride, padding, dilation, groups = by
    padded, weight, y = framed(x, padding, 0 if of == "x" else border), weight.copy(), y.copy()
    channels, outputs = x.shape[1] // groups, y.shape[1] // groups
    for group in range(groups):
        ins, outs = slice(group * channels, (group + 1) * channels), slice(group * outputs, (group + 1) * outputs)
        for i, j, part in under(weight.shape[2:], y.shape[2:], stride, dilation):
            if of == "y":
                y[:, outs] += np.einsum("nchw,oc->nohw", padded[(slice(None), ins, *part)], weight[outs, :, i, j])
            elif of == "x":
                padded[(slice(None), ins, *part)] += np.einsum("nohw,oc->nchw", y[:, outs], weight[outs, :, i, j])
            else:
                weight[outs, :, i, j] += np.einsum("nchw,nohw->oc", padded[(slice(None), ins, *part)], y[:, outs])
    if of == "x":
        return padded[:, :, padding[0]:padding[0] + x.shape[2], padding[1]:padding[1] + x.shape[3]]
    return y if of == "y" else weight


def convolution(dtype, of, x, weight, y, by):
    """`y` may be the shape of the output alone."""
    given = {"x": wide(x, dtype), "weight": wide(weight, dtype), "y": wide(np.zeros(y) if isinstance(y, tuple) else y, dtype)}
    given[of] = np.zeros_like(given[of])
    expected = convolve(of, **given, by=by)
    size = convolve(of, **{name: np.abs(finite(array)) for name, array in given.items()}, by=by)
    outputs, channels, *window = weight.shape
    batch, _, *output = given["y"].shape
    count = {"y": channels * np.prod(window), "x": outputs * np.prod(window), "weight": batch * np.prod(output)}[of]
    error = 2 * (count + 2) * UNIT[COMPUTED[dtype]] * size + count * SMALLEST[COMPUTED[dtype]]
    # What an infinity or NaN beside the padding gives is not said; nor what follows a sum on the way that is past the range.
    wild = np.zeros(expected.shape)
    for one in given:
        if one != of:
            ones = {name: np.ones_like(array) for name, array in given.items()}
            ones[one], ones[of] = (~np.isfinite(given[one])).astype(given[one].dtype), np.zeros_like(given[of])
            wild = wild + convolve(of, **ones, by=by, border=0 if one == "x" else 1)
    return Near(dtype, np.where(wild > 0, 0, expected), error, free=(size > LARGEST[COMPUTED[dtype]] / 4) | (wild > 0))


def inside(size, window, stride, padding, position):
    first = position * stride - padding
    return slice(max(first, 0), min(first + window, size))


def each_window(shape, output, by):
    window, stride, padding = by
    for row in range(output[2]):
        for column in range(output[3]):
            at = row, column
            yield row, column, tuple(inside(shape[2 + axis], window[axis], stride[axis], padding[axis], at[axis]) for axis in (0, 1))


def pooled_shape(shape, by):
    window, stride, padding = by
    return shape[:2] + tuple(positions(shape[2 + axis], window[axis], stride[axis], padding[axis], 1) for axis in (0, 1))


def max_pool2d(dtype, x, by):
    out = np.zeros(pooled_shape(x.shape, by), x.dtype)
    for row, column, part in each_window(x.shape, out.shape, by):
        out[:, :, row, column] = np.max(x[(slice(None), slice(None), *part)], axis=(2, 3))
    return Exact(out, zeros=True)


def rounded_once(dtype, expected, size, count):
    """Sums of `count` terms in f64, whose sizes sum up to `size`, and what is made of them by one more operation."""
    error = 2 * (count + 2) * SUM_UNIT["f64"] * size + 2 * UNIT[COMPUTED[dtype]] * np.abs(finite(expected)) + SMALLEST[COMPUTED[dtype]]
    return Near(dtype, expected, error, free=size > 1e300)


def avg_pool2d(dtype, x, by):
    x, count = wide(x, dtype), by[0][0] * by[0][1]
    out = np.zeros(pooled_shape(x.shape, by), x.dtype)
    size = np.zeros(out.shape)
    for row, column, part in each_window(x.shape, out.shape, by):
        under_it = x[(slice(None), slice(None), *part)]
        out[:, :, row, column] = np.sum(under_it, axis=(2, 3)) / count
        size[:, :, row, column] = np.sum(np.abs(finite(under_it)), axis=(2, 3))
    return rounded_once(dtype, out, size, count)


def max_pool2d_backward(dtype, x, dy, by):
    dy = wide(dy, dtype)
    dx, size = np.zeros(x.shape, dy.dtype), np.zeros(x.shape)
    images, channels = np.indices(x.shape[:2])
    for row, column, part in each_window(x.shape, dy.shape, by):
        under_it = x[(slice(None), slice(None), *part)]
        # The first largest, or the first NaN.
        y, at = np.unravel_index(np.argmax(under_it.reshape(*x.shape[:2], -1), axis=2) if x.size else np.zeros(x.shape[:2], int), under_it.shape[2:])
        place = images, channels, y + part[0].start, at + part[1].start
        dx[place] += dy[:, :, row, column]
        size[place] += np.abs(finite(dy[:, :, row, column]))
    return rounded_once(dtype, dx, size, by[0][0] * by[0][1])


def avg_pool2d_backward(dtype, x, dy, by):
    dy, count = wide(dy, dtype), by[0][0] * by[0][1]
    dx, size = np.zeros(x.shape, dy.dtype), np.zeros(x.shape)
    for row, column, part in each_window(x.shape, dy.shape, by):
        dx[(slice(None), slice(None), *part)] += (dy[:, :, row, column])[:, :, None, None]
        size[(slice(None), slice(None), *part)] += np.abs(finite(dy[:, :, row, column]))[:, :, None, None]
    return rounded_once(dtype, dx / count, size, count)
