"""Model-less scaling (INFaaS, ATC 2021): how many instances of which variant, and how many workers."""
