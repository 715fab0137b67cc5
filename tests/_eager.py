"""Optimizers that do every step on every row at once, in plain float64 loops: what the lazy modes must come to after a flush.

Imports nothing from sparsekit, so that it can contradict it.
"""

import math

import numpy as np


class Eager:
    """param (n, width); each step takes {row: gradient} for the rows that are touched."""

    def __init__(self, param, weight_decay_mode="l2", weight_decay=0.0):
        self.param = param.astype(np.float64)
        self.mode, self.weight_decay = weight_decay_mode, weight_decay
        self.steps = 0

    def step(self, gradients, lr):
        self.steps += 1
        for row in range(len(self.param)):
            touched = row in gradients
            g = np.array(gradients.get(row, np.zeros(self.param.shape[1])), np.float64)
            if touched and self.mode == "l2":
                g = g + self.weight_decay * self.param[row]
            if self.mode == "decoupled_lazy" or (touched and self.mode == "decoupled"):
                self.param[row] *= 1 - lr * self.weight_decay
            self.update(row, g, touched, lr)


class Adam(Eager):
    def __init__(
        self,
        param,
        betas=(0.9, 0.999),
        eps=1e-8,
        moments="masked",
        bias_correction="global",
        amsgrad=False,
        rowwise=False,
        **rest,
    ):
        super().__init__(param, **rest)
        self.betas, self.eps, self.moments, self.bias_correction = betas, eps, moments, bias_correction
        self.amsgrad, self.rowwise = amsgrad, rowwise
        self.m, self.v = np.zeros(param.shape), np.zeros((len(param), 1) if rowwise else param.shape)
        self.largest, self.updates = self.v.copy(), [0] * len(param)

    def update(self, row, g, touched, lr):
        beta1, beta2 = self.betas
        if not touched and self.moments == "masked":
            return
        if touched or self.updates[row]:
            self.updates[row] += 1
        self.m[row] = beta1 * self.m[row] + (1 - beta1) * g
        self.v[row] = beta2 * self.v[row] + (1 - beta2) * (np.mean(g * g) if self.rowwise else g * g)
        self.largest[row] = np.maximum(self.largest[row], self.v[row])
        if not touched and self.moments == "decayed":
            return
        number = self.steps if self.bias_correction == "global" else self.updates[row]
        if number == 0:
            return  # never touched: its moments are 0
        root = np.sqrt((self.largest if self.amsgrad else self.v)[row] / (1 - beta2**number))
        # torch.optim.SparseAdam adds eps before the correction, dense Adam after it.
        eps = self.eps if self.moments == "exact" else self.eps / math.sqrt(1 - beta2**number)
        self.param[row] -= lr / (1 - beta1**number) * self.m[row] / (root + eps)


class Adagrad(Eager):
    def __init__(self, param, eps=1e-10, lr_decay=0.0, rowwise=False, **rest):
        super().__init__(param, **rest)
        self.eps, self.lr_decay, self.rowwise = eps, lr_decay, rowwise
        self.total = np.zeros((len(param), 1) if rowwise else param.shape)

    def step(self, gradients, lr):
        super().step(gradients, lr / (1 + self.steps * self.lr_decay))

    def update(self, row, g, touched, lr):
        if touched:
            self.total[row] += np.mean(g * g) if self.rowwise else g * g
            self.param[row] -= lr * g / (np.sqrt(self.total[row]) + self.eps)


class SGD(Eager):
    def __init__(self, param, momentum=0.0, dampening=0.0, nesterov=False, moments="masked", **rest):
        super().__init__(param, **rest)
        self.momentum, self.dampening, self.nesterov, self.moments = momentum, dampening, nesterov, moments
        self.buffer = np.zeros(param.shape)

    def update(self, row, g, touched, lr):
        if not touched and self.moments == "masked":
            return
        share = 1.0 if self.steps == 1 else 1 - self.dampening
        self.buffer[row] = self.momentum * self.buffer[row] + share * g
        if not touched and self.moments == "decayed":
            return
        self.param[row] -= lr * (g + self.momentum * self.buffer[row] if self.nesterov else self.buffer[row])
