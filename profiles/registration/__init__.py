"""From one trained model to the variants that are served: checked, transformed, measured, chosen."""
