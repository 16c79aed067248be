"""Mixtures of experts: routing, grouped products, and the exchange of tokens between devices."""
