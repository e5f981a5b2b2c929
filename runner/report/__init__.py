"""One page about a run: `impyard report`. Whatever a run left is escaped on its way into the page."""
