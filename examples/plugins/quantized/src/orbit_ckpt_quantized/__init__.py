"""Quantized arrays as leaves of checkpoints."""

from orbit_ckpt_quantized.array import QuantizedArray, QuantizedRestoreArgs, quantize
from orbit_ckpt_quantized.handler import QuantizedHandler

__all__ = ["QuantizedArray", "QuantizedHandler", "QuantizedRestoreArgs", "quantize"]
