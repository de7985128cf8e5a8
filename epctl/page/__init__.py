"""Pages to look at: one HTML file each, with style, script and data inside, that asks no network for anything."""
