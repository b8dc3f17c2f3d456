"""Workers that come and go: the autoscaler, model-less scaling, spot capacity."""
