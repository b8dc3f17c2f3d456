"""What is served: applications, variants, their profiles and tensors."""
