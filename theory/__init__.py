"""The analytic side: from a head's content to its carrier, kernel, laws and designs, and what is proved of them.

Schedules and scalings; heads and their carriers; profiles and margins; laws of attention and accuracy
against length; certified numbers and recurrences; interpolants, best carriers and what they take; what optimizers do to
rows that nothing trains; long contexts, horizons and discrepancies. The statements are `theory.statements`.
"""

from theory.accuracy import AccuracyLaw, accuracy_law
from theory.best_carriers import (
    BestCarrier,
    DistanceFromBest,
    best_carrier,
    best_carrier_in_context,
    best_margin_curve,
    distance_from_best,
)
from theory.best_schedules import BestBase, BestFrequencies, best_base, best_frequencies
from theory.bias import BucketBias, LinearBias, OffsetBias
from theory.certified import (
    CertifiedMargin,
    CertifiedMaximum,
    Enclosure,
    certified_margin,
    certified_maximum,
    kernel_enclosure,
)
from theory.constructed_heads import index_head, index_logits, prompt_logits, retrieval_head, retrieval_logits
from theory.content_costs import Cost, check_logits, cost_of_content
from theory.content_limits import ContentLaw, Limits, Rate, Refinement, score_spread
from theory.design import (
    Design,
    PriceInRange,
    aligned,
    design_carrier,
    energy_bound,
    energy_for_accuracy,
    energy_for_attention,
    energy_of_means,
    price_in_range,
)
from theory.dilution import InverseLinearFit, dilution_curve, fit_inverse_linear, margin_bound, mean_profile_law
from theory.discrepancy import (
    SwapScores,
    SymbolicLoss,
    dirichlet_bound,
    discrepancy,
    positional_discrepancy,
    swap_scores,
    symbolic_loss,
)
from theory.drift import CoupledAdam, Decay, NormLaw
from theory.equidistribution import dilution_rate, exact_limit, orbit_average
from theory.errors import TheoryError
from theory.exact_law import exact_law, exact_laws, exact_moments, exact_profile, exact_surface
from theory.group_interpolant import GroupInterpolant, least_group_norm
from theory.head import Carrier, Head
from theory.horizon import BF16, FP16, FP32, FloatFormat, least_modular_amplitude, lookback_horizon, precision_cap
from theory.incommensurability import Circle, OrbitClosure, orbit_closure, rational_rank, realigning_period
from theory.interpolant import (
    CertifiedInterpolant,
    InterpolationProblem,
    SpectralInterpolant,
    certified_min_norm,
    min_norm,
    ridge,
)
from theory.kernel import Margin, carrier_profile, kernel, margin, mean_profile, selected_offset
from theory.limits import (
    InversionRate,
    aliased_pairs,
    binned_pairs,
    collision_length,
    expected_aliased_pairs,
    inversion_rate,
    middle_range_kernel,
    position_inversion,
    token_inversion,
)
from theory.prompt_swaps import ScoredHeads, Swaps, all_swaps, drawn_swaps, lower_score
from theory.ramp_scaling import Llama3, Yarn
from theory.recurrences import (
    NearRecurrence,
    Recurrence,
    continued_fraction_recurrences,
    lattice_recurrences,
    near_recurrences,
    record_recurrences,
)
from theory.rope_parameters import read_rotary, read_scaling, read_schedule, read_schedules
from theory.rotary import Rotary
from theory.rounded_heads import Leak, RoundedHead, Rounding, sufficient_modular_amplitude
from theory.sampled_law import SampledAttention, sampled_attention
from theory.sampled_limits import sampled_limits
from theory.scaling import DynamicNtk, Linear, LongRope, Ntk, Proportional, Scaling, Unscaled
from theory.schedule import RotarySchedule

__all__ = [  # noqa: RUF022 -- by purpose, as above
    # schedules and scalings
    "RotarySchedule",
    "DynamicNtk",
    "Linear",
    "LongRope",
    "Ntk",
    "Proportional",
    "Scaling",
    "Unscaled",
    "Llama3",
    "Yarn",
    "Rotary",
    "read_rotary",
    "read_scaling",
    "read_schedule",
    "read_schedules",
    "Circle",
    "OrbitClosure",
    "orbit_closure",
    "rational_rank",
    "realigning_period",
    # heads and carriers
    "Carrier",
    "Head",
    "BucketBias",
    "LinearBias",
    "OffsetBias",
    "Margin",
    "carrier_profile",
    "kernel",
    "margin",
    "mean_profile",
    "selected_offset",
    # laws against length
    "InverseLinearFit",
    "dilution_curve",
    "fit_inverse_linear",
    "margin_bound",
    "mean_profile_law",
    "exact_law",
    "exact_laws",
    "exact_moments",
    "exact_profile",
    "exact_surface",
    "SampledAttention",
    "sampled_attention",
    "dilution_rate",
    "exact_limit",
    "orbit_average",
    "AccuracyLaw",
    "accuracy_law",
    # certified numbers and recurrences
    "CertifiedMargin",
    "CertifiedMaximum",
    "Enclosure",
    "certified_margin",
    "certified_maximum",
    "kernel_enclosure",
    "NearRecurrence",
    "Recurrence",
    "continued_fraction_recurrences",
    "lattice_recurrences",
    "near_recurrences",
    "record_recurrences",
    # interpolants and designs
    "CertifiedInterpolant",
    "InterpolationProblem",
    "SpectralInterpolant",
    "certified_min_norm",
    "min_norm",
    "ridge",
    "GroupInterpolant",
    "least_group_norm",
    "BestCarrier",
    "DistanceFromBest",
    "best_carrier",
    "best_carrier_in_context",
    "best_margin_curve",
    "distance_from_best",
    "Design",
    "design_carrier",
    "aligned",
    "energy_bound",
    "energy_of_means",
    "energy_for_attention",
    "energy_for_accuracy",
    "PriceInRange",
    "price_in_range",
    "Cost",
    "cost_of_content",
    "check_logits",
    "BestBase",
    "best_base",
    "BestFrequencies",
    "best_frequencies",
    # what optimizers do to untrained rows
    "CoupledAdam",
    "Decay",
    "NormLaw",
    # long contexts, horizons, discrepancies
    "InversionRate",
    "aliased_pairs",
    "binned_pairs",
    "collision_length",
    "expected_aliased_pairs",
    "inversion_rate",
    "middle_range_kernel",
    "position_inversion",
    "token_inversion",
    "ContentLaw",
    "Leak",
    "RoundedHead",
    "Rounding",
    "ScoredHeads",
    "Swaps",
    "all_swaps",
    "drawn_swaps",
    "index_head",
    "index_logits",
    "lower_score",
    "prompt_logits",
    "retrieval_head",
    "retrieval_logits",
    "sufficient_modular_amplitude",
    "Limits",
    "Rate",
    "Refinement",
    "score_spread",
    "sampled_limits",
    "BF16",
    "FP16",
    "FP32",
    "FloatFormat",
    "least_modular_amplitude",
    "lookback_horizon",
    "precision_cap",
    "SwapScores",
    "SymbolicLoss",
    "dirichlet_bound",
    "discrepancy",
    "positional_discrepancy",
    "swap_scores",
    "symbolic_loss",
    # errors
    "TheoryError",
]
