"""Registration: from trained models to an app that is served."""
