"""Every operation that is measured, by name."""

from bench._case import Operation
from bench._coalesce import COALESCE
from bench._optim import OPTIMIZER_STEP, SPARSE_ADAM_STEP
from bench._start import FIRST_CALL, IMPORT
from bench._topk import TOPK, TOPK_MASK

OPERATIONS: dict[str, Operation] = {
    operation.name: operation for operation in (COALESCE, TOPK, TOPK_MASK, SPARSE_ADAM_STEP, OPTIMIZER_STEP, IMPORT, FIRST_CALL)
}
