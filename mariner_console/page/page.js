// Back and forward: views are opened by their links, as by a reload.
window.addEventListener("popstate", () => location.reload());

// Order of texts in columns: figures by their value, others as people count (sensor2, sensor10).
const consoleUnits = {
  "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12,
  "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, days: 86400,
};
function consoleFigure(text) {
  const [, digits, unit] = /^(-?[0-9][0-9,.]*) ?(\S*)$/.exec(text) ?? [];
  return unit in consoleUnits ? digits.replaceAll(",", "") * consoleUnits[unit] : NaN;
}
function consoleOrder(a, b) {
  const order = consoleFigure(a) - consoleFigure(b);
  return isNaN(order) ? a.localeCompare(b, undefined, { numeric: true }) : order;
}
