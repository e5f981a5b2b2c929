"""The gateway's side: the pure judge, and the mitmproxy adapter around it.

Importing this package, or any of `errors`, `request`, `policy`, `judge`, `decisions` and `log`, loads neither
mitmproxy nor docker nor click (tests/unit/test_layers.py).
"""
