"""How long a device takes for a kernel: from data sheets, facts or tables."""
