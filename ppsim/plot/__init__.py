"""Pictures of timelines: interactive HTML by plotly, figures for print by matplotlib."""
