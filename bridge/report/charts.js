// Charts: a plotly figure in the colours and the width of the page, that the keyboard reads and the printer keeps whole.
(() => {
  const carrier = (window.carrier = window.carrier || {});
  const HEIGHT = 220, WIDTH = 430, PRINTED = 340, drawn = new Map();
  const paper = matchMedia("print"), mouse = matchMedia("(hover: hover) and (pointer: fine)");
  const LIGHT = { ink: "#000000", paper: "#ffffff", panel: "#ffffff", faint: "#555555", line: "#dddddd" };
  let printing = false;

  // Draws or updates {data, layout} in the element. layout.meta.aspect is the height of the axes over their width.
  carrier.draw = (element, figure) => {
    if (!drawn.has(element)) prepare(element);
    drawn.get(element).figure = figure;
    render(element);
  };

  // All panels of the page, each when it comes near the screen.
  carrier.drawCharts = () => {
    const near = new IntersectionObserver(seen => seen.filter(one => one.isIntersecting).forEach(one => first(one.target)), { rootMargin: "600px" });
    document.querySelectorAll(".panel[data-figure]").forEach(panel => near.observe(panel));
    function first(panel) {
      near.unobserve(panel);
      if (!drawn.has(panel)) carrier.draw(panel, JSON.parse(document.getElementById(panel.dataset.figure).textContent));
    }
    carrier.drawAll = () => document.querySelectorAll(".panel[data-figure]").forEach(first);
  };

  function render(element) {
    const state = drawn.get(element), width = printing ? PRINTED : element.clientWidth;
    if (!width) return;
    state.width = width;
    const bar = { displaylogo: false, displayModeBar: mouse.matches && !printing && "hover", modeBarButtons: [["toImage", "resetScale2d"]] };
    const react = () => Plotly.react(element, ...dressed(state, element), bar);
    react();
    // Entries of a legend wrap as they like: the height that they take is known only now, and is added to that of the axes.
    const legend = element._fullLayout.showlegend ? Math.ceil(element._fullLayout.legend?._height ?? 0) : 0;
    if (legend !== state.legend) react((state.legend = legend));
    for (const button of element.querySelectorAll(".modebar-btn")) button.tabIndex = -1;
  }

  // The figure with the colours, letters and size of the page; what the figure itself says of its axes stays.
  function dressed({ figure: { data, layout }, width, legend }, element) {
    const page = colours(), dark = luminance(channels(page.panel)) < 0.2, lit = dark && Boolean(layout.meta?.light);
    const theme = printing || lit ? LIGHT : page;
    element.style.background = lit || printing ? LIGHT.panel : "";
    const { fontFamily: family } = getComputedStyle(element), plain = `12px ${family}`;
    const title = wrapped(layout.title?.text, width - (mouse.matches && !printing ? 76 : 24), `600 13px ${family}`);
    const across = wrapped(layout.xaxis?.title?.text, width - 80, plain);
    const axes = Math.max(HEIGHT, Math.round(Math.min(width - 70, WIDTH) * (layout.meta?.aspect ?? 0.7)) - 40);
    const up = wrapped(layout.yaxis?.title?.text, axes, plain);
    const top = 18 + 17 * lines(title), bottom = 32 + 16 * lines(across) + legend, height = top + axes + bottom;
    const axis = (own, text) => ({
      gridcolor: theme.line, linecolor: theme.faint, tickcolor: theme.faint, showline: true, zeroline: false,
      ticks: "outside", ticklen: 4, automargin: true, ...own, title: { standoff: 8, font: { size: 12 }, ...own?.title, text },
    });
    const fitted = one => ({
      ...recoloured(one, theme),
      ...(one.name && { name: wrapped(one.name, width - 60, plain) }),
      ...(one.hovertemplate && { hovertemplate: wrapped(one.hovertemplate, width * 0.75, plain) }),
    });
    return [data.map(fitted), {
      hovermode: "closest", dragmode: mouse.matches ? "zoom" : false, showlegend: data.length > 1, ...layout,
      font: { family, size: 12, color: theme.ink }, width, height, margin: { l: 52, r: 14, t: top, b: bottom, pad: 0 },
      paper_bgcolor: "transparent", plot_bgcolor: "transparent",
      // The base line of its first row is 22 pixels down, however many rows follow.
      title: { text: title, font: { size: 13, weight: 600 }, x: 0, xref: "container", xanchor: "left", y: 1 - 22 / height, yref: "container", yanchor: "bottom", pad: { l: 12 } },
      xaxis: axis(layout.xaxis, across), yaxis: axis(layout.yaxis, up), shapes: (layout.shapes ?? []).map(fitted),
      legend: { orientation: "h", font: { size: 11.5 }, x: 0, xref: "container", xanchor: "left", y: 0, yref: "container", yanchor: "bottom", itemwidth: 30, tracegroupgap: 0, bgcolor: "transparent" },
      hoverlabel: { bgcolor: theme.paper, bordercolor: theme.faint, font: { family, size: 12, color: theme.ink }, align: "left", namelength: -1 },
      modebar: { color: theme.faint, activecolor: theme.ink, bgcolor: "transparent" },
    }];
  }

  // Colours. Greys lie between paper and ink in any theme; a hue that would drown in a dark panel takes the opposite lightness.
  function colours() {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(Object.entries(LIGHT).map(([name, light]) => [name, style.getPropertyValue(`--${name}`).trim() || light]));
  }

  function recoloured(value, theme) {
    const repaint = (one, key) => {
      if (Array.isArray(one)) return /color$/.test(key) ? one.map(each => carrier.colour(each, theme)) : one;
      if (one && typeof one === "object") return Object.fromEntries(Object.entries(one).map(([name, part]) => [name, name === "textfont" ? part : repaint(part, name)]));
      return typeof one === "string" && /color$/.test(key) ? carrier.colour(one, theme) : one;
    };
    return value.type === "heatmap" ? value : repaint(value, "");
  }

  carrier.colour = (text, theme = colours()) => {
    const [red, green, blue, opacity = 1] = channels(text);
    if ([red, green, blue, opacity].some(part => !(part >= 0))) return text;
    let shown = [red, green, blue];
    if (Math.max(...shown) - Math.min(...shown) < 8) {
      const ink = channels(theme.ink), panel = channels(theme.panel);
      shown = ink.slice(0, 3).map((part, i) => part + (panel[i] - part) * (red / 255));
    } else if (luminance(channels(theme.panel)) < 0.2 && contrast(shown, channels(theme.panel)) < 4.5) {
      // Turning the lightness and keeping the hue: all channels move by the same amount.
      const shift = 255 - Math.max(...shown) - Math.min(...shown);
      shown = shown.map(part => part + Math.max(shift, 0));
    }
    return `rgba(${shown.map(Math.round).join(",")},${opacity})`;
  };

  function channels(text) {
    const hex = /^#([0-9a-f]{6})$/i.exec(text)?.[1], short = /^#([0-9a-f]{3})$/i.exec(text)?.[1];
    if (hex) return [0, 2, 4].map(i => parseInt(hex.slice(i, i + 2), 16));
    if (short) return [...short].map(digit => 17 * parseInt(digit, 16));
    return /^rgba?\(/.test(text) ? text.match(/[\d.]+/g).map(Number) : [NaN];
  }

  function luminance(channel) {
    const [red, green, blue] = channel.map(part => ((part / 255 <= 0.04045) ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }

  function contrast(one, other) {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }

  // Text broken into rows of at most so many pixels. A row that was broken off ends with its space, unlike one of the text's.
  const pen = document.createElement("canvas").getContext("2d");
  function wrapped(text, room, font) {
    pen.font = font;
    const width = row => pen.measureText(row.replace(/%\{[^}]*\}/g, "0.0000").replace(/<[^>]*>/g, "")).width;
    return (text || "").split("<br>").map(row => row.split(" ").reduce((rows, word) => {
      if (rows.length && width(`${rows.at(-1)} ${word}`) <= room) rows.push(`${rows.pop()} ${word}`);
      else rows.push(word);
      return rows;
    }, []).join(" <br>")).join("<br>");
  }

  function lines(text) {
    return text ? text.split("<br>").length : 0;
  }

  // Keyboard: left and right along a series, up and down between series, Home and End to its ends, Escape out of it.
  function prepare(element) {
    element.tabIndex = 0;
    element.setAttribute("role", "application");
    element.setAttribute("aria-roledescription", "chart; the arrow keys read its points");
    element.addEventListener("keydown", event => {
      if (event.target === element && !event.ctrlKey && !event.metaKey && !event.altKey && move(element, event.key)) event.preventDefault();
    });
    element.addEventListener("blur", () => leave(element));
    drawn.set(element, { figure: null, legend: 0 });
    widths.observe(element);
  }

  function move(element, key) {
    if (!/^(Arrow(Left|Right|Up|Down)|Home|End|Escape)$/.test(key) || !element._fullData) return false;
    const state = drawn.get(element), all = series(element), at = state.at;
    if (key === "Escape") return Boolean(at) && (leave(element), true);
    if (!all.length) return false;
    let which = Math.max(all.findIndex(one => one.curve === at?.curve), 0), { points } = all[which];
    let place = Math.max(points.findIndex(point => point.number === at?.number), 0);
    if (at && /Up|Down/.test(key)) {
      const { x } = points[place];
      which = (which + (key === "ArrowDown" ? 1 : all.length - 1)) % all.length;
      ({ points } = all[which]);
      place = points.reduce((best, point, i) => (Math.abs(point.x - x) < Math.abs(points[best].x - x) ? i : best), 0);
    }
    if (at && key === "ArrowRight") place = Math.min(place + 1, points.length - 1);
    if (at && key === "ArrowLeft") place = Math.max(place - 1, 0);
    if (key === "Home") place = 0;
    if (key === "End") place = points.length - 1;
    state.at = { curve: all[which].curve, number: points[place].number };
    Plotly.Fx.hover(element, [{ curveNumber: state.at.curve, ...points[place].where }]);
    // Without a mouse plotly tells nobody; its label is there within its pause of 50 ms.
    clearTimeout(state.telling);
    state.telling = setTimeout(() => say(shown(element)), 60);
    return true;
  }

  // The series that are shown, with their points from left to right as they stand on the screen; cells row by row.
  function series(element) {
    const points = trace => (trace.visible !== true || trace.hoverinfo === "skip" ? [] : trace.type === "heatmap" ? cells(trace) : marks(trace, element._fullLayout.xaxis));
    return element._fullData.map((trace, curve) => ({ curve, points: points(trace) })).filter(one => one.points.length);
  }

  function cells({ x, y, z }) {
    const middle = (edges, i) => (edges[i] + edges[i + 1]) / 2, columns = z[0].length;
    return Array.from(z).flatMap((row, i) => Array.from(row, (value, j) => ({ number: i * columns + j, x: middle(x, j), value, where: { xval: middle(x, j), yval: middle(y, i) } })))
      .filter(({ value }) => value !== null);
  }

  function marks({ x, y }, axis) {
    const toTheRight = axis.range[0] <= axis.range[1] ? 1 : -1;
    return Array.from(y, (value, number) => ({ number, value, x: axis.d2c(x ? x[number] : number), where: { pointNumber: number } }))
      .filter(point => point.value !== null && Number.isFinite(point.x))
      .sort((a, b) => toTheRight * (a.x - b.x) || a.number - b.number);
  }

  // What is read out is what the label at the point shows, a comma after each row.
  function shown(element) {
    return [...element.querySelectorAll(".hoverlayer .hovertext text")].flatMap(text => {
      const rows = [...text.querySelectorAll("tspan.line")].map(row => row.textContent);
      return rows.length ? rows : [text.textContent];
    }).filter(Boolean).map(row => (row.endsWith(" ") ? row : `${row}, `)).join("").replace(/, $/, "");
  }

  function leave(element) {
    if (!drawn.get(element).at) return;
    clearTimeout(drawn.get(element).telling);
    delete drawn.get(element).at;
    Plotly.Fx.unhover(element);
    say("");
  }

  let live = null;
  function say(text) {
    if (!live) {
      live = document.body.appendChild(document.createElement("div"));
      live.id = "carrier-live";
      live.setAttribute("role", "status");
      live.style.cssText = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)";
    }
    live.textContent = text;
  }

  // A change of theme or width draws again; nothing here moves by itself, whatever motion is preferred.
  const renderAll = () => drawn.forEach((state, element) => state.figure && render(element));
  document.addEventListener("themechange", renderAll);
  const widths = new ResizeObserver(changes => {
    if (!printing) for (const { target } of changes) if (drawn.get(target).figure && drawn.get(target).width !== target.clientWidth) render(target);
  });

  // On paper: every chart, light, and at a width of which two fit beside each other on A4 and on Letter.
  function print(on) {
    if (printing === on) return;
    printing = on;
    if (on) carrier.drawAll?.();
    renderAll();
  }
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  paper.addEventListener("change", event => print(event.matches));
})();
