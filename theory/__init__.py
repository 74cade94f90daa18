"""The analytic side: from a head's content to its carrier, kernel, dilution curve, and what is proved of them."""

from theory.dilution import (
    InverseLinearFit,
    dilution_curve,
    exact_law,
    exact_profile,
    fit_inverse_linear,
    margin_bound,
    mean_profile_law,
)
from theory.errors import TheoryError
from theory.head import Carrier, Head
from theory.incommensurability import NearRecurrence, near_recurrences, rational_rank, realigning_period
from theory.kernel import Margin, carrier_profile, kernel, margin, mean_profile, selected_offset
from theory.schedule import RotarySchedule

__all__ = [
    "Carrier",
    "Head",
    "InverseLinearFit",
    "Margin",
    "NearRecurrence",
    "RotarySchedule",
    "TheoryError",
    "carrier_profile",
    "dilution_curve",
    "exact_law",
    "exact_profile",
    "fit_inverse_linear",
    "kernel",
    "margin",
    "margin_bound",
    "mean_profile",
    "mean_profile_law",
    "near_recurrences",
    "rational_rank",
    "realigning_period",
    "selected_offset",
]
