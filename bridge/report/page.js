// The page: its theme, its charts, and the map of heads, whose cells open a head's kernel, profile and dilution.
(() => {
  const carrier = (window.carrier = window.carrier || {});
  const element = id => document.getElementById(id);

  // Theme: the system's until a person chooses.
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)"), toggle = element("theme");
  const setTheme = name => {
    if (root.dataset.theme === name) return;
    root.dataset.theme = name;
    toggle.setAttribute("aria-pressed", name === "dark");
    document.dispatchEvent(new Event("themechange"));
  };
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  toggle.addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));

  carrier.drawCharts();
  if (element("heads-data")) drawHeads(JSON.parse(element("heads-data").textContent));

  function drawHeads(map) {
    // cividis, dark to light: told apart by colour-blind readers, and in grey.
    const scale = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 134, 120], [165, 156, 116], [195, 180, 105], [225, 204, 85], [254, 232, 56]];
    const colour = share => {
      const place = Math.min(Math.max(share, 0), 1) * (scale.length - 1), low = Math.min(Math.floor(place), scale.length - 2);
      return scale[low].map((part, i) => Math.round(part + (place - low) * (scale[low + 1][i] - part)));
    };
    const attention = (head, length) => head.attention[head.lengths.indexOf(length)];
    // The number of a cell, how far along the colours it lies, and how it is written and spoken.
    const shown = {
      key: { value: head => head.key, share: value => value, text: value => value.toFixed(2), name: "carrier fraction of the keys" },
      query: { value: head => head.query, share: value => value, text: value => value.toFixed(2), name: "carrier fraction of the queries" },
      // Near offsets differ more than far ones.
      offset: { value: head => head.offset, share: value => 1 - Math.log2(1 - value) / 10, text: value => String(value), name: "selected offset in tokens" },
    };
    for (const length of map.lengths) {
      shown[length] = { value: head => attention(head, length), share: value => value, text: value => value.toFixed(2), name: `predicted attention on the selected offset at L = ${length}` };
    }
    const table = element("heads-map"), select = element("heads-shown"), cells = new Map();
    const columns = [...new Set(map.heads.map(head => head.head))].sort((a, b) => a - b);
    const row = table.insertRow();
    row.innerHTML = `<th scope="col" aria-label="layer">&nbsp;</th>` + columns.map(head => `<th scope="col">${head}</th>`).join("");
    for (const layer of [...new Set(map.heads.map(head => head.layer))].sort((a, b) => a - b)) {
      const line = table.insertRow();
      line.innerHTML = `<th scope="row">${layer}</th>`;
      for (const column of columns) {
        const head = map.heads.find(one => one.layer === layer && one.head === column), cell = line.insertCell();
        if (!head) continue;
        const button = cell.appendChild(document.createElement("button"));
        button.type = "button";
        button.setAttribute("aria-pressed", "false");
        button.addEventListener("click", () => open(head));
        cells.set(head, button);
      }
    }
    const paint = () => {
      const one = shown[select.value];
      for (const [head, button] of cells) {
        const value = one.value(head), known = value !== null && value !== undefined;
        const [red, green, blue] = known ? colour(one.share(value)) : [128, 128, 128];
        button.textContent = known ? one.text(value) : "-";
        button.style.background = `rgb(${red} ${green} ${blue})`;
        button.style.color = 0.299 * red + 0.587 * green + 0.114 * blue > 128 ? "#000" : "#fff";
        const said = `head ${head.layer}.${head.head}${head.kind && ", " + head.kind}, offset ${head.offset}: ${one.name} ${button.textContent}`;
        button.setAttribute("aria-label", said);
        button.title = said;
      }
      element("heads-scale").textContent = `Number in a cell: ${one.name}; ${select.value === "offset" ? "lighter is nearer" : "lighter is more, from 0 to 1"}. Rows are layers, columns heads.`;
    };
    select.addEventListener("change", paint);
    paint();

    function open(head) {
      for (const [one, button] of cells) button.setAttribute("aria-pressed", String(one === head));
      element("head").hidden = false;
      element("head-title").textContent = `Head ${head.layer}.${head.head}${head.kind && ": " + head.kind}, offset ${head.offset}`;
      const fraction = value => (value === null ? "not defined" : value.toFixed(3));
      const notes = [`carrier fractions: ${fraction(head.query)} of the queries, ${fraction(head.key)} of the keys`, ...head.notes];
      element("head-notes").replaceChildren(...notes.map(note => Object.assign(document.createElement("li"), { textContent: note })));
      const frequencies = map.schedules[head.schedule];
      drawKernel(head, frequencies);
      drawProfile(head, frequencies);
      drawDilution(head);
      element("head-title").focus();
    }

    function drawKernel(head, frequencies) {
      const lags = range(-64, 64), total = head.amplitudes.reduce((sum, one) => sum + one, 0);
      const weights = head.amplitudes.map(one => (total ? one / total : 0));
      const values = carrier.cosineSums(frequencies, weights, weights.map(() => 0), lags);
      draw("head-kernel", "kernel g(s)", "lag s = delta + K (tokens)", "g(s)", [line(lags, values, "kernel")]);
    }

    function drawProfile(head, frequencies) {
      const reach = Math.min(map.trained, 1024, head.bias.length || 1024), offsets = range(-(reach - 1), 0);
      // phi(delta) = sum r cos(delta theta - psi), and the bias where the model has one.
      const values = carrier.cosineSums(frequencies, head.amplitudes, head.phases.map(one => -one), offsets);
      if (head.bias.length) offsets.forEach((offset, i) => (values[i] += head.bias[-offset]));
      const at = offsets.indexOf(head.offset);
      const target = at < 0 ? [] : [points([head.offset], [values[at]], [], "selected offset")];
      draw("head-profile", "mean logit by offset", "offset delta (tokens)", "phi (nats)", [line(offsets, values, "profile of the means"), ...target]);
    }

    function drawDilution(head) {
      const law = { ...line(head.lengths, head.attention, `${head.law} law`), mode: "lines+markers" };
      if (head.errors.length) law.error_y = { type: "data", array: head.errors };
      const mean = { ...line(head.lengths, head.mean_profile, "mean-profile law"), line: { color: "#D55E00", dash: "dash" } };
      const uniform = { ...line(head.lengths, head.lengths.map(length => 1 / length), "uniform, 1/L"), line: { color: "#666666", dash: "dot" } };
      const seen = head.observed.length ? [points(...[0, 1, 2].map(i => head.observed.map(one => one[i])), "observed")] : [];
      draw("head-dilution", `attention at offset ${head.offset}`, "context length L (tokens)", "mean attention", [law, mean, uniform, ...seen], { type: "log", dtick: Math.log10(2) * Math.ceil(head.lengths.length / 3) });
    }
  }

  function draw(id, title, across, up, data, xaxis = {}) {
    const panel = element(id), last = data[0].x.length - 1, [first] = data;
    const told = (x, y) => `${(+y).toPrecision(3)} at ${x}`;
    panel.setAttribute("aria-label", `${title}. Horizontal: ${across}; vertical: ${up}. ${first.name}: ${told(first.x[0], first.y[0])}, ${told(first.x[last], first.y[last])}.`);
    carrier.draw(panel, { data, layout: { title: { text: title }, xaxis: { title: { text: across }, ...xaxis }, yaxis: { title: { text: up } } } });
  }

  function line(x, y, name) {
    return { x: [...x], y: [...y], name, mode: "lines", line: { color: "#0072B2" } };
  }

  function points(x, y, errors, name) {
    return { x, y, name, mode: "markers", marker: { color: "#000000", size: 8, symbol: "diamond" }, error_y: { type: "data", array: errors, visible: errors.length > 0 } };
  }

  function range(first, last) {
    return Array.from({ length: last - first + 1 }, (_, i) => first + i);
  }
})();
