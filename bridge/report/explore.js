// The explorable carrier: what a rotary schedule, weights and a logit scale do to attention, computed here as `theory` does.
(() => {
  const carrier = (window.carrier = window.carrier || {});
  const LONGEST = 100000, NEAR = 64;

  // theta_i and f: theory/schedule.py, scaling.py, ramp_scaling.py.
  function schedule({ width, base, scaling, factor, trained }) {
    const pairs = width / 2, ramp = scaling === "yarn" ? yarnRamp(width, base, trained) : null;
    const gain = {
      none: () => 1,
      linear: () => 1 / factor,
      ntk: i => factor ** (-i / (pairs - 1)),
      yarn: i => 1 - ramp(i) * (1 - 1 / factor),
    }[scaling];
    const plain = Float64Array.from({ length: pairs }, (_, i) => base ** ((-2 * i) / width));
    const attentionFactor = scaling === "yarn" && factor > 1 ? 1 + 0.1 * Math.log(factor) : 1;
    return { plain, frequencies: plain.map((theta, i) => theta * gain(i)), attentionFactor };
  }

  // How far pair i is divided by the factor: 0 where it turns 32 times and more in the trained length, 1 where once and less.
  function yarnRamp(width, base, trained) {
    const pair = turns => (width * Math.log(trained / (2 * Math.PI * turns))) / (2 * Math.log(base));
    const low = Math.max(Math.floor(pair(32)), 0), high = Math.min(Math.ceil(pair(1)), width - 1);
    if (!(base > 1 && low <= high)) throw new RangeError(`YaRN has no ramp at width ${width}, base ${base} and trained length ${trained}: choose another trained length`);
    return i => Math.min(Math.max((i - low) / (high - low || 0.001), 0), 1);
  }

  // sum_i r_i cos(s theta_i + psi_i) at each lag s, cosine by cosine.
  function cosineSums(frequencies, amplitudes, phases, lags) {
    return Float64Array.from(lags, s => frequencies.reduce((sum, theta, i) => sum + amplitudes[i] * Math.cos(s * theta + phases[i]), 0));
  }

  // The same at s = 0..count-1 by the addition theorem, 2 sqrt(count) cosines a pair; no lag is carried on from the last.
  function cosineRun(frequencies, amplitudes, phases, count) {
    const block = Math.ceil(Math.sqrt(count)), sums = new Float64Array(block * block);
    const cosines = new Float64Array(block), sines = new Float64Array(block);
    frequencies.forEach((theta, i) => {
      if (amplitudes[i] === 0) return;
      for (let b = 0; b < block; b++) [cosines[b], sines[b]] = [Math.cos(b * theta), Math.sin(b * theta)];
      for (let start = 0; start < sums.length; start += block) {
        const angle = start * theta + phases[i], x = amplitudes[i] * Math.cos(angle), y = amplitudes[i] * Math.sin(angle);
        for (let b = 0; b < block; b++) sums[start + b] += x * cosines[b] - y * sines[b];
      }
    });
    return sums.subarray(0, count);
  }

  // All numbers of the page. Settings: width, base, scaling, factor, trained, phases, offset K, scale A (nats), length L, and
  // weights p_i and phase errors e_i of the carrier without scaling. A head that is scaled keeps its phases psi_i, and the
  // target turns away from them: phases "kept". Index j of the profile is offset -j, index n of the curves is length K+1+n.
  function compute(settings) {
    const { weights, offset, scale, length } = settings;
    const { plain, frequencies, attentionFactor } = schedule(settings);
    const turned = settings.phases === "kept" ? frequencies.map((theta, i) => offset * (theta - plain[i])) : frequencies.map(() => 0);
    const errors = turned.map((angle, i) => settings.errors[i] + angle);
    const lags = Array.from({ length: 2 * NEAR + 1 }, (_, i) => i - NEAR);
    const kernel = cosineSums(frequencies, weights, errors.map(error => -error), lags);
    const gain = scale * attentionFactor ** 2, reach = Math.max(length, LONGEST);
    // Offset -j is lag s = K - j, and cos(s theta - e) = cos(j theta + e - K theta).
    const whole = cosineRun(frequencies, weights, errors.map((error, i) => error - offset * frequencies[i]), reach);
    // Of the near lags those of one cosine each: as cos is even, K-1 and K+1 tie to the last bit where they tie.
    lags.forEach((s, i) => { if (offset >= s && offset - s < reach) whole[offset - s] = kernel[i]; });
    const profile = whole.map(value => gain * value);
    return { frequencies, attentionFactor, errors, lags, kernel, profile: profile.subarray(0, length), ...attention(profile, offset, length) };
  }

  // Margin, mean-profile law and bound at every length up to `length`, and the first length of the profile with a(L) < 1/2.
  function attention(profile, offset, length) {
    const target = profile[offset], dilution = new Float64Array(length - offset), bound = new Float64Array(length - offset);
    let top = -Infinity, mass = 0, rival = -Infinity, told = { half: null };
    let competitor = 0, selected = 0;
    for (let j = 0; j < profile.length; j++) {
      const value = profile[j];
      if (value > top) {
        mass = mass * Math.exp(top - value) + 1;
        top = value;
        selected = -j;
      } else mass += Math.exp(value - top);
      if (j !== offset && value > rival) [rival, competitor] = [value, -j];
      if (j < offset) continue;
      const share = Math.exp(target - top) / mass;
      if (j < length) [dilution[j - offset], bound[j - offset]] = [share, 1 / (1 + j * Math.exp(rival - target))];
      if (j === length - 1) told = { ...told, margin: target - rival, competitor, selected, share };
      if (share < 0.5 && told.half === null) told.half = j + 1;
      if (j >= length - 1 && told.half !== null) break;
    }
    return { ...told, dilution, bound };
  }

  Object.assign(carrier, { schedule, cosineSums, compute });

  const element = name => document.getElementById(`explore-${name}`);
  if (!element("data")) return;
  const data = JSON.parse(element("data").textContent);
  const BLUE = "#0072B2", ORANGE = "#D55E00", GREEN = "#009E73", GREY = "#666666";
  const START = { weights: "best", width: 64, base: 10000, offset: 3, scale: 10, length: 4096, scaling: "none", factor: 4, trained: 1024, phases: "kept" };
  const SLIDERS = Object.keys(data.stops), SELECTS = ["weights", "scaling", "phases"];
  const settings = { ...START };

  const spaced = number => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  const digits = (number, count = 3) => (number === 0 ? "0" : String(Number(number.toPrecision(count)))).replace("-", "\u2212");
  const plural = (number, unit) => `${spaced(number)} ${unit}${number === 1 ? "" : "s"}`;
  const READOUTS = {
    width: value => `${plural(value / 2, "pair")}, ${spaced(value)} lanes`,
    base: value => (Number.isInteger(value) ? spaced(value) : digits(value, 6)),
    factor: value => `×${value}`,
    trained: value => plural(value, "token"),
    offset: value => `${plural(value, "token")} back`,
    scale: value => `${digits(value)} nats`,
    length: value => plural(value, "token"),
  };

  // A carrier of a head fixes its width and base, and brings its own numbers as further stops.
  const named = () => data.carriers.find(one => one.label === settings.weights);
  function stops(name) {
    const head = named();
    if (!head || !(name in head)) return data.stops[name].filter(stop => name !== "length" || stop > settings.offset);
    if (name === "width" || name === "base") return [head[name]];
    return [...new Set([...data.stops[name], head[name]])].sort((a, b) => a - b);
  }
  const nearest = (value, choices) => choices.reduce((best, stop) => (Math.abs(stop - value) < Math.abs(best - value) ? stop : best));
  const options = name => [...element(name).options].map(option => option.value);

  // Takes settings, as those of a link; what cannot be is left as it is.
  function take(changes) {
    if (options("weights").includes(changes.weights)) {
      settings.weights = changes.weights;
      if (named()) for (const name of SLIDERS) if (name in named()) settings[name] = named()[name];
    }
    for (const name of ["scaling", "phases"]) if (options(name).includes(changes[name])) settings[name] = changes[name];
    const numbers = SLIDERS.filter(name => name in changes && changes[name] !== "" && Number.isFinite(Number(changes[name])));
    for (const name of numbers) settings[name] = Number(changes[name]);
    for (const name of ["offset", ...SLIDERS]) settings[name] = nearest(settings[name], stops(name));
    redraw();
  }

  function carrierOf({ weights, width, base }) {
    if (named()) return named();
    const pairs = width / 2, none = new Array(pairs).fill(0);
    if (weights === "equal") return { weights: none.map(() => 1 / pairs), errors: none };
    return { weights: data.best[data.stops.width.indexOf(width)][data.stops.base.indexOf(base)], errors: none };
  }

  // Many changes between two frames are one drawing.
  let frame = 0;
  function redraw() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      showControls();
      try {
        const { weights, errors } = carrierOf(settings);
        show(compute({ ...settings, weights, errors }), weights);
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        element("numbers").textContent = error.message;
      }
    });
  }

  function showControls() {
    const head = named(), scaled = settings.scaling !== "none";
    for (const name of SELECTS) element(name).value = settings[name];
    for (const name of SLIDERS) {
      const slider = element(name), choices = stops(name), readout = READOUTS[name](settings[name]);
      Object.assign(slider, { max: choices.length - 1, value: choices.indexOf(settings[name]) });
      slider.setAttribute("aria-valuetext", readout);
      element(`${name}-readout`).textContent = readout;
    }
    element("width").disabled = element("base").disabled = Boolean(head);
    element("factor").disabled = element("phases").disabled = !scaled;
    element("trained").disabled = settings.scaling !== "yarn";
    element("note").textContent = head
      ? `Width and base are those of ${head.label}, trained up to ${spaced(head.trained)} tokens: its weights and phases belong to them.`
      : "";
    const used = { none: [], linear: ["factor"], ntk: ["factor"], yarn: ["factor", "trained"] }[settings.scaling];
    const shown = ["weights", "width", "base", "offset", "scale", "length", "scaling", ...used, ...(scaled ? ["phases"] : [])];
    element("link").href = `#explore?${new URLSearchParams(shown.map(name => [name, settings[name]]))}`;
    const said = name => (READOUTS[name] ? READOUTS[name](settings[name]) : element(name).selectedOptions[0].textContent);
    element("link").textContent = shown.map(name => `${element(name).labels[0].textContent} ${said(name)}`).join("; ");
  }

  function show(found, weights) {
    const { offset, length } = settings, { profile, dilution, bound, kernel } = found;
    const at = delta => (delta === 0 ? "0" : `\u2212${spaced(-delta)}`), target = `\u2212K = ${at(-offset)}`;
    const half = found.half === null ? `beyond ${spaced(LONGEST)} tokens` : `from L = ${spaced(found.half)} on`;
    const numbers = [
      `margin ${digits(found.margin, 4)} nats, rival at offset ${at(found.competitor)}`,
      `attention on ${target} at L = ${spaced(length)}: ${digits(found.share, 4)}`,
      `highest at offset ${at(found.selected)}${found.selected === -offset ? ", the target" : ", not the target"}`,
      `attention below one half: ${half}`,
      `attention factor f: ${digits(found.attentionFactor, 5)}`,
    ];
    element("numbers").replaceChildren(...numbers.map(text => Object.assign(document.createElement("span"), { textContent: text })));

    const nearLine = { ...line("g(s)", found.lags, kernel, BLUE, "solid"), hovertemplate: "s = %{x}: %{y:.4f}" };
    const zero = { ...points("target, s = 0", [0], [kernel[NEAR]], ORANGE, "diamond"), hovertemplate: "s = 0: %{y:.4f}" };
    plot("kernel", "kernel", "lag s = δ + K (tokens)", "g(s)", [nearLine, zero], { range: [-NEAR, NEAR] },
      `g(0) = ${digits(kernel[NEAR])}, highest near 0: ${digits(Math.max(...kernel))}, lowest: ${digits(Math.min(...kernel))}.`);

    const offsets = extremes(profile, 0), heights = offsets.map(j => profile[j]);
    const spot = (name, delta, colour, symbol) => ({ ...points(name, [1 - delta], [profile[-delta]], colour, symbol), text: [at(delta)], hovertemplate: "δ = %{text}: %{y:.4f} nats" });
    const phi = { ...line("φ(δ)", offsets.map(j => j + 1), heights, BLUE, "solid"), text: offsets.map(j => at(-j)), hovertemplate: "δ = %{text}: %{y:.4f} nats" };
    plot("profile", "profile", "place of the key, 1 − δ (tokens)", "φ (nats)", [phi, spot("target −K", -offset, ORANGE, "diamond"), spot("rival", found.competitor, GREEN, "x")], lengths(1),
      `${digits(profile[offset], 4)} nats at the target ${at(-offset)}; ${numbers[0]}; lowest ${digits(Math.min(...heights), 4)} nats.`);

    const picked = extremes(dilution, offset), across = picked.map(n => n + offset + 1);
    const curve = (name, values, colour, dash) => ({ ...line(name, across, values, colour, dash), hovertemplate: "L = %{x}: %{y:.4g}" });
    plot("dilution", `attention on the target, offset ${at(-offset)}`, "context length L (tokens)", "attention",
      [curve("mean-profile law", picked.map(n => dilution[n]), BLUE, "solid"), curve("margin bound", picked.map(n => bound[n]), ORANGE, "dash"), curve("uniform, 1/L", across.map(L => 1 / L), GREY, "dot")],
      lengths(offset + 1), `${numbers[1]}; margin bound ${digits(bound[bound.length - 1], 4)}; uniform ${digits(1 / length, 4)}; ${numbers[3]}.`, { range: [0, 1.02] });

    const told = [...found.frequencies].map(theta => `θ = ${digits(theta, 4)} rad/token, one turn in ${digits((2 * Math.PI) / theta, 4)} tokens`);
    const bars = { type: "bar", name: "weights", x: told.map((_, i) => i), y: [...weights], text: told, textposition: "none", marker: { color: BLUE }, hovertemplate: "pair %{x}: p = %{y:.4f}<br>%{text}<extra></extra>" };
    const heaviest = weights.indexOf(Math.max(...weights));
    plot("pairs", "weights of the pairs", "pair i, fast to slow", "p", [bars], {},
      `${weights.filter(weight => weight > 0).length} of ${weights.length} pairs are used; the heaviest is ${heaviest} with ${digits(weights[heaviest])}, ${told[heaviest]}.`);
  }

  // Indices of the least and the greatest value in every 1/64 of a doubling of the place first+index+1, ends included.
  function extremes(values, first) {
    const kept = new Set([0, values.length - 1]);
    for (let start = 0, end; start < values.length; start = end) {
      end = Math.min(Math.max(Math.ceil((first + start + 1) * 2 ** (1 / 64)) - first - 1, start + 1), values.length);
      let low = start, high = start;
      for (let i = start; i < end; i++) {
        if (values[i] < values[low]) low = i;
        if (values[i] > values[high]) high = i;
      }
      kept.add(low).add(high);
    }
    return [...kept].sort((a, b) => a - b);
  }

  // An axis of lengths, in doublings, with a tick at every few of them.
  function lengths(first) {
    const doublings = Math.log2(settings.length / first), step = Math.max(1, Math.ceil(doublings / 6)), ticks = [];
    for (let power = Math.ceil(Math.log2(first)); 2 ** power <= settings.length; power += step) ticks.push(2 ** power);
    const margin = 0.02 * Math.log10(settings.length / first) + 0.005;
    return { type: "log", range: [Math.log10(first) - margin, Math.log10(settings.length) + margin], tickvals: ticks, ticktext: ticks.map(spaced) };
  }

  function line(name, x, y, color, dash) {
    return { name, x: [...x], y: [...y], mode: "lines", line: { color, dash } };
  }

  function points(name, x, y, color, symbol) {
    return { name, x, y, mode: "markers", marker: { color, symbol, size: 10 } };
  }

  // Draws a chart, unless it shows the same already: the length of a context, say, does not move the kernel.
  const last = {};
  function plot(name, title, across, up, data, xaxis, told, yaxis = {}) {
    const layout = { title: { text: title }, xaxis: { title: { text: across }, ...xaxis }, yaxis: { title: { text: up }, ...yaxis } };
    const figure = JSON.stringify({ data, layout });
    if (last[name] === figure) return;
    last[name] = figure;
    element(name).setAttribute("aria-label", `${title}. Horizontal: ${across}; vertical: ${up}. ${told}`);
    carrier.draw(element(name), { data, layout });
  }

  function takeLink() {
    const [place, query] = location.hash.split("?");
    if (place !== "#explore" || !query) return false;
    take(START);
    take(Object.fromEntries(new URLSearchParams(query)));
    return true;
  }

  for (const name of SELECTS) element(name).addEventListener("change", event => take({ [name]: event.target.value }));
  for (const name of SLIDERS) element(name).addEventListener("input", event => take({ [name]: stops(name)[event.target.value] }));
  element("reset").addEventListener("click", () => take(START));
  addEventListener("hashchange", takeLink);
  if (takeLink()) element("title").scrollIntoView();
  else take(START);
})();
