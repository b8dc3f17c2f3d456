"""Commands about models: what is served, registered and measured."""
