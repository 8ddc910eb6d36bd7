"""Data files with measured tables of kernels and collectives; hardware.catalog reads them."""
