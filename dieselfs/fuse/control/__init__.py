"""The control directory `.dieselfs/`: its files, and requests for them."""
