// Glue between the two figures (Vega), the table and the explained designs. Texts are set as text, never as HTML.
(() => {
  const data = id => { const node = document.getElementById(id); return node && JSON.parse(node.textContent); };
  const rows = data("rows");
  const body = document.querySelector("table.frontier tbody");
  const fixed = body && Array.from(body.children);
  const choose = document.getElementById("design");
  const options = {renderer: "svg", tooltip: {theme: "custom"},
    actions: {export: true, source: false, compiled: false, editor: false}};
  let why = null;

  // ---- the table shows what is picked in a chart
  const within = (picks, i) => picks.every(pick => pick.fields.every((field, k) => {
    const value = rows.values[i][rows.names.indexOf(field.field)];
    const [low, high] = [Math.min(...pick.values[k]), Math.max(...pick.values[k])];
    return value !== null && low <= value && value <= high;
  }));
  const line = i => {
    const kept = fixed.find(row => Number(row.dataset.row) === rows.rows[i]);
    if (kept) return kept;
    const row = fixed[0].cloneNode(true);
    row.dataset.row = rows.rows[i];
    row.classList.toggle("pick", rows.rows[i] === rows.pick);
    Array.from(row.children).forEach((cell, k) => { cell.textContent = rows.cells[i][k]; });
    return link(row);
  };
  const filter = picks => {
    const said = document.getElementById("picked-rows");
    if (!picks.length) { body.replaceChildren(...fixed); said.textContent = ""; return; }
    const found = rows.rows.map((_, i) => i).filter(i => within(picks, i));
    const step = Math.max(1, found.length / rows.most);
    const shown = found.filter((_, k) => Math.floor(k / step) !== Math.floor((k - 1) / step));
    body.replaceChildren(...shown.map(line));
    const drawn = shown.length < found.length ? `; ${shown.length} of them are shown` : "";
    said.textContent = `${found.length.toLocaleString("en")} picked in the chart${drawn}. `;
  };

  // ---- one explained design is seen at a time
  const panels = Array.from(document.querySelectorAll(".panel"));
  const known = panels.map(panel => Number(panel.dataset.row));
  const link = row => {
    if (!known.includes(Number(row.dataset.row))) return row;
    const head = row.firstElementChild, button = document.createElement("button");
    button.type = "button";
    button.className = "see";
    button.textContent = head.textContent;
    button.title = "Why this design";
    button.addEventListener("click", () => { show(Number(row.dataset.row)); document.getElementById("why").scrollIntoView(); choose.focus(); });
    head.replaceChildren(button);
    return row;
  };
  const show = row => {
    if (!known.includes(row)) return;
    choose.value = String(row);
    panels.forEach(panel => { panel.hidden = Number(panel.dataset.row) !== row; });
    if (why) why.signal("design", row).runAsync();
  };
  const nearest = row => {
    const at = i => rows.values[rows.rows.indexOf(i)] || [];
    const span = rows.names.map((_, k) => Math.max(...rows.values.map(v => Math.abs(v[k] || 0))) || 1);
    const gap = i => at(i).reduce((sum, v, k) => sum + ((v - at(row)[k]) / span[k]) ** 2, 0);
    return known.reduce((best, i) => gap(i) < gap(best) ? i : best, known[0]);
  };
  if (fixed) fixed.forEach(link);
  if (choose) choose.addEventListener("change", () => show(Number(choose.value)));

  // ---- both figures are drawn to the width there is
  const drawn = {};
  async function draw(id, spec, fit, ready) {
    const box = document.getElementById(id), room = box ? box.clientWidth : 0;
    if (!spec || !room || Math.abs(room - (drawn[id] || 0)) < 24) return;
    drawn[id] = room;
    const own = structuredClone(spec);
    fit(own, room);
    own.config.font = getComputedStyle(document.body).fontFamily;
    const {view} = await vegaEmbed(box, own, options);
    box.querySelector("summary").setAttribute("aria-label", "Save this figure");
    box.querySelectorAll("[class*=brush_brush]").forEach(mark => mark.setAttribute("aria-hidden", "true"));
    ready(view);
  }
  const frontier = data("spec"), reasons = data("why-spec"), tornado = data("tornado-spec"), replays = data("replay-spec");
  const questions = data("question-specs") || [];
  const grid = (views, columns, room) => {
    const width = Math.max(150, Math.floor((room - 28 * (columns - 1)) / columns) - 84);
    for (const view of views) view.width = width;
  };
  const all = () => {
    draw("charts", frontier, (spec, room) => {
      spec.vconcat[0].columns = room < 720 ? 1 : 2;
      grid(spec.vconcat[0].concat, spec.vconcat[0].columns, room);
      if (spec.vconcat[1]) spec.vconcat[1].width = room - 60;
      if (room < 720) spec.vconcat.length = 1;
    }, view => {
      filter([]);
      if (!(frontier.params || []).length) return;
      view.addDataListener("brush_store", (_, picks) => filter(picks));
      view.addSignalListener("click", (_, click) => { if (click.i && click.i.length) show(nearest(click.i[0])); });
    });
    draw("why-charts", reasons, (spec, room) => {
      spec.columns = room < 560 ? 1 : room < 860 ? 2 : spec.concat.length;
      grid(spec.concat, spec.columns, room);
      spec.params.find(param => param.name === "design").value = Number(choose.value);
    }, view => { why = view; });
    draw("replay-charts", replays, (spec, room) => {
      spec.columns = room < 560 ? 1 : room < 1080 ? 2 : spec.concat.length;
      grid(spec.concat, spec.columns, room);
    }, () => {});
    draw("tornado", tornado, (spec, room) => { spec.width = Math.max(120, Math.min(760, room - 300)); }, () => {});
    for (const {place, spec} of questions) draw(place, spec, (own, room) => {
      own.width = Math.max(150, Math.min(620, room - 84));
      if (room < 480) own.config.legend.columns = 1;
    }, () => {});
  };
  all();
  let wait = 0;
  addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(all, 150); });
})();
