"""The page cache of a mount: prefilled ahead of readers, dropped behind them."""
