"use strict";
const form = document.getElementById("filter"), said = form.querySelector("output");
const groups = [...document.querySelectorAll(".group")].map(group => ({
  group, lines: group.querySelector(".lines"), parts: [...group.querySelectorAll("details")],
  rows: [...group.querySelectorAll("tr[data-audit]")].map(row => ({row, text: ""})),
}));
function apply() {
  const wanted = form.text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const filtered = wanted.length > 0 || [form.audit, form.verdict, form.data].some(choice => choice.value !== "");
  let shown = 0, all = 0;
  for (const {group, lines, parts, rows} of groups) {
    let found = 0;
    const about = wanted.length ? group.querySelector("h2").textContent.toLowerCase() : "";
    for (const one of rows) {
      const {audit, verdict} = one.row.dataset;
      if (wanted.length && !one.text) one.text = `${about} ${one.row.textContent.toLowerCase()}`;
      const fits = (form.data.value === "" || form.data.value === group.id) && (form.audit.value === "" || form.audit.value === audit)
        && (form.verdict.value === "" || form.verdict.value === verdict) && wanted.every(word => one.text.includes(word));
      one.row.hidden = !fits;
      found += fits;
    }
    group.hidden = found === 0;
    lines.hidden = filtered && form.data.value === "";
    for (const part of parts) part.open = filtered && part.querySelector("tr[data-audit]:not([hidden])") !== null;
    shown += found;
    all += rows.length;
  }
  said.textContent = `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} runs`;
}
let waiting = 0;
form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(apply, 150); });
form.addEventListener("submit", event => event.preventDefault());
form.hidden = false;
apply();
