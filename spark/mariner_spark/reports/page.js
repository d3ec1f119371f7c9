// Draws the charts of the page; again when light becomes dark or the other way round.
(() => {
  "use strict";
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const font = getComputedStyle(document.documentElement).fontFamily;

  const config = () => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return {
      background: "transparent",
      font,
      view: { stroke: "transparent" },
      axis: {
        domainColor: of("--line"), gridColor: of("--line"), tickColor: of("--line"),
        labelColor: of("--soft"), labelFontSize: 11, labelPadding: 6,
      },
      axisX: { grid: false },
      text: { color: of("--soft"), fontSize: 11 },
      line: { color: "#4269d0" },
      bar: { color: "#4269d0" },
    };
  };

  let drawing = 0;
  const draw = async () => {
    const mine = ++drawing;
    const options = {
      actions: false, ast: true, renderer: "svg", config: config(),
      tooltip: { theme: dark.matches ? "dark" : "light" },
      loader: { target: "_blank", rel: "noopener" },
    };
    document.body.removeAttribute("data-drawn");
    let failed = 0;
    for (const place of document.querySelectorAll("[data-chart]")) {
      try {
        await vegaEmbed(place, specs[place.dataset.chart], options);
      } catch (error) {
        failed += 1;
        place.classList.add("failed");
        place.textContent = `This chart could not be drawn: ${error}`;
      }
      if (mine !== drawing) return; // begun anew meanwhile
    }
    document.body.dataset.drawn = failed ? `${failed} failed` : "all";
  };

  dark.addEventListener("change", draw);
  draw();
})();
