"""What the parts of the study of heads share: the temperature of the weights over swaps, and when a head is pure.

Source: ours.
"""

from __future__ import annotations

TEMPERATURE = 0.05
"""A swap that moves all attention counts e^20 times one that moves none."""
PURE, MIXED = 0.8, 0.5
"""A head is pure where one score is at least the first and the other at most the second."""
