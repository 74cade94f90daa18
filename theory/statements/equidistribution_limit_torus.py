"""Equidistribution limit: what dilutes attention in the end is an average over a torus.

For the softmax of the mean profile of a carrier aligned with the target, r_i = beta p_i, and active
theta_i that with 2 pi are independent over the rationals,

    1/(L a(L)) = e^-phi(-K) 1/L sum_s e^(sum_i r_i cos(s theta_i))  ->  e^-beta prod_i I0(beta p_i).

Otherwise the orbit of the angles fills less than a torus of all active pairs and the limit is the
average over its closure. At base A^k, A no power, pairs i and i + h/gcd(k, h) of h turn in the whole
ratio A^(k/gcd(k, h)): h/gcd(k, h) classes, which are independent (Besicovitch), also of 2 pi (Lindemann).
That is 8 of 32 at base 1e4, d=64, so that the product of Bessel functions is not for this head.

A limit only: a pair that has not turned many times is a constant, and attention at lengths in use is
diluted by what the slow pairs hold fixed, not by this.

Source: ours; compare arXiv 2607.18759, Corollary 2. `theory.equidistribution`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd

import numpy as np
import sympy
from jaxtyping import Bool, Float64, Int
from scipy.special import i0e

from theory.equidistribution import dilution_rate
from theory.head import Carrier
from theory.incommensurability import orbit_closure, rational_rank
from theory.schedule import RotarySchedule, as_lanes, as_pairs
from theory.statements.statement import Assumption, Counterexample, ProofStep, Statement, Verdict, Wording, vanishes

_MANY_TURNS = 100


@dataclass(frozen=True, eq=False)
class LongCarrier:
    """A carrier, its target K back, and over how many offsets the mean is taken.

    `full` is a carrier of the same target on all pairs of the schedule, None where the first is so
    already; `power` is k where the schedule is geometric of base A^k, A no power, None elsewhere.
    """

    carrier: Carrier
    offset: int
    lags: int
    full: Carrier | None = None
    power: int | None = None

    @property
    def active(self) -> Bool[np.ndarray, "pair"]:
        """The pairs on which the carrier has any energy."""
        return self.carrier.amplitudes > 0

    def product(self) -> float:
        """e^-beta prod I0(r_i), beta = sum r_i, by scipy."""
        return float(np.prod(i0e(self.carrier.amplitudes)))

    def long_mean(self) -> float:
        """The mean of e^(phi(delta) - phi(-K)) over the offsets."""
        return _long_mean(self.carrier, self.offset, self.lags)


def _long_mean(carrier: Carrier, offset: int, lags: int) -> float:
    """The mean of e^(phi(delta) - phi(-K)) under a smooth window.

    The window e^(-1/x(1-x)) has the same limit as the plain mean, whose error falls as 1/lags
    alone, and leaves of each harmonic less than any power of 1/lags.
    """
    x = np.arange(1, lags) / lags
    window = np.exp(-1 / (x * (1 - x)))
    ratios = np.exp(_profile(carrier, np.arange(1, lags)) - _profile(carrier, np.array([offset])))
    return float(window @ ratios / window.sum())


def _profile(carrier: Carrier, distances: Int[np.ndarray, "offset"]) -> Float64[np.ndarray, "offset"]:
    """phi by the cosines and sines of the two means, pair by pair."""
    (q0, q1), (k0, k1) = ((mean[0::2], mean[1::2]) for mean in (carrier.query_mean, carrier.key_mean))
    profile = np.zeros(len(distances))
    even, odd = q0 * k0 + q1 * k1, q0 * k1 - q1 * k0
    sizes, angles = np.hypot(even, odd), np.arctan2(odd, even)
    for pair in np.flatnonzero(sizes):
        profile += sizes[pair] * np.cos(distances * carrier.schedule.frequencies[pair] - angles[pair])
    return profile


def _residual(case: LongCarrier) -> float:
    """Relative distances of long mean, rate and product, of mean and rate on all pairs; 1 for a wrong dimension."""
    schedule, product = case.carrier.schedule, case.product()
    misses = [case.long_mean() / product - 1, dilution_rate(case.carrier, case.offset) / product - 1]
    if case.full is not None:
        misses.append(_long_mean(case.full, case.offset, case.lags) / dilution_rate(case.full, case.offset) - 1)
    circles = len(orbit_closure(schedule).circles)
    other = case.power is not None and circles != schedule.pairs // gcd(case.power, schedule.pairs)
    return float(np.abs(misses).max() + other)


@cache
def _prove() -> tuple[ProofStep, ...]:
    r, y, psi = sympy.symbols("r y psi", real=True)
    s, n = sympy.Symbol("s", integer=True), sympy.Symbol("n", integer=True, nonnegative=True)
    length, pairs = sympy.symbols("L h", integer=True, positive=True)
    wave, bessel, q = sympy.exp(r * sympy.cos(y)), sympy.besseli(0, r), sympy.Symbol("q")
    circle = (wave.diff(r, 2) * r + wave.diff(r) - r * wave) - (sympy.sin(y) * wave).diff(y)
    equation = r * bessel.diff(r, 2) + bessel.diff(r) - r * bessel
    term, shifted = r ** (n + 1), sympy.exp(r * sympy.cos(y - psi))
    rest, f = sympy.Symbol("E"), sympy.Function("f")
    one_more = sympy.Integral(rest * f(y), (y, 0, 2 * sympy.pi)).doit()
    i, shares, beta = sympy.Symbol("i", integer=True), sympy.IndexedBase("p"), sympy.Symbol("beta", positive=True)
    peak = sympy.exp(sympy.Sum(-beta * shares[i], (i, 0, pairs - 1)))
    geometric = sympy.Sum(q**s, (s, 0, length - 1)).doit().subs(q, 2)
    partial, gap = (1 - q**length) / (1 - q), sympy.Symbol("d", positive=True)
    root, g, k, h = sympy.symbols("A g k h", integer=True, positive=True)
    u, v, apart = sympy.symbols("u v m", integer=True)

    def theta(pair: sympy.Expr) -> sympy.Expr:
        return (root ** (g * k)) ** (-pair / (g * h))

    return (
        ProofStep(
            "F(r), the mean of e^(r cos y) over the circle, solves r F'' + F' = r F: the integrand is d/dy of "
            "sin y e^(r cos y), which is periodic",
            vanishes(circle) and (sympy.sin(y) * wave).subs(y, 2 * sympy.pi) == (sympy.sin(y) * wave).subs(y, 0),
        ),
        ProofStep(
            "so does I0, and both are 1 at r = 0",
            sympy.simplify(sympy.expand_func(equation)) == 0 and bessel.subs(r, 0) == 1 and wave.subs(r, 0) == 1,
        ),
        ProofStep(
            "a power series is settled by that: r (r^(n+1))'' + (r^(n+1))' = (n+1)^2 r^n, and (n+1)^2 is not 0",
            sympy.simplify(r * term.diff(r, 2) + term.diff(r) - (n + 1) ** 2 * r**n) == 0
            and bool(((n + 1) ** 2).is_positive),
        ),
        ProofStep(
            "a phase changes no mean over the circle: d/dpsi of e^(r cos(y-psi)) is -d/dy of it, which is periodic",
            sympy.expand(shifted.diff(psi) + shifted.diff(y)) == 0
            and sympy.simplify(shifted.subs(y, y + 2 * sympy.pi) - shifted) == 0,
        ),
        ProofStep(
            "over a torus a factor free of one angle leaves the integral over it: I0 pair by pair, by induction",
            one_more == rest * sympy.Integral(f(y), (y, 0, 2 * sympy.pi)),
        ),
        ProofStep(
            "at delta = -K every cosine is 1: e^-phi(-K) = e^-beta = prod e^(-beta p_i), any number h of pairs",
            sympy.expand_power_exp(peak) == sympy.Product(sympy.exp(-beta * shares[i]), (i, 0, pairs - 1))
            and sympy.cos((s + n) * beta).subs(s, -n) == 1,
        ),
        ProofStep(
            "a harmonic n.theta off 2 pi Z has means (1-q^L)/((1-q) L), q = e^(i n.theta), at most 2/(|1-q| L): they "
            "tend to 0",
            sympy.simplify(geometric - partial.subs(q, 2)) == 0
            and sympy.simplify(partial.subs(length, length + 1) - partial - q**length) == 0
            and sympy.limit(2 / (gap * length), length, sympy.oo) == 0,
        ),
        ProofStep(
            "at base A^(gk) with gh pairs, pairs i and i+h turn in the ratio A^k, a whole number: h classes at most",
            sympy.simplify(theta(i) / theta(i + h) - root**k) == 0 and (root**k).is_integer is True,
        ),
        ProofStep(
            "and no fewer: with u k + v h = 1, m/h = u (m k/h) + v m, so that pairs m apart whose exponents differ by "
            "the whole m k/h have h dividing m",
            sympy.expand((u * apart * k / h + v * apart) - apart * (u * k + v * h) / h) == 0
            and (u * sympy.Symbol("w", integer=True) + v * apart).is_integer is True,
        ),
    )


def _carrier(
    schedule: RotarySchedule, shares: Float64[np.ndarray, "pair"], beta: float, offset: int, turn: float = 0.0
) -> Carrier:
    """A carrier aligned with the target but for a turn of its first pair's query."""
    key = np.repeat(np.sqrt(beta * shares / shares.sum() / 2), 2)
    off = np.where(np.arange(schedule.pairs) == 0, turn, 0.0)
    query = as_lanes(as_pairs(schedule.rotate(key, np.array(-offset))) * np.exp(1j * off))
    return Carrier.from_means(schedule, query, key, 1.0)


def _draw(rng: np.random.Generator) -> LongCarrier:
    pairs, power = ((1, 1), (2, 1), (3, 1), (2, 2), (4, 2), (3, 3))[rng.integers(6)]
    schedule = RotarySchedule.geometric(2 * pairs, int(rng.choice([2, 3, 7])) ** power)
    shares, beta, offset = rng.uniform(0.5, 1, size=pairs), float(rng.uniform(0.5, 4)), int(rng.integers(0, 7))
    # One pair a class is active, which makes them independent.
    alone = np.where(np.arange(pairs) < pairs // gcd(power, pairs), shares, 0)
    full = None if alone.all() else _carrier(schedule, shares, beta, offset)
    return LongCarrier(_carrier(schedule, alone, beta, offset), offset, 1 << 16, full, power)


def _counterexamples() -> tuple[Counterexample[LongCarrier], ...]:
    pair, equal, lags = np.ones(1), np.ones(2), 1 << 16
    single = RotarySchedule.geometric(2, 2)
    five = LongCarrier(_carrier(RotarySchedule.periodic([(1, 5)]), pair, 4.0, 2), 2, lags)
    halves = LongCarrier(_carrier(RotarySchedule.geometric(4, 4), equal, 4.0, 2), 2, lags)
    turned = LongCarrier(_carrier(single, pair, 4.0, 2, turn=1.0), 2, lags)
    slow = LongCarrier(_carrier(RotarySchedule.geometric(64, 10_001), np.ones(32), 8.0, 2), 2, 512)
    return (
        Counterexample("independent", "theta = 2 pi/5: the orbit is five points", five, _numbers(five)),
        Counterexample(
            "independent", "base 4, d=4: theta = 1 and 1/2 fill one circle, not two", halves, _numbers(halves)
        ),
        Counterexample("aligned", "theta = 1, the query 1 rad off: phi(-K) = 4 cos 1", turned, _numbers(turned)),
        Counterexample(
            "long",
            "base 10001, d=64, equal p, 8 nats: 512 offsets are a hundredth of a turn of the slowest pairs",
            slow,
            _numbers(slow),
        ),
    )


def _numbers(case: LongCarrier) -> dict[str, float]:
    return {"mean of e^(phi - phi(-K)) over the offsets": case.long_mean(), "e^-beta prod I0": case.product()}


def _is_independent(case: LongCarrier) -> bool:
    still = orbit_closure(case.carrier.schedule).finite
    rank = rational_rank(case.carrier.schedule, case.active)
    return bool(rank == case.active.sum() and not case.active[list(still)].any())


def _is_aligned(case: LongCarrier) -> bool:
    height = _profile(case.carrier, np.array([case.offset]))[0]
    return bool(np.isclose(height, case.carrier.amplitudes.sum(), rtol=1e-12, atol=0))


def _turns_many_times(case: LongCarrier) -> bool:
    slowest = np.abs(case.carrier.schedule.frequencies[case.active]).min()
    return bool(case.lags * slowest >= 2 * np.pi * _MANY_TURNS)


STATEMENT = Statement(
    row=10,
    id="equidistribution-limit",
    label="Equidistribution limit",
    printed=None,
    amended=Wording(
        claim="As L grows 1/(L a(L)) of the mean profile tends to e^-beta prod I0(beta p_i) where the active "
        "frequencies and 2 pi are rationally independent, to the average over the orbit's closure otherwise: at base "
        "A^k with h pairs a torus of h/gcd(k, h) dimensions.",
        recorded=Verdict.PROVED_GIVEN_CITED,
        residual=_residual,
        prove=_prove,
        cited=(
            "Weyl 1916, equidistribution on the closure of the orbit (Kronecker 1884)",
            "Besicovitch 1940, independence of roots",
            "Lindemann 1882, pi is transcendental",
        ),
    ),
    assumptions=(
        Assumption(
            "independent", "the active frequencies and 2 pi are independent over the rationals", _is_independent
        ),
        Assumption(
            "aligned",
            "phi(-K) is the sum of the amplitudes",
            _is_aligned,
        ),
        Assumption("long", f"the slowest active pair turns {_MANY_TURNS} times or more", _turns_many_times),
    ),
    draw=_draw,
    tolerance=1e-7,
    tolerance_reason="the smooth window leaves of the harmonics of the schedules drawn, weighted by their Bessel "
    "functions at 4 nats in equal shares and summed, 3e-10 of the mean; angles below "
    "65536 rad round by 7e-12",
    counterexamples=_counterexamples,
)
