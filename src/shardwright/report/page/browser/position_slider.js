// Sliders over searched plans: the card shows the values of the chosen position, and the line chart behind
// the slider points to it. The values are those of the JSON; no position is interpolated.

charts.slider = (figure, report) => {
  const axis = valueAt(report, figure.dataset.source);
  const slider = figure.querySelector("input");
  const values = [...figure.querySelectorAll("[data-leaf*='/positions/']")];
  const show = () => {
    const number = Number(slider.value);
    for (const value of values) {
      value.dataset.leaf = value.dataset.leaf.replace(/\/positions\/\d+\//, `/positions/${number}/`);
      value.textContent = formatNumber(valueAt(report, value.dataset.leaf), value.dataset.form);
    }
    const { amount, fits, rate } = axis.positions[number];
    const words = [formatNumber(amount, axis.form), axis.unit].filter(Boolean).join(" ");
    const found = fits ? `${formatNumber(rate, "rate")} tokens/s of a device` : "nothing fits";
    slider.setAttribute("aria-valuetext", `${words}: ${found}`);
    const plot = figure.nextElementSibling && figure.nextElementSibling.plot;
    if (!plot) return;
    const height = axis.chart.series[0].values[number];
    plot.setCursor({
      left: plot.valToPos(amount, "x"),
      top: height === null ? -10 : plot.valToPos(height, "y"),
    });
  };
  slider.addEventListener("input", show);
  figure.hidden = false;
  show();
};
