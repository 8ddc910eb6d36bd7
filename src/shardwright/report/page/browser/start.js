startCharts();
