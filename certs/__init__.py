"""The certificate authority of the gateway: mint, load, fingerprint, trust bundle. Keys never live here."""
