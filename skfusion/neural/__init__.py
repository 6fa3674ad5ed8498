"""The neural head: projections, operator and classifier trained together."""
