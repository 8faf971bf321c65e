"""Pure decisions: intervals, prices, attribution, grouping, budgets, savings, exports."""
